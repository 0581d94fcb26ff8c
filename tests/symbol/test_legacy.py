"""Symbol files of old releases of MXNet."""

import json
from pathlib import Path

import numpy as np
import pytest

from hpctrain import symbol as sym
from hpctrain.errors import ConfigError, DataError

pytestmark = pytest.mark.serial

ORACLE = Path(__file__).parent / "oracle"


def hidden(symbol):
    return {
        name: {k: v for k, v in attrs.items() if k.startswith("__")}
        for name, attrs in symbol.attr_dict().items()
    }


def test_a_file_of_release_0_8_becomes_what_mxnet_makes_of_it():
    """Made and upgraded by MXNet 1.9.1: oracle/make_networks.py."""
    ours = sym.load(ORACLE / "release-0.8-symbol.json")
    theirs = sym.load(ORACLE / "release-0.8-upgraded-symbol.json")

    assert ours.list_inputs() == theirs.list_inputs()
    assert ours.list_auxiliary_states() == ["bn_moving_mean", "bn_moving_var"]
    attrs = hidden(ours)
    for name, wanted in hidden(theirs).items():
        assert attrs.get(name, {}) == wanted
    assert attrs["fc_bias"] == {"__wd_mult__": "4"}
    assert ours.attr_dict()["data"]["weight_lr_mult"] == "7"


def nodes_of(symbol, version, key):
    whole = json.loads(symbol.tojson())
    for node in whole["nodes"]:
        node[key] = node.pop("attrs", {})
    whole["attrs"]["mxnet_version"] = ["int", version]
    return whole


@pytest.mark.parametrize(("version", "key"), [(900, "attr"), (1100, "attr"), (10000, "attrs")])
def test_attributes_have_the_name_of_their_release(version, key):
    net = sym.FullyConnected(sym.var("data"), num_hidden=3, name="fc", attr={"lr_mult": "2"})

    loaded = sym.load_json(json.dumps(nodes_of(net, version, key)))

    assert loaded.attr_dict() == net.attr_dict()
    assert loaded.attr_dict()["fc_weight"]["__lr_mult__"] == "2"


def test_attributes_of_users_do_not_disturb_an_operator_of_release_0_8():
    net = sym.Activation(sym.var("data"), act_type="relu", name="act")
    whole = nodes_of(net, 800, "param")
    del whole["attrs"]
    whole["nodes"][1]["attr"] = {"mood": "good", "ctx_group": "a"}

    assert hidden(sym.load_json(json.dumps(whole)))["act"] == {
        "__mood__": "good", "__ctx_group__": "a",
    }  # fmt: skip


@pytest.mark.parametrize(("version", "shape"), [(904, (1,)), (10901, (2,))])
def test_argmax_over_all_axes_was_minus_one(version, shape):
    whole = nodes_of(sym.argmax(sym.var("data"), axis=-1), version, "attrs")

    (found,) = sym.load_json(json.dumps(whole)).eval(data=np.eye(2, 3))

    assert found.shape == shape


def test_inputs_are_left_out_by_old_files_only():
    net = sym.FullyConnected(sym.var("data"), num_hidden=3, name="fc")
    whole = nodes_of(net, 800, "attr")
    whole["nodes"][3]["inputs"] = [[0, 0]]
    assert sym.load_json(json.dumps(whole)).list_arguments() == ["data", "fc_weight", "fc_bias"]

    whole["attrs"]["mxnet_version"] = ["int", 900]
    with pytest.raises(DataError, match="'fc' has 1 inputs, needed data, weight, bias"):
        sym.load_json(json.dumps(whole))


def test_an_operator_that_nobody_knows_is_named_with_all_others():
    whole = nodes_of(sym.relu(sym.tanh(sym.var("data"), name="first")), 10901, "attrs")
    whole["nodes"][1]["op"], whole["nodes"][2]["op"] = "Warp", "Beam"

    with pytest.raises(DataError, match=r"'first' is the operator Warp.*all: Beam, Warp"):
        sym.load_json(json.dumps(whole))


def test_zeros_for_a_batch_take_its_length():
    state = sym.zeros(shape=(0, 3), name="state")
    net = sym.FullyConnected(sym.var("data"), num_hidden=3, name="fc") + state

    assert net.infer_shape(data=(4, 5))[1] == [(4, 3)]
    executor = net.simple_bind(data=(4, 5))
    assert executor.forward(data=np.ones((7, 5)))[0].shape == (7, 3)
    assert net.infer_shape() == (None, None, None)


def test_wrong_settings_of_operators_are_named():
    data = sym.var("data")
    for make, shapes, what in (
        (lambda: sym.RNN(data, mode="lstm", state_size=2, num_layers=1, projection_size=1),
         {"data": (2, 2, 2)}, "projection_size"),
        (lambda: sym.RNN(data, mode="elman", state_size=2, num_layers=1),
         {"data": (2, 2, 2)}, "elman"),
        (lambda: sym.UpSampling(data, scale=2, sample_type="bilinear"),
         {"data": (1, 1, 2, 2)}, "nearest"),
        (lambda: sym.LRN(data, nsize=4), {"data": (1, 1, 2, 2)}, "odd"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=what):
            make().infer_shape(**shapes)


def test_the_recurrent_operator_drops_between_its_layers_while_training():
    net = sym.RNN(sym.var("data"), mode="rnn_tanh", state_size=8, num_layers=2, p=0.5, name="r")
    executor = net.simple_bind(data=(2, 3, 4))
    rng = np.random.default_rng(0)
    for array in executor.arg_dict.values():
        array[:] = rng.standard_normal(array.shape)

    still = [executor.forward()[0].asnumpy() for _ in range(2)]
    moving = [executor.forward(is_train=True)[0].asnumpy() for _ in range(2)]

    np.testing.assert_array_equal(*still)
    assert (moving[0] != moving[1]).any() and (moving[0] != still[0]).any()
