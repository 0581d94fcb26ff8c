"""Orders of exchange: against bounds, each other, and the best of all."""

from itertools import pairwise, permutations
from math import inf
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpctrain.comm.schedule import (
    Link,
    Piece,
    Step,
    Stretch,
    backward_order,
    best_order,
    lower_bound,
    plan_order,
    simulate,
    without_overlap,
)

pytestmark = pytest.mark.serial
examples = settings(max_examples=25, deadline=None, derandomize=True, database=None)

MS = 1e-3
MIB = 2**20
GIGABIT = Link(latency_s=0.2 * MS, bytes_per_s=120e6, in_flight=4)
NS = 1e-9  # the simulator rounds to these


@st.composite
def steps(draw, most=6, updates=True):
    """Layers of a few slices each, forward and then backward."""
    sizes = draw(st.lists(st.integers(1, 3), min_size=1, max_size=most))
    edges = [min(sum(sizes[:i]), most) for i in range(len(sizes) + 1)]
    layers = [tuple(range(a, b)) for a, b in pairwise(edges) if a < b]
    times = st.integers(0, 20).map(lambda n: n * MS)
    forward = [Stretch(draw(times), reads=layer) for layer in layers]
    backward = [
        Stretch(draw(times), draw(st.sampled_from([(), layer])), layer) for layer in layers
    ]
    update = st.sampled_from([0.0, 0.1 * MS, 2 * MS]) if updates else st.just(0.0)
    pieces = [
        Piece(draw(st.integers(0, 20_000)), draw(update)) for _ in range(layers[-1][-1] + 1)
    ]
    return Step((*forward, *reversed(backward)), tuple(pieces))


@st.composite
def links(draw, cpu=True):
    return Link(
        latency_s=draw(st.sampled_from([0.0, 0.3 * MS, 5 * MS])),
        bytes_per_s=1e6,
        in_flight=draw(st.integers(1, 3)),
        overhead_s=draw(st.sampled_from([0.0, 0.2 * MS])),
        cpu_s_per_byte=draw(st.sampled_from([0.0, 0.3e-6])) if cpu else 0.0,
    )


def orders(step):
    return st.permutations(range(len(step.pieces)))


@examples
@given(st.data(), steps(), links(), st.sampled_from([0, 1]))
def test_no_order_is_better_than_the_bound(data, step, link, lag):
    line = simulate(step, link, data.draw(orders(step)), lag)

    assert line.step_s >= lower_bound(step, link, lag) - NS
    assert line.step_s >= max(line.compute_s, line.link_s) - NS


@examples
@given(st.data(), steps(), links(cpu=False))
def test_overlap_is_never_worse_than_none(data, step, link):
    line = simulate(step, link, data.draw(orders(step)))

    assert line.step_s <= without_overlap(step, link) + NS


@examples
@given(st.data(), steps(), links(cpu=False))
def test_a_step_is_computation_and_what_is_exposed(data, step, link):
    line = simulate(step, link, data.draw(orders(step)))

    assert line.step_s == pytest.approx(line.compute_s + line.exposed_s, abs=NS)
    assert sum(line.waited_s) == pytest.approx(line.exposed_s, abs=NS)


@examples
@given(st.data(), steps(updates=False), links(cpu=False))
def test_more_in_flight_is_never_slower(data, step, link):
    """Without updates: one that comes early can run just before something more urgent."""
    order = data.draw(orders(step))
    times = [
        simulate(step, Link(link.latency_s, link.bytes_per_s, n), order).step_ns
        for n in (1, 2, 3)
    ]

    assert times == sorted(times, reverse=True)


@examples
@given(st.data(), steps(updates=False), links(cpu=False))
def test_waiting_for_everything_is_never_faster(data, step, link):
    order = data.draw(orders(step))

    assert simulate(step, link, order, 0).step_ns >= simulate(step, link, order).step_ns


@examples
@given(steps(), links())
def test_orders_are_permutations(step, link):
    plans = [plan_order(step, link, hold) for hold in (0.0, 1 * MS, inf)]

    for order in (backward_order(step), best_order(step, link), *plans):
        assert sorted(order) == list(range(len(step.pieces)))


@examples
@given(steps(), links())
def test_the_best_order_is_no_worse_than_the_simple_ones(step, link):
    def time(order):
        return simulate(step, link, order).step_ns

    simple = min(time(backward_order(step)), time(plan_order(step, link)))
    assert time(best_order(step, link)) <= simple * 1.001


def layers_of(random, sizes):
    edges = [sum(sizes[:i]) for i in range(len(sizes) + 1)]
    layers = [tuple(range(a, b)) for a, b in pairwise(edges)]
    forward = [Stretch(random.randint(1, 9) * MS, layer) for layer in layers]
    backward = [Stretch(random.randint(1, 19) * MS, layer, layer) for layer in layers]
    pieces = [Piece(random.randint(1, 30) * 1000, 0.1 * MS) for _ in range(edges[-1])]
    return Step((*forward, *reversed(backward)), tuple(pieces))


def test_of_small_steps_the_best_order_is_found_nearly_always():
    random = Random(4)
    ratios = []
    for case in range(15):
        step = layers_of(random, [(1, 2, 1), (2, 1, 2), (1, 1, 1, 1)][case % 3])
        link = Link(random.choice([0.0, MS]), 1e6, random.choice([1, 2]))
        orders = permutations(range(len(step.pieces)))
        best = min(simulate(step, link, order).step_ns for order in orders)
        ratios.append(simulate(step, link, best_order(step, link)).step_ns / best)

    assert sum(ratio > 1.001 for ratio in ratios) <= 1
    assert max(ratios) < 1.1


def test_ties_go_by_index():
    step = Step((Stretch(MS, (1, 0)), Stretch(MS, (), (2, 1, 0))), (Piece(5),) * 3)

    assert backward_order(step) == (0, 1, 2)
    assert plan_order(step, GIGABIT) == (0, 1, 2)
    assert best_order(step, GIGABIT) == (0, 1, 2)


def test_a_plan_without_hold_sends_what_is_ready():
    # Slice 1 is ready at 5 ms, slice 0 at 6 ms, and slice 1 takes 10 ms on the wire.
    step = Step(
        (Stretch(2 * MS, (0,)), Stretch(3 * MS, (1,), (1,)), Stretch(MS, (), (0,))),
        (Piece(10_000), Piece(10_000)),
    )
    link = Link(0.0, 1e6)

    assert plan_order(step, link) == (1, 0)
    assert plan_order(step, link, hold_s=0.9 * MS) == (1, 0)
    assert plan_order(step, link, hold_s=1 * MS) == (0, 1)


def test_an_idle_link_can_be_worth_it():
    """One long message just before an urgent one: the search finds that it must wait."""
    step = Step(
        (
            Stretch(2 * MS, (0,)),
            Stretch(20 * MS, (1,)),
            Stretch(MS, (2,)),
            Stretch(MS, (), (2,)),
            Stretch(MS, (), (0, 1)),
        ),
        (Piece(1000), Piece(1000), Piece(20_000)),
    )
    link = Link(0.0, 1e6)

    # Plan: 20 ms of slice 2 hold up both others; held: 1 ms of slice 0, then all overlaps.
    assert plan_order(step, link) == (2, 0, 1)
    assert simulate(step, link, (2, 0, 1)).step_ns == 45_000_000
    assert best_order(step, link)[0] != 2
    assert simulate(step, link, best_order(step, link)).step_ns == 26_000_000


def mlp():
    """784-2048-2048-10, batch 128 on one core at 94 GFLOP/s, slices of 1 MiB, float32."""
    matrices = [4 * 785 * 2048, 4 * 2049 * 2048, 4 * 2049 * 10]
    pieces, layers = [], []
    for nbytes in matrices:
        parts = -(-nbytes // MIB)
        layers.append(tuple(range(len(pieces), len(pieces) + parts)))
        pieces += [Piece(nbytes // parts, 0.45 * MS * nbytes / parts / MIB)] * parts
    first, second, third = layers
    stretches = (
        Stretch(4.4 * MS, first),
        Stretch(11.4 * MS, second),
        Stretch(0.5 * MS, third, third),
        Stretch(11.4 * MS, second, second),
        Stretch(11.4 * MS, second),
        Stretch(4.4 * MS, (), first),
    )
    return Step(stretches, tuple(pieces))


def test_on_a_gigabit_the_mlp_gains_by_priority_what_its_first_layer_takes_forward():
    """Bytes alone take 194 ms; the second layer's can be sent from its backward on only."""
    step = mlp()
    times = {
        "no overlap": without_overlap(step, GIGABIT),
        "all before the next step": simulate(step, GIGABIT, backward_order(step), 0).step_s,
        "backward": simulate(step, GIGABIT, backward_order(step)).step_s,
        "plan": simulate(step, GIGABIT, plan_order(step, GIGABIT)).step_s,
        "best": simulate(step, GIGABIT, best_order(step, GIGABIT)).step_s,
        "bound": lower_bound(step, GIGABIT),
    }

    assert {name: round(time * 1e3, 1) for name, time in times.items()} == {
        "no overlap": 252.6,
        "all before the next step": 221.8,
        "backward": 221.8,
        "plan": 217.4,
        "best": 217.4,
        "bound": 217.4,
    }


def test_the_search_has_a_fixed_cost():
    """Equal numbers give equal orders; 60 slices in 40 stretches are few simulations."""
    reads = [tuple(range(i, i + 3)) for i in range(0, 60, 3)]
    step = Step(
        (
            *(Stretch((1 + i % 3) * MS, read) for i, read in enumerate(reads)),
            *(Stretch((2 + i % 5) * MS, (), read) for i, read in enumerate(reversed(reads))),
        ),
        tuple(Piece(10_000 + 7919 * i % 900_000, 0.2 * MS) for i in range(60)),
    )
    link = Link(0.1 * MS, 400e6, 4, 0.01 * MS, 0.5e-9)

    found = best_order(step, link)

    assert found == best_order(step, link)
    assert (
        simulate(step, link, found).step_ns
        <= simulate(step, link, backward_order(step)).step_ns
    )
