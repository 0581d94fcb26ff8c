"""Optimizers against PyTorch's numbers, and the promises of the flat interface."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from hpctrain import optim
from hpctrain.errors import ConfigError, ShapeError

pytestmark = pytest.mark.serial

CASES = json.loads(Path(__file__).with_name("oracle").joinpath("torch.json").read_text())[
    "cases"
]
RENAMED = {"eps": "epsilon"}


def made(name):
    """Return the optimizer of a case and its base rate."""
    args = dict(CASES[name]["args"])
    if "betas" in args:
        args["beta1"], args["beta2"] = args.pop("betas")
    args = {RENAMED.get(k, k): v for k, v in args.items()}
    return optim.create(name.partition("_")[0], **args), args["lr"]


@pytest.mark.parametrize("name", CASES)
def test_updates_equal_pytorch(name):
    optimizer, lr = made(name)
    expected = np.array(CASES[name]["weights"])
    weight = np.cos(np.arange(expected.shape[1], dtype=np.float64))
    state = optimizer.make_state(weight.size, weight.dtype)

    for step, row in enumerate(expected):
        grad = np.array([math.sin(3 * i + step) for i in range(weight.size)])
        optimizer.update(weight, grad, state, lr=lr * (1 if step < 2 else 2 / 3), step=step)

        np.testing.assert_allclose(weight, row, rtol=1e-12)


@pytest.mark.parametrize("name", CASES)
def test_a_slice_is_updated_like_the_whole(name):
    optimizer, lr = made(name)
    rng = np.random.default_rng(0)
    n = 40_000
    weight, grad = rng.standard_normal((2, n), np.float32)
    whole, parts = weight.copy(), weight.copy()
    state, pieces = optimizer.make_state(n), optimizer.make_state(n)

    for step in range(2):
        optimizer.update(whole, grad, state, lr=lr, step=step)
        for part in (slice(0, 7), slice(7, 17_001), slice(17_001, n)):
            sliced = {key: value[part] for key, value in pieces.items()}
            optimizer.update(parts[part], grad[part], sliced, lr=lr, step=step)

    np.testing.assert_array_equal(whole, parts)
    for key in state:
        np.testing.assert_array_equal(state[key], pieces[key])


@pytest.mark.parametrize("name", CASES)
def test_the_gradient_and_the_dtype_stay(name):
    optimizer, lr = made(name)
    weight, grad = np.ones(5, np.float32), np.full(5, 3.0, np.float32)
    state = optimizer.make_state(5, np.float32)

    optimizer.update(weight, grad, state, lr=lr, step=0, scale=0.5)

    np.testing.assert_array_equal(grad, 3)
    assert all(value.dtype == np.float32 for value in state.values())


def test_scale_and_clip_act_before_the_decay():
    optimizer = optim.create("sgd", learning_rate=1, wd=0.5, rescale_grad=0.25, clip_gradient=1)
    weight, grad = np.array([2.0, 2.0]), np.array([2.0, 80.0])

    optimizer.update(weight, grad, {}, lr=1, step=0, scale=0.5)

    np.testing.assert_array_equal(weight, [2 - (0.25 + 1), 2 - (1 + 1)])


def test_the_call_may_set_the_decay():
    optimizer = optim.create("sgd", weight_decay=0.5)
    weight = np.array([2.0])

    optimizer.update(weight, np.zeros(1), {}, lr=1, step=0, weight_decay=0)

    assert weight == 2


def test_nag_is_sgd_with_nesterov():
    assert optim.create("NAG", learning_rate=0.1) == optim.SGD(
        lr=0.1, momentum=0.9, nesterov=True
    )


@pytest.mark.parametrize("name", CASES)
def test_a_description_makes_the_optimizer_again(name):
    optimizer, _ = made(name)

    plain = json.loads(json.dumps(optimizer.describe()))

    assert optim.create(plain.pop("name"), **plain) == optimizer


@pytest.mark.parametrize(
    ("name", "args", "said"),
    [
        ("sdg", {}, "needed one of adam, adamw, nag, sgd"),
        ("sgd", {"beta1": 0.9}, "got 'beta1'"),
        ("sgd", {"lr": -1}, "lr -1"),
        ("sgd", {"momentum": 1.0}, "momentum 1.0"),
        ("sgd", {"nesterov": True}, "more than 0 with nesterov"),
        ("adam", {"beta2": 1.0}, "beta2 1.0"),
        ("adam", {"clip_gradient": 0.0}, "clip_gradient 0.0"),
    ],
)
def test_a_wrong_setting_is_named(name, args, said):
    with pytest.raises(ConfigError, match=said):
        optim.create(name, **args)


def test_arrays_that_do_not_fit_are_named():
    sgd = optim.create("sgd", momentum=0.9)
    weight = np.zeros(3, np.float32)

    with pytest.raises(ShapeError, match="got nothing for the state 'momentum'"):
        sgd.update(weight, weight, {}, lr=1, step=0)
    with pytest.raises(ShapeError, match="two flat arrays"):
        sgd.update(weight, np.zeros(4, np.float32), sgd.make_state(3), lr=1, step=0)
