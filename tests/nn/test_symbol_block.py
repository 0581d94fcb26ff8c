"""Symbols as blocks, and how their parameters begin."""

import numpy as np
import pytest

from hpctrain import autograd, nn, ops
from hpctrain import symbol as sym
from hpctrain.autograd import Tensor
from hpctrain.errors import CheckpointError, ConfigError, ShapeError
from hpctrain.nn.declared import FusedRNN, initializer_of
from hpctrain.train.params import save_checkpoint

pytestmark = pytest.mark.serial


def net():
    data = sym.Convolution(sym.var("data"), kernel=(3, 3), num_filter=4, name="conv")
    data = sym.BatchNorm(data, name="bn", fix_gamma=False)
    data = sym.Dropout(sym.Activation(data, act_type="relu", name="relu"), p=0.5, name="drop")
    weight = sym.var("fc_weight", lr_mult=3.0, init='["normal", {"sigma": 0.5}]')
    return sym.FullyConnected(data, weight=weight, num_hidden=3, name="fc")


@pytest.fixture
def block():
    return made()


def made():
    symbol = net()
    data = symbol.get_internals()["data"]
    return nn.SymbolBlock(symbol, data).initialize(seed=3)


def images(n=2):
    return Tensor(np.random.default_rng(0).standard_normal((n, 1, 6, 6)).astype("f4"))


def test_variables_are_parameters_by_their_names(block):
    block(images())

    params = block.collect_params()
    assert list(params) == [
        "conv_weight", "conv_bias", "bn_gamma", "bn_beta", "bn_moving_mean", "bn_moving_var",
        "fc_weight", "fc_bias", "drop_stream",
    ]  # fmt: skip
    assert params["fc_weight"].shape == (3, 64)
    assert params["fc_weight"].lr_mult == 3
    assert params["bn_moving_var"].grad_req == "null"
    assert (params["bn_moving_var"].data().asnumpy() == 1).all()
    assert 0.4 < params["fc_weight"].data().asnumpy().std() < 0.6


def test_a_block_computes_what_its_symbol_computes(block):
    x = images()
    y = block(x)
    values = {k: p.data() for k, p in block.collect_params().items() if k != "drop_stream"}

    np.testing.assert_array_equal(net().eval(data=x, **values)[0].asnumpy(), y.asnumpy())


@pytest.mark.parametrize("hybrid", [False, True])
def test_a_block_trains(hybrid):
    block = made()
    block.hybridize(hybrid)
    before = block(images()).asnumpy()
    with autograd.record():
        loss = ops.sum(ops.square(block(images(3))))
    loss.backward()

    assert np.abs(block.collect_params()["conv_weight"].grad().asnumpy()).max() > 0
    assert (block.params["bn_moving_mean"].data().asnumpy() != 0).all()
    assert not np.array_equal(block(images()).asnumpy(), before)


def test_a_checkpoint_is_imported(tmp_path, block):
    block(images())
    params = {k: p.data() for k, p in block.collect_params().items() if "stream" not in k}
    args = {k: v for k, v in params.items() if "moving" not in k}
    aux = {k: v for k, v in params.items() if "moving" in k}
    save_checkpoint(tmp_path / "m", 3, block.symbol, args, aux)
    files = (tmp_path / "m-symbol.json", "data", tmp_path / "m-0003.params")

    loaded = nn.SymbolBlock.imports(*files)

    np.testing.assert_array_equal(loaded(images()).asnumpy(), block(images()).asnumpy())
    with pytest.raises(ConfigError, match=r"the input 'x', needed one of data, conv_weight"):
        nn.SymbolBlock.imports(files[0], ["x"])
    save_checkpoint(tmp_path / "m", 3, None, {"more": params["fc_bias"], **args}, aux)
    with pytest.raises(CheckpointError, match=r"has, and the symbol has not, more"):
        nn.SymbolBlock.imports(*files)
    save_checkpoint(tmp_path / "m", 3, None, {"fc_bias": params["fc_bias"]}, aux)
    with pytest.raises(CheckpointError, match=r"lacks bn_beta, bn_gamma, conv_bias"):
        nn.SymbolBlock.imports(*files)
    nn.SymbolBlock.imports(*files, allow_missing=True)(images())


def test_several_inputs_and_outputs_keep_their_order():
    a, b = sym.var("a"), sym.var("b")
    block = nn.SymbolBlock([a - b, a * b], [b, a])

    minus, times = block(Tensor([1.0]), Tensor([5.0]))

    assert (minus.asscalar(), times.asscalar()) == (4, 5)
    with pytest.raises(ShapeError, match="got 1 inputs, needed b, a"):
        block(Tensor([1.0]))
    with pytest.raises(ConfigError, match="'c', which is not used"):
        nn.SymbolBlock(a, sym.var("c"))


def test_weights_of_the_recurrent_operator_begin_gate_by_gate():
    init = FusedRNN("one", num_hidden=2, num_layers=2, mode="lstm", forget_bias=4.0)
    widths = [3, 2, 2, 2]

    vector = init(np.random.default_rng(0), (8 * sum(widths) + 4 * 8,), None)

    assert (vector[: 8 * sum(widths)] == 1).all()
    np.testing.assert_array_equal(vector[8 * sum(widths) :], [0, 0, 4, 4, 0, 0, 0, 0] * 4)


@pytest.mark.parametrize(
    ("name", "declared", "value"),
    [
        ("fc_bias", None, 0), ("bn_gamma", None, 1), ("fc_weight", None, 7),
        ("prelu_gamma", '["Constant", {"value": 0.25}]', 0.25), ("x", '["one", {}]', 1),
        ("x", "zeros", 0),
    ],
)  # fmt: skip
def test_first_values_follow_the_file_then_the_name(name, declared, value):
    chosen = initializer_of(name, nn.initializer.Constant(7), declared)
    chosen = nn.initializer.create(chosen)

    assert chosen(np.random.default_rng(0), (1,), None) == value


@pytest.mark.parametrize("text", ["[", "[1]", '["magic", {}]', "[" * 9999, '["constant", 3]'])
def test_initializers_that_nobody_knows_are_refused(text):
    with pytest.raises(ConfigError, match="fc_weight: got the initializer"):
        initializer_of("fc_weight", None, text)
