"""Stages of a network: what travels between them, and what they share."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import networks

from hpctrain.errors import ConfigError
from hpctrain.parallel.stages import Layer, Network, cut_at, describe

pytestmark = pytest.mark.serial

# x -> a -> b -> c -> d, with a skip from a to d; embedding and output share W
NET = Network(
    (
        Layer("embed", ("x",), ("a",), ("W",), 1.0, 8),
        Layer("dense", ("a",), ("b",), ("U",), 2.0, 8),
        Layer("relu", ("b",), ("c",), (), 0.5, 4),
        Layer("output", ("c", "a"), ("d",), ("W",), 1.0, 2),
    ),
    {"a": 80, "b": 40, "c": 40, "d": 20, "W": 1000, "U": 300},
)


def test_a_skipped_stage_hands_on_what_it_does_not_need():
    found = cut_at(NET, [0, 1, 3, 4])

    assert [stage.sends for stage in found.stages] == [("a",), ("a", "c"), ()]
    assert found.bounds == (0, 1, 3, 4)


def test_a_shared_parameter_is_listed_and_counts_on_each_of_its_stages():
    found = cut_at(NET, [0, 1, 3, 4])

    assert found.shared == {"W": (0, 2)}
    assert [stage.parameter_bytes for stage in found.stages] == [1000, 300, 1000]
    assert cut_at(NET, [0, 4]).shared == {}
    assert cut_at(NET, [0, 4]).stages[0].parameter_bytes == 1300


def test_a_plan_is_written_stage_by_stage():
    assert describe(NET, cut_at(NET, [0, 1, 4])) == (
        "stage  layers                               time, ms    kept, bytes     parameters"
        "   sends, bytes\n"
        "0      embed                                1000.000              8          1,000"
        "             80\n"
        "1      dense .. output                      3500.000             14          1,300"
        "              0\n"
        "shared: W by stages 0, 1"
    )


@given(networks(), st.data())
@settings(max_examples=40, deadline=None)
def test_every_stage_has_what_it_reads_from_the_one_before_and_itself(network, data):
    count = len(network.layers)
    inner = data.draw(st.sets(st.integers(1, max(1, count - 1)), max_size=4)) - {count}
    found = cut_at(network, [0, *sorted(inner), count])

    entered = ()
    for stage in found.stages:
        has = {*entered, "x"}
        for layer in network.layers[stage.start : stage.stop]:
            assert has.issuperset(layer.inputs)
            has.update(layer.outputs)
        later = {v for layer in network.layers[stage.stop :] for v in layer.inputs}
        assert has.issuperset(stage.sends)
        assert set(stage.sends) <= later  # nothing travels that nobody needs
        entered = stage.sends
    assert sum(stage.time_s for stage in found.stages) == sum(x.time_s for x in network.layers)


@pytest.mark.parametrize("bounds", [[0], [1, 4], [0, 3], [0, 2, 2, 4], [0, 3, 2, 4]])
def test_bounds_that_leave_layers_out_or_stages_empty_are_refused(bounds):
    with pytest.raises(ConfigError, match=r"got bounds \(.*needed 0 < \.\.\. < 4"):
        cut_at(NET, bounds)


def test_an_edge_that_goes_back_is_refused():
    layers = Layer("a", ("w",), ("v",)), Layer("b", ("v",), ("w",))

    with pytest.raises(
        ConfigError, match="a reads w before b makes it; give the layers in order"
    ):
        Network(layers)


def test_a_value_made_twice_is_refused():
    with pytest.raises(ConfigError, match="got v from a and b, needed one maker"):
        Network((Layer("a", (), ("v",)), Layer("b", (), ("v",))))
