"""The best cut, against trying all of them."""

from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import networks

from hpctrain.errors import ConfigError
from hpctrain.parallel.cutting import BALANCES, cut
from hpctrain.parallel.stages import Layer, Network

pytestmark = pytest.mark.serial


def value_of(network, bounds, balance, kept, copies):
    """The largest load of a stage, and the bytes over all boundaries: small is good."""
    loads = []
    for count, (start, stop) in zip(kept, pairwise(bounds), strict=True):
        layers = network.layers[start:stop]
        params = sum(network.nbytes[p] for p in {p for x in layers for p in x.parameters})
        memory = count * sum(x.memory_bytes for x in layers) + copies * params
        time = sum(x.time_s for x in layers)
        loads.append({"time": time, "memory": memory, "params": params}[balance])
    sent = 0
    for bound in bounds[1:-1]:
        made = {v for x in network.layers[:bound] for v in x.outputs}
        read = {v for x in network.layers[bound:] for v in x.inputs}
        sent += sum(network.nbytes[v] for v in made & read)
    return max(loads), sent


@given(networks(), st.sampled_from(BALANCES), st.data())
@settings(max_examples=50, deadline=None)
def test_no_cut_is_better(network, balance, data):
    count = len(network.layers)
    stages = data.draw(st.integers(1, count))
    kept = data.draw(st.lists(st.integers(1, 4), min_size=stages, max_size=stages))
    every = [(0, *inner, count) for inner in combinations(range(1, count), stages - 1)]

    found = cut(network, stages, balance, kept, copies=3)

    best = min(value_of(network, bounds, balance, kept, 3) for bounds in every)
    assert value_of(network, found.bounds, balance, kept, 3) == best
    assert cut(network, stages, balance, kept, copies=3) == found


def chain(*times):
    """Layers one after the other, where each value takes as many bytes as its layer time."""
    return Network(
        tuple(
            Layer(f"l{i}", (f"v{i - 1}",) if i else (), (f"v{i}",), (), t)
            for i, t in enumerate(times)
        ),
        {f"v{i}": t for i, t in enumerate(times)},
    )


def test_time_is_balanced():
    assert cut(chain(1, 1, 1, 3, 1, 1), 3).bounds == (0, 3, 4, 6)


def test_of_equal_maxima_the_fewest_bytes_travel():
    network = chain(9, 1, 1, 9)

    assert cut(network, 2).bounds == (0, 2, 4)
    assert cut(network, 4).bounds == (0, 1, 2, 3, 4)


def test_early_stages_of_1f1b_get_less_as_they_keep_more():
    layers = tuple(Layer(f"l{i}", memory_bytes=1) for i in range(12))

    found = cut(Network(layers), 3, "memory", kept=[6, 3, 2])

    assert found.bounds == (0, 2, 6, 12)


def test_a_parameter_used_twice_in_a_stage_counts_once():
    layers = [Layer(f"l{i}", parameters=(p,)) for i, p in enumerate(["W", "W", "W", "U", "V"])]
    network = Network(tuple(layers), {"W": 2, "U": 1, "V": 1})

    assert cut(network, 2, "params").bounds == (0, 3, 5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((2, "flops"), "got balance 'flops', needed one of time, memory, params"),
        (
            (4,),
            "got 3 layers for 4 stages, needed at least 1 layer for each.*parallel.pipeline",
        ),
        ((0,), "got 3 layers for 0 stages"),
        ((2, "memory", [1]), "got 1 numbers of kept micro-batches, needed 2"),
    ],
)
def test_what_cannot_be_cut_is_refused(arguments, message):
    with pytest.raises(ConfigError, match=message):
        cut(chain(1, 1, 1), *arguments)


def test_hundreds_of_layers_are_cut_at_once():
    found = cut(chain(*(1 + i % 7 for i in range(300))), 8)

    assert max(stage.time_s for stage in found.stages) <= 1200 / 8 + 7
