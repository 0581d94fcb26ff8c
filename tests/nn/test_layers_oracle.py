"""Layers and losses against PyTorch's numbers, in both layouts, eager and captured."""

import runpy
from pathlib import Path

import numpy as np
import pytest

from hpctrain import nn
from hpctrain.autograd import Tensor, backward, record, train_mode

pytestmark = pytest.mark.serial

ORACLE = Path(__file__).with_name("oracle")
WAVES = runpy.run_path(str(ORACLE / "waves.py"))
wave, fill = WAVES["wave"], WAVES["fill"]

with np.load(ORACLE / "torch.npz", allow_pickle=False) as stored:
    FOUND = {key: stored[key] for key in stored.files}


def expected(name):
    """Return the arrays that are stored for ``name``, in order."""
    return [FOUND[f"{name}.{i}"] for i in range(sum(k.startswith(name + ".") for k in FOUND))]


def filled(net, last=False, hybrid=False):
    """Initialise ``net`` in double precision with the values that PyTorch's layer had."""
    net.initialize()
    net.cast("float64")
    place = 0
    for parameter in net.collect_params().values():
        if parameter.differentiable:
            shape = parameter.shape
            if last and len(shape) > 2:
                shape = (shape[0], shape[-1], *shape[1:-1])
            value = fill(place, shape)
            parameter.set_data(np.moveaxis(value, 1, -1) if last and len(shape) > 2 else value)
            place += 1
    if hybrid:
        net.hybridize()
    return net


def layer(name, net, shape, last=False, hybrid=False):
    """Compare output and gradients with the stored ones."""
    net = filled(net, last, hybrid)
    value = wave(shape)
    x = Tensor(np.ascontiguousarray(np.moveaxis(value, 1, -1)) if last else value)
    x.attach_grad()

    with record():
        y = net(x)
        loss = (y * y).sum()
    backward(loss)

    parameters = [p for p in net.collect_params().values() if p.differentiable]
    found = [y, x.grad, *(p.grad() for p in parameters)]
    for ours, theirs in zip(found, expected(name), strict=True):
        ours = ours.asnumpy()
        if last and ours.ndim > 2:
            ours = np.moveaxis(ours, -1, 1)
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-11)
    return net


IMAGES = [
    (
        "conv1d",
        lambda **a: nn.Conv1D(6, 3, 2, 1, groups=2, in_channels=4, **a),
        (2, 4, 9),
    ),
    (
        "conv2d",
        lambda **a: nn.Conv2D(4, (3, 2), (2, 1), (1, 0), in_channels=3, **a),
        (2, 3, 7, 6),
    ),
    ("conv3d", lambda **a: nn.Conv3D(3, 3, padding=1, in_channels=2, **a), (2, 2, 4, 3, 5)),
    (
        "conv2d_transpose",
        lambda **a: nn.Conv2DTranspose(
            6, 3, 1, strides=2, padding=1, groups=2, in_channels=4, **a
        ),
        (2, 4, 5, 4),
    ),
    ("max_pool", lambda **a: nn.MaxPool2D(3, 2, 1, **a), (2, 3, 7, 6)),
    ("avg_pool", lambda **a: nn.AvgPool2D(3, 2, 1, **a), (2, 3, 7, 6)),
    (
        "avg_pool_inside",
        lambda **a: nn.AvgPool2D(3, 2, 1, count_include_pad=False, **a),
        (2, 3, 7, 6),
    ),
    ("global_avg_pool", lambda **a: nn.GlobalAvgPool2D(**a), (2, 3, 7, 6)),
]
LAST = {3: "NWC", 4: "NHWC", 5: "NDHWC"}


@pytest.mark.parametrize("hybrid", [False, True], ids=["eager", "hybrid"])
@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
@pytest.mark.parametrize(("name", "make", "shape"), IMAGES, ids=[row[0] for row in IMAGES])
def test_windows_equal_pytorch_in_both_layouts(name, make, shape, last, hybrid):
    layout = LAST[len(shape)] if last else None

    layer(name, make(layout=layout), shape, last, hybrid)


OTHERS = [
    ("dense", lambda: nn.Dense(4, in_units=5), (3, 5)),
    ("layer_norm", lambda: nn.LayerNorm(in_channels=6), (4, 3, 6)),
    ("lstm", lambda: nn.LSTM(4, 2, input_size=5), (6, 3, 5)),
    ("gru", lambda: nn.GRU(4, 2, input_size=5), (6, 3, 5)),
    ("attention", lambda: nn.MultiHeadSelfAttention(8, 2), (3, 5, 8)),
]


@pytest.mark.parametrize("hybrid", [False, True], ids=["eager", "hybrid"])
@pytest.mark.parametrize(("name", "make", "shape"), OTHERS, ids=[row[0] for row in OTHERS])
def test_layers_equal_pytorch(name, make, shape, hybrid):
    layer(name, make(), shape, hybrid=hybrid)


@pytest.mark.parametrize("hybrid", [False, True], ids=["eager", "hybrid"])
@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
def test_batch_norm_equals_pytorch_and_keeps_running_statistics(last, hybrid):
    net = nn.BatchNorm(axis=-1 if last else 1, in_channels=3)

    layer("batch_norm", net, (4, 3, 5, 2), last, hybrid)

    running = [net.running_mean.data().asnumpy(), net.running_var.data().asnumpy()]
    for ours, theirs in zip(running, expected("batch_norm_running"), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-10)


def test_batch_norm_uses_the_running_statistics_in_inference():
    net = filled(nn.BatchNorm(in_channels=3))
    net.running_mean.set_data(wave((3,)))
    net.running_var.set_data(wave((3,)) ** 2 + 0.5)

    y = net(Tensor(wave((4, 3, 5, 2))))

    np.testing.assert_allclose(y.asnumpy(), expected("batch_norm_inference")[0], rtol=1e-10)
    np.testing.assert_array_equal(net.running_mean.data().asnumpy(), wave((3,)))


@pytest.mark.parametrize("hybrid", [False, True], ids=["eager", "hybrid"])
@pytest.mark.parametrize("layout", ["TNC", "NTC"])
def test_recurrent_layers_take_and_return_states(layout, hybrid):
    x, h, c = wave((6, 3, 5)), wave((2, 3, 4), 1.0), wave((2, 3, 4), 2.0)
    x = Tensor(x if layout == "TNC" else np.swapaxes(x, 0, 1).copy())
    lstm = filled(nn.LSTM(4, 2, layout, input_size=5), hybrid=hybrid)
    gru = filled(nn.GRU(4, 2, layout, input_size=5), hybrid=hybrid)

    y, states = lstm(x, [Tensor(h), Tensor(c)])
    z, [state] = gru(x, Tensor(h))

    outputs = [y, z] if layout == "TNC" else [y.transpose(1, 0, 2), z.transpose(1, 0, 2)]
    found = [outputs[0], *states, outputs[1], state]
    wanted = expected("lstm_states") + expected("gru_states")
    for ours, theirs in zip(found, wanted, strict=True):
        np.testing.assert_allclose(ours.asnumpy(), theirs, rtol=1e-10)


PRED, LABEL = wave((4, 3, 5)) * 3, wave((4, 3, 5), 1.0)
LOSSES = [
    ("l1", nn.L1Loss(), LABEL, 1),
    ("mse", nn.MSELoss(), LABEL, 1),
    ("mse", nn.L2Loss(), LABEL, 0.5),
    ("mse", nn.MSELoss(weight=3.0), LABEL.reshape(4, 15), 3),
    ("bce", nn.SigmoidBinaryCrossEntropyLoss(), np.abs(LABEL), 1),
    ("softmax", nn.SoftmaxCrossEntropyLoss(), np.arange(12).reshape(4, 3) % 5, 1),
    ("softmax", nn.SoftmaxCELoss(), np.arange(12.0).reshape(4, 3) % 5, 1),
    (
        "soft",
        nn.SoftmaxCELoss(sparse_label=False),
        np.abs(LABEL) / np.abs(LABEL).sum(2, keepdims=True),
        1,
    ),
]


@pytest.mark.parametrize(("name", "loss", "label", "factor"), LOSSES)
def test_losses_are_the_mean_over_each_sample(name, loss, label, factor):
    found = loss(Tensor(PRED), Tensor(label))

    assert found.shape == (4,)
    np.testing.assert_allclose(found.asnumpy(), expected(name)[0] * factor, rtol=1e-10)


def test_deferred_lengths_give_the_same_layer():
    with train_mode():
        for make, shape in (
            (lambda n: nn.Conv2D(4, 3, in_channels=n, layout="NHWC"), (1, 5, 5, 3)),
            (lambda n: nn.Conv2DTranspose(4, 3, in_channels=n), (1, 3, 5, 5)),
            (lambda n: nn.BatchNorm(in_channels=n), (2, 3, 5)),
            (lambda n: nn.LayerNorm(in_channels=n), (2, 3)),
            (lambda n: nn.GRU(4, input_size=n), (2, 2, 3)),
        ):
            known, late = make(3).initialize(seed=2), make(0).initialize(seed=2)
            x = Tensor(wave(shape).astype(np.float32))

            np.testing.assert_array_equal(late(x).asnumpy(), known(x).asnumpy())
            for name, parameter in known.collect_params().items():
                assert late.collect_params()[name].shape == parameter.shape
