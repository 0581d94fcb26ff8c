"""Symbols: names, arguments, shapes, files and bound executors."""

import json
from pathlib import Path

import mxnet_nets
import numpy as np
import pytest

import hpctrain
from hpctrain import symbol as sym
from hpctrain.autograd import Tensor
from hpctrain.backend import CPU
from hpctrain.errors import ConfigError, DataError, ShapeError

pytestmark = pytest.mark.serial

ORACLE = Path(__file__).parent / "oracle"


@pytest.fixture(scope="module")
def results():
    with np.load(ORACLE / "nets.npz", allow_pickle=False) as file:
        return dict(file)


@pytest.fixture(autouse=True)
def names():
    with sym.NameManager():
        yield


@pytest.mark.parametrize("net", mxnet_nets.NETS)
@pytest.mark.parametrize("loaded", [False, True], ids=["built", "loaded"])
def test_a_network_gives_what_mxnet_gives(net, loaded, results):
    file = ORACLE / f"{net}-symbol.json"
    symbol = sym.load(file) if loaded else mxnet_nets.NETS[net](sym)
    shapes, arguments, states = mxnet_nets.net_arrays(net, symbol)
    executor = symbol.simple_bind(**shapes)
    executor.copy_params_from(arguments, states)

    found = {"predict": executor.forward()[0], "train": executor.forward(is_train=True)[0]}
    executor.backward()

    found.update({f"grad-{k}": v for k, v in executor.grad_dict.items() if k not in shapes})
    found.update({f"aux-{k}": v for k, v in executor.aux_dict.items()})
    wanted = {k.partition("/")[2]: v for k, v in results.items() if k.startswith(f"{net}/")}
    assert found.keys() == wanted.keys()
    for key, value in wanted.items():
        np.testing.assert_allclose(found[key].asnumpy(), value, 1e-4, 1e-4, err_msg=key)


@pytest.mark.parametrize("net", mxnet_nets.NETS)
def test_the_file_is_mxnets_but_for_hints(net):
    theirs = json.loads((ORACLE / f"{net}-symbol.json").read_text("utf-8"))

    ours = json.loads(mxnet_nets.NETS[net](sym).tojson())

    def plain(whole):
        nodes = [(n["op"], n["name"], n["inputs"]) for n in whole["nodes"]]
        return nodes, whole["arg_nodes"], whole["heads"], whole["attrs"]

    assert plain(ours) == plain(theirs)


@pytest.mark.parametrize("net", mxnet_nets.NETS)
def test_a_saved_symbol_comes_back_equal(net, tmp_path):
    symbol = mxnet_nets.NETS[net](sym)
    symbol.save(tmp_path / "net.json")

    assert sym.load(tmp_path / "net.json").tojson() == symbol.tojson()


def test_parameters_are_named_after_their_node():
    net = sym.FullyConnected(sym.var("data"), num_hidden=3)
    net = sym.BatchNorm(sym.FullyConnected(net, num_hidden=3, no_bias=True), name="bn")

    assert net.list_arguments() == [
        "data", "fullyconnected0_weight", "fullyconnected0_bias", "fullyconnected1_weight",
        "bn_gamma", "bn_beta",
    ]  # fmt: skip
    assert net.list_auxiliary_states() == ["bn_moving_mean", "bn_moving_var"]
    assert net.list_outputs() == ["bn_output"]


def test_a_given_variable_takes_the_place_of_an_automatic_one():
    weight = sym.var("shared", lr_mult=2.0)
    a = sym.FullyConnected(sym.var("a"), weight=weight, num_hidden=3, name="first")
    b = sym.FullyConnected(data=a, weight=weight, num_hidden=3, no_bias=True, name="second")

    assert b.list_arguments() == ["a", "shared", "first_bias"]
    assert weight.attr("lr_mult") == "2.0"


def test_an_operator_of_any_number_of_inputs_counts_them():
    net = sym.Concat(*(sym.var(n) for n in "abc"), dim=0, name="c")

    assert net.attr("num_args") == "3"
    assert net.infer_shape(a=(1, 2), b=(2, 2), c=(3, 2))[1] == [(6, 2)]


def test_arithmetic_is_that_of_numbers():
    a, b = sym.var("a"), sym.var("b")
    net = (2 - (a + 1) * b / (b - 3)) ** 2 - (-a) + 1 / a
    x, y = np.array([1.0, 2.0], np.float32), np.array([4.0, 5.0], np.float32)

    (got,) = net.eval(a=x, b=y)

    np.testing.assert_allclose(
        got.asnumpy(), (2 - (x + 1) * y / (y - 3)) ** 2 + x + 1 / x, rtol=1e-5
    )


def test_outputs_are_picked_by_number_and_by_name():
    net = sym.SliceChannel(sym.var("data"), num_outputs=3, name="cut")
    group = sym.Group([net[2], net[0]])

    assert net.list_outputs() == ["cut_output0", "cut_output1", "cut_output2"]
    assert group.list_outputs() == ["cut_output2", "cut_output0"]
    assert group["cut_output0"].eval(data=np.arange(6.0).reshape(2, 3))[0].shape == (2, 1)
    with pytest.raises(ConfigError, match="cut_output9"):
        net["cut_output9"]


def test_internals_reach_every_layer():
    net = mxnet_nets.mlp(sym)
    features = net.get_internals()["relu1_output"]

    assert features.list_arguments() == ["data", "fc1_weight", "fc1_bias"]
    assert net.get_children().list_outputs() == ["fc2_output", "softmax_label"]


def test_scope_attributes_stay_with_nodes_and_their_variables(tmp_path):
    with hpctrain.AttrScope(ctx_group="dev1"), hpctrain.AttrScope(lr_mult="0"):
        net = sym.FullyConnected(sym.var("data"), num_hidden=2, name="fc")
    net = sym.Activation(net, act_type="relu", name="relu")
    net.save(tmp_path / "net.json")

    attrs = sym.load(tmp_path / "net.json").attr_dict()

    assert attrs["fc"]["ctx_group"] == attrs["fc_weight"]["ctx_group"] == "dev1"
    assert attrs["fc_bias"]["lr_mult"] == "0"
    assert attrs["relu"] == {"act_type": "relu"}


def test_shapes_follow_from_the_data():
    arguments, outputs, states = mxnet_nets.lenet(sym).infer_shape(data=(2, 1, 12, 12))

    assert outputs == [(2, 5)]
    assert arguments[:3] == [(2, 1, 12, 12), (4, 1, 5, 5), (4,)]
    assert states == [(4,)] * 4


def test_shapes_that_do_not_follow_are_none():
    assert mxnet_nets.mlp(sym).infer_shape() == (None, None, None)
    arguments, outputs, _ = mxnet_nets.mlp(sym).infer_shape_partial(softmax_label=(3,))
    assert arguments[-1] == (3,)
    assert outputs == [None]


def test_shapes_that_contradict_are_refused():
    net = sym.FullyConnected(sym.var("data"), sym.var("w", shape=(2, 5)), num_hidden=2)

    with pytest.raises(ShapeError, match="dense"):
        net.infer_shape(data=(3, 4))


def test_unknown_operators_are_named_all_at_once():
    text = mxnet_nets.mlp(sym).tojson().replace('"Activation"', '"Warp"')
    text = text.replace('"SoftmaxOutput"', '"Beam"')

    with pytest.raises(DataError, match=r"node 'relu1' is the operator Warp.*Beam, Warp"):
        sym.load_json(text)


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "{}", '{"nodes": 3, "heads": []}', "[" * 100_000,
        '{"nodes": [{"op": "null", "name": 3, "inputs": []}], "heads": []}',
        '{"nodes": [{"op": "null", "name": "a", "inputs": []}], "heads": [[1, 0, 0]]}',
        '{"nodes": [{"op": "null", "name": "a", "inputs": []}], "heads": [[0, 1, 0]]}',
        '{"nodes": [{"op": "null", "name": "a", "inputs": []}], "heads": [[-1, 0, 0]]}',
        '{"nodes": [{"op": "Flatten", "name": "a", "inputs": [[0, 0, 0]]}], "heads": []}',
        '{"nodes": [{"op": "Flatten", "name": "a", "inputs": []}], "heads": [[0, 0, 0]],'
        '"attrs": {"mxnet_version": ["int", 900]}}',
        '{"nodes": [{"op": "null", "name": "a", "inputs": []}], "heads": [[0, 0, 0]],'
        '"attrs": {"mxnet_version": ["int", "x"]}}',
        '{"nodes": [{"op": "null", "name": "a", "inputs": []},'
        '{"op": "null", "name": "a", "inputs": []}], "heads": [[0, 0], [1, 0]]}',
    ],
)  # fmt: skip
def test_text_that_is_no_symbol_is_refused(text):
    with pytest.raises(DataError, match="symbol"):
        sym.load_json(text)


@pytest.mark.parametrize(
    "value", ["__import__('os')", "10**9", "(1, 2)", "9" * 5000, "0x10", "1; 2", ""]
)
def test_attributes_are_matched_never_evaluated(value):
    text = mxnet_nets.mlp(sym).tojson().replace('"num_hidden": "6"', f'"num_hidden": "{value}"')

    with pytest.raises(ConfigError, match="num_hidden"):
        sym.load_json(text)


def test_unknown_and_missing_attributes_are_named():
    with pytest.raises(ConfigError, match=r"'units'.*num_hidden"):
        sym.FullyConnected(sym.var("data"), units=3)
    with pytest.raises(ConfigError, match="needs the attribute 'num_hidden'"):
        sym.FullyConnected(sym.var("data"))
    with pytest.raises(AttributeError, match="Warp"):
        sym.Warp  # noqa: B018


def test_files_of_old_releases_load():
    text = json.loads(sym.BatchNorm(sym.var("data"), name="bn", eps=0.1).tojson())
    for node in text["nodes"]:
        node["param"] = node.pop("attrs", {})
        node["inputs"] = node["inputs"][:3]
    text["nodes"] = [n for n in text["nodes"] if "moving" not in n["name"]]
    text["nodes"][-1]["inputs"] = [[0, 0], [1, 0], [2, 0]]
    text["heads"] = [[3, 0]]

    net = sym.load_json(json.dumps(text))

    assert net.list_auxiliary_states() == ["bn_moving_mean", "bn_moving_var"]
    assert net.attr("eps") == "0.1"


def test_gradients_add_up_where_asked():
    net = sym.square(sym.var("x")) * sym.var("y")
    x, y = Tensor([3.0]), Tensor([2.0])
    executor = net.bind(CPU, {"x": x, "y": y}, grad_req={"x": "add"})

    for _ in range(2):
        executor.forward(is_train=True)
        executor.backward(Tensor([10.0]))

    assert executor.grad_dict.keys() == {"x"}
    assert executor.grad_dict["x"].asscalar() == 2 * 10 * 2 * 3 * 2
    assert not x.requires_grad


def test_gradients_go_where_the_caller_says():
    net = sym.var("x") * 3
    grad = Tensor([0.0, 0.0])
    executor = net.bind(CPU, [Tensor([1.0, 2.0])], [grad])
    executor.forward(is_train=True)
    executor.backward(Tensor([1.0, 10.0]))

    assert grad.asnumpy().tolist() == [3.0, 30.0]


def test_forward_takes_another_batch():
    executor = mxnet_nets.mlp(sym).simple_bind(
        data=(4, 12), softmax_label=(4,),
        grad_req={"fc1_weight": "write"},
    )  # fmt: skip

    assert executor.output_dict == {}
    assert executor.forward(data=np.ones((7, 12)), softmax_label=np.zeros(7))[0].shape == (7, 4)
    assert executor.output_dict["softmax_output"].shape == (7, 4)
    with pytest.raises(ShapeError, match="fc1_weight"):
        executor.forward(fc1_weight=np.ones((1, 1)))
    with pytest.raises(ConfigError, match="nonsense"):
        executor.forward(nonsense=1)


def test_backward_without_training_forward_is_refused():
    executor = mxnet_nets.mlp(sym).simple_bind(data=(4, 12))
    executor.forward()

    with pytest.raises(ShapeError, match="is_train"):
        executor.backward()


def test_dropout_draws_for_the_rows_of_the_whole_batch():
    net = sym.Dropout(sym.var("data"), p=0.5, name="drop")
    data = np.ones((6, 8), np.float32)
    whole = net.bind(CPU, [Tensor(data)], seed=3).forward(is_train=True)[0].asnumpy()
    halves = []
    for row in (0, 2):
        executor = net.bind(CPU, [Tensor(data[row:][:4])], seed=3)
        executor.set_row(row)
        halves.append(executor.forward(is_train=True)[0].asnumpy())

    assert 0.2 < (whole == 0).mean() < 0.8
    np.testing.assert_array_equal(np.concatenate([halves[0][:2], halves[1]]), whole)


def test_dropout_is_new_each_time_and_absent_in_prediction():
    executor = sym.Dropout(sym.var("data")).simple_bind(data=(4, 50))
    executor.arg_dict["data"][:] = 1
    first, second = (executor.forward(is_train=True)[0].asnumpy() for _ in range(2))

    assert (first != second).any()
    assert (executor.forward()[0].asnumpy() == 1).all()


def test_deep_networks_do_not_meet_pythons_limit():
    net = sym.var("x")
    for _ in range(3000):
        net = net + 1

    assert sym.load_json(net.tojson()).eval(x=np.zeros(1, np.float32))[0].asscalar() == 3000
