"""Models from MXNet, as blocks that training goes on from."""

import numpy as np
import pytest

from hpctrain import models
from hpctrain import symbol as sym
from hpctrain.autograd import Tensor
from hpctrain.errors import CheckpointError, ConfigError
from hpctrain.models.imported import Imported, loss_of, store

pytestmark = pytest.mark.serial


def net(end="SoftmaxOutput", **attrs):
    data = sym.Convolution(sym.var("data"), kernel=(3, 3), num_filter=2, name="conv")
    data = sym.FullyConnected(data, num_hidden=4, name="fc")
    return getattr(sym, end)(data, name="end", **attrs) if end else data


def values(symbol):
    rng = np.random.default_rng(0)
    shapes = zip(symbol.list_arguments(), symbol.infer_shape(data=(1, 3, 6, 5))[0], strict=True)
    return {
        name: rng.standard_normal(shape).astype("f4")
        for name, shape in shapes
        if name not in ("data", "end_label")
    }


def images():
    return np.random.default_rng(1).standard_normal((2, 3, 6, 5)).astype("f4")


def test_what_was_stored_is_a_model_before_its_loss(tmp_path):
    symbol = net()
    params = values(symbol)
    store(tmp_path / "m", symbol, {name: Tensor(value) for name, value in params.items()})

    model = models.create(f"symbol:{tmp_path / 'm'}").initialize()

    (wanted,) = net("").eval(data=images(), **params)
    np.testing.assert_array_equal(model(Tensor(images())).asnumpy(), wanted.asnumpy())
    assert list(model.collect_params()) == ["conv_weight", "conv_bias", "fc_weight", "fc_bias"]
    with pytest.raises(ConfigError, match="is there already"):
        store(tmp_path / "m", symbol, {})


@pytest.mark.parametrize("channels", ["auto", "last"])
@pytest.mark.parametrize("hybrid", [False, True])
def test_images_may_have_their_channels_last(channels, hybrid):
    model = Imported(net(), values(net()), channels).initialize()
    model.hybridize(hybrid)
    plain = Imported(net(), values(net()), "first").initialize()

    moved = model(Tensor(np.moveaxis(images(), 1, -1)))

    np.testing.assert_array_equal(moved.asnumpy(), plain(Tensor(images())).asnumpy())


def test_the_loss_is_told_by_the_last_operator():
    assert loss_of(net()) == "softmax_cross_entropy"
    assert loss_of(net("LinearRegressionOutput")) == "mse"
    assert loss_of(net("")) == ""


@pytest.mark.parametrize(
    ("end", "attrs", "said"),
    [
        ("MAERegressionOutput", {}, "MAERegressionOutput"), ("MakeLoss", {}, "Module.fit"),
        ("SoftmaxOutput", {"use_ignore": True}, "SoftmaxOutput use_ignore"),
    ],
)  # fmt: skip
def test_losses_that_training_does_not_know_are_refused(end, attrs, said):
    with pytest.raises(ConfigError, match=said):
        Imported(net(end, **attrs), values(net("")))


def test_what_does_not_fit_is_named(tmp_path):
    with pytest.raises(CheckpointError, match=r"has no symbol\.json"):
        models.create(f"symbol:{tmp_path}")
    with pytest.raises(ConfigError, match="'middle', needed auto, first or last"):
        Imported(net(), values(net()), "middle")
    with pytest.raises(CheckpointError, match="no parameter 'more'"):
        Imported(net(), {**values(net()), "more": np.zeros(1)})
    with pytest.raises(ConfigError, match="needed an input"):
        Imported(net(""), {**values(net("")), "data": images()})
