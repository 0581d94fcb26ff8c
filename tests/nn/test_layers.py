"""Layers: what is not a matter of numbers."""

import numpy as np
import pytest

from hpctrain import nn
from hpctrain.autograd import Tensor, backward, record
from hpctrain.errors import ConfigError, ShapeError
from hpctrain.nn.conv import channels_last

pytestmark = pytest.mark.serial

X = np.linspace(-2, 2, 24, dtype=np.float32).reshape(2, 3, 4)


def test_dense_flattens_or_keeps_axes():
    flat, kept = nn.Dense(5).initialize(), nn.Dense(5, flatten=False).initialize()

    assert flat(Tensor(X)).shape == (2, 5)
    assert flat.weight.shape == (5, 12)
    assert kept(Tensor(X)).shape == (2, 3, 5)
    assert kept.weight.shape == (5, 4)


def test_dense_may_have_no_bias_and_an_activation():
    net = nn.Dense(5, "relu", use_bias=False).initialize()

    assert list(net.collect_params()) == ["weight"]
    assert net(Tensor(X)).asnumpy().min() == 0


def test_embedding_gathers_and_its_gradient_adds_up():
    net = nn.Embedding(4, 2).initialize()
    ids = Tensor(np.array([[1, 1], [3, 1]]))

    with record():
        y = net(ids)
    backward(y)

    np.testing.assert_array_equal(y.asnumpy(), net.weight.data().asnumpy()[ids.asnumpy()])
    np.testing.assert_array_equal(net.weight.grad().asnumpy()[:, 0], [0, 3, 0, 1])


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("relu", lambda x: np.maximum(x, 0)),
        ("tanh", np.tanh),
        ("sigmoid", lambda x: 1 / (1 + np.exp(-x))),
        ("softplus", lambda x: np.log1p(np.exp(x))),
        ("silu", lambda x: x / (1 + np.exp(-x))),
        (
            "gelu",
            lambda x: x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
        ),
    ],
)
def test_activations_are_their_functions(name, function):
    np.testing.assert_allclose(
        nn.Activation(name)(Tensor(X)).asnumpy(), function(X), rtol=1e-5, atol=1e-6
    )


def test_leaky_relu_keeps_a_part_below_zero():
    np.testing.assert_allclose(
        nn.LeakyReLU(0.3)(Tensor(X)).asnumpy(), np.where(X > 0, X, 0.3 * X), rtol=1e-6
    )


def test_flatten_identity_and_functions():
    assert nn.Flatten()(Tensor(X)).shape == (2, 12)
    assert nn.Identity()(X) is X
    np.testing.assert_array_equal(nn.Lambda("negative")(Tensor(X)).asnumpy(), -X)
    np.testing.assert_array_equal(nn.HybridLambda("negative")(Tensor(X)).asnumpy(), -X)


def test_wrong_settings_are_named():
    with pytest.raises(ConfigError, match="Dense: got 'rellu'"):
        nn.Dense(1, "rellu")
    with pytest.raises(ConfigError, match="got 'negativ'"):
        nn.Lambda("negativ")
    with pytest.raises(ConfigError, match="got layout 'NCWH', needed NCHW or NHWC"):
        nn.Conv2D(1, 1, layout="NCWH")
    with pytest.raises(
        ConfigError, match=r"kernel_size: got \(1, 2, 3\), needed one number or 2"
    ):
        nn.Conv2D(1, (1, 2, 3))
    with pytest.raises(ConfigError, match="got 3 and 4 channels, needed multiples of 2 groups"):
        nn.Conv2D(4, 1, groups=2, in_channels=3)
    with pytest.raises(ConfigError, match="got width 8 and 3 heads"):
        nn.MultiHeadSelfAttention(8, 3)
    with pytest.raises(ConfigError, match="got layout 'CTN'"):
        nn.LSTM(1, layout="CTN")


def test_wrong_inputs_are_named():
    with pytest.raises(ShapeError, match=r"got an input of shape \(2, 3, 4\), needed NCHW"):
        nn.Conv2D(1, 1).initialize()(Tensor(X))
    with pytest.raises(ShapeError, match="got labels of shape"):
        nn.L2Loss()(Tensor(X), Tensor(X[:1]))


def test_conv_weights_have_the_layout_of_the_images():
    assert nn.Conv2D(5, 3, in_channels=2).weight.shape == (5, 2, 3, 3)
    assert nn.Conv2D(5, 3, in_channels=2, layout="NHWC").weight.shape == (5, 3, 3, 2)


def test_dropout_between_recurrent_layers_has_a_stream_of_its_own():
    net = nn.LSTM(4, 3, dropout=0.5, input_size=2).initialize()

    streams = list(net.collect_params(".*stream"))

    assert streams == ["dropout0.stream", "dropout1.stream"]
    x = Tensor(X[:, :, :2].copy())
    with record():
        first, second = net(x).asnumpy(), net(x).asnumpy()
    assert not np.allclose(first, second)
    np.testing.assert_array_equal(net(x).asnumpy(), net(x).asnumpy())


def test_sample_weights_multiply_the_loss():
    weights = Tensor(np.array([[[1.0]], [[0.0]]], np.float32))

    found = nn.L1Loss()(Tensor(X), Tensor(0 * X), weights).asnumpy()

    np.testing.assert_allclose(found, [np.abs(X[0]).mean(), 0], rtol=1e-6)


def test_the_batch_axis_of_a_loss_may_be_another():
    assert nn.L1Loss(batch_axis=1)(Tensor(X), Tensor(X)).shape == (3,)


@pytest.mark.parametrize(
    ("shape", "layout", "moved"),
    [
        ((2, 3, 5, 6), "auto", True),
        ((2, 5, 6, 3), "auto", False),
        ((2, 3, 6, 3), "auto", False),
        ((2, 3, 6, 3), "NCHW", True),
        ((2, 3, 6, 3), "NHWC", False),
    ],
)
def test_the_axis_of_channels_is_found_by_its_length_or_said(shape, layout, moved):
    x = np.arange(np.prod(shape)).reshape(shape)

    found = channels_last(Tensor(x), 3, layout).asnumpy()

    np.testing.assert_array_equal(found, np.moveaxis(x, 1, -1) if moved else x)


def test_another_number_of_channels_is_refused():
    for layout in ("auto", "NCHW", "NHWC"):
        with pytest.raises(ShapeError, match="needed 3 channels"):
            channels_last(Tensor(np.zeros((2, 5, 6, 4))), 3, layout)
