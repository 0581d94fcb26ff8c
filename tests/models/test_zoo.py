"""The models: PyTorch's numbers, PyTorch's sizes, and names that stay."""

import runpy
from pathlib import Path

import numpy as np
import pytest

from hpctrain import models
from hpctrain.autograd import Tensor, backward, record

pytestmark = pytest.mark.serial

HERE = Path(__file__).parent
WAVES = runpy.run_path(str(HERE.parent / "nn" / "oracle" / "waves.py"))
wave, fill = WAVES["wave"], WAVES["fill"]

with np.load(HERE / "oracle" / "torch.npz", allow_pickle=False) as stored:
    FOUND = {key: stored[key] for key in stored.files}

SMALL = {
    "mlp": (models.MLP, {"inputs": 9, "hidden": (7, 5), "classes": 4}, (3, 9)),
    "lenet": (models.LeNet, {"size": 20, "layout": "NCHW"}, (2, 1, 20, 20)),
    "resnet": (models.ResNet, {"depth": 8}, (3, 3, 8, 8)),
    "lstm": (models.LSTMModel, {"vocab": 11, "width": 6}, (4, 3)),
    "gpt": (
        models.GPT,
        {"vocab": 11, "width": 8, "heads": 2, "depth": 2, "steps": 6},
        (3, 5),
    ),
    "cosmo": (
        models.Cosmo,
        {"channels": (2, 4, 5, 6), "size": 8, "hidden": 7},
        (2, 2, 8, 8, 8),
    ),
}


def filled(net):
    """Fill the learned parameters with waves, in PyTorch's layout, in double precision."""
    net.initialize()
    net.cast("float64")
    learned = [p for p in net.collect_params().values() if p.differentiable]
    for place, parameter in enumerate(learned):
        shape = parameter.shape
        if len(shape) > 2:
            value = fill(place, (shape[0], shape[-1], *shape[1:-1]))
            parameter.set_data(np.moveaxis(value, 1, -1))
        else:
            parameter.set_data(fill(place, shape))
    return learned


@pytest.mark.parametrize("hybrid", [False, True], ids=["eager", "hybrid"])
@pytest.mark.parametrize("name", SMALL)
def test_outputs_and_gradients_equal_pytorch(name, hybrid):
    make, args, shape = SMALL[name]
    net = make(**args)
    learned = filled(net)
    net.hybridize(hybrid)
    value = wave(shape)
    ids = name in ("lstm", "gpt")
    x = Tensor(np.arange(value.size).reshape(shape) * 5 % 11 if ids else value)

    with record():
        y = net(x)
        loss = (y * y).sum()
    backward(loss)

    np.testing.assert_allclose(y.asnumpy(), FOUND[f"{name}.y"], rtol=1e-8, atol=1e-10)
    norms = [float(np.linalg.norm(p.grad().asnumpy())) for p in learned]
    np.testing.assert_allclose(norms, FOUND[f"{name}.norms"], rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(
        learned[-1].grad().asnumpy(), FOUND[f"{name}.last"], rtol=1e-8, atol=1e-10
    )


COUNTS = {  # of PyTorch's models
    "mlp": 5_824_522,
    "resnet20": 272_474,
    "lstm": 14_452_496,
    "gpt": 3_704_320,
    "cosmo": 595_892,
}


@pytest.mark.parametrize("name", COUNTS)
def test_as_many_numbers_are_learned_as_in_pytorch(name):
    parameters = models.create(name).collect_params().values()

    assert all(p.known for p in parameters)
    assert sum(int(np.prod(p.shape)) for p in parameters if p.differentiable) == COUNTS[name]


@pytest.mark.parametrize("name", models.names())
def test_names_are_the_same_each_time(name):
    first, second = (list(models.create(name).collect_params()) for _ in range(2))

    assert first == second


@pytest.mark.parametrize("name", ["lenet", "resnet", "cosmo"])
def test_layouts_of_the_input_are_a_matter_of_the_entry(name):
    make, args, shape = SMALL[name]
    layout = "NDHWC" if len(shape) == 5 else "NHWC"
    first, last = make(**args), make(**{**args, "layout": layout})
    filled(first)
    filled(last)
    x = wave(shape)

    found = last(Tensor(np.ascontiguousarray(np.moveaxis(x, 1, -1))))

    np.testing.assert_array_equal(found.asnumpy(), first(Tensor(x)).asnumpy())


def test_lenet_takes_images_without_an_axis_of_channels():
    net, x = models.LeNet(size=20), wave((2, 20, 20))
    filled(net)

    np.testing.assert_array_equal(
        net(Tensor(x)).asnumpy(), net(Tensor(x[..., None].copy())).asnumpy()
    )


def test_gpt_does_not_see_the_future():
    make, args, _ = SMALL["gpt"]
    net, ids = make(**args), np.arange(15).reshape(3, 5) % 11
    filled(net)
    other = ids.copy()
    other[:, 3:] = 0

    before, after = net(Tensor(ids)).asnumpy(), net(Tensor(other)).asnumpy()

    np.testing.assert_array_equal(before[:, :3], after[:, :3])
    assert not np.allclose(before[:, 3:], after[:, 3:])
