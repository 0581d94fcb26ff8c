"""Where the nodes of a symbol run."""

import pytest

from hpctrain import symbol as sym
from hpctrain.errors import ConfigError
from hpctrain.symbol.node import in_order
from hpctrain.symbol.placing import groups_of, place_of, placed

pytestmark = pytest.mark.serial


def places(symbol, by_group, rest=0):
    return {n.name: place_of(n) for n in in_order(placed(symbol.heads, by_group, rest))}


def network():
    data = sym.Flatten(sym.var("data"), name="flat")
    with sym.AttrScope(ctx_group="a"):
        x = sym.FullyConnected(data, num_hidden=3, name="fc1")
    x = sym.BatchNorm(sym.Activation(x, act_type="relu", name="act"), name="bn")
    with sym.AttrScope(ctx_group="b"):
        x = sym.FullyConnected(x, num_hidden=3, name="fc2")
    return sym.SoftmaxOutput(x, name="softmax")


def test_nodes_without_a_group_go_with_what_they_read_or_with_who_reads_them():
    found = places(network(), {"a": 1, "b": 2})

    assert groups_of(network().heads) == ["a", "b"]
    assert found == {
        "data": 1, "flat": 1, "fc1_weight": 1, "fc1_bias": 1, "fc1": 1, "act": 1,
        "bn_gamma": 1, "bn_beta": 1, "bn_moving_mean": 1, "bn_moving_var": 1, "bn": 1,
        "fc2_weight": 2, "fc2_bias": 2, "fc2": 2, "softmax_label": 2, "softmax": 2,
    }  # fmt: skip


def test_a_group_without_a_place_counts_as_none():
    assert set(places(network(), {"b": 2}, 5).values()) == {2}
    assert set(places(network(), {}, 5).values()) == {5}
    assert places(network(), {"a": 1})["fc2"] == 1


def test_a_parameter_of_two_groups_is_where_it_is_read_first():
    weight, x = sym.var("weight"), sym.var("data")
    for group in "ab":
        with sym.AttrScope(ctx_group=group):
            x = sym.FullyConnected(x, weight, num_hidden=3, no_bias=True)

    assert places(x, {"a": 4, "b": 2})["weight"] == 4


def test_state_of_two_places_is_refused():
    mean, x = sym.var("mean"), sym.var("data")
    for group in "ab":
        with sym.AttrScope(ctx_group=group):
            x = sym.BatchNorm(x, moving_mean=mean, name=f"bn_{group}")

    with pytest.raises(ConfigError, match="got the state 'mean' of 'bn_a' and 'bn_b'"):
        places(x, {"a": 0, "b": 1})
    assert places(x, {"a": 1, "b": 1})["mean"] == 1
