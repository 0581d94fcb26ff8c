"""What a team does together, and the gradients, by finite differences over all ranks."""

import numpy as np
import pytest
from mpi4py import MPI

from hpctrain.autograd import Tensor, grad, record
from hpctrain.comm.group import Group
from hpctrain.comm.team import Team
from hpctrain.ops.cut import Cut, Seat
from hpctrain.ops.team import team_gather, team_scatter, team_slice, team_spread, team_sum

WORLD = MPI.COMM_WORLD
CUTS = [Cut(0), Cut(1), Cut(1, 3), Cut(1, 1, 2), Cut(1, 3, 2)]


@pytest.fixture(scope="module")
def team():
    with Group(WORLD.Dup()) as group:
        found = Team(group)
        yield found
        found.free()


def whole(cut, size, seed=0):
    """An array whose cut axis has some more units than there are ranks."""
    shape = [2, 2, 2]
    shape[cut.axis] = cut.blocks * cut.unit * (size + 1)
    return np.random.default_rng(seed).normal(size=shape)


def mine(seed, shape, rank):
    return np.random.default_rng([seed, rank]).normal(size=shape)


@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_parts_make_the_whole(team, cut):
    x = whole(cut, team.size)
    part = team_slice(Tensor(x), team, cut)

    assert part.shape == cut.shape(x.shape, team)
    got = team_gather(part, team, cut, x.shape[cut.axis]).asnumpy()
    np.testing.assert_array_equal(got, x)


@pytest.mark.parametrize("count", [3, 5000], ids=["in one round", "in two rounds"])
def test_sums_have_the_same_bits_on_all_ranks(team, count):
    every = [mine(1, count, rank) for rank in range(team.size)]
    want = every[0].copy()
    for term in every[1:]:
        want += term

    got = team_sum(Tensor(every[team.rank]), team).asnumpy()

    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_a_part_of_a_sum_is_that_of_the_whole_sum(team, cut):
    x = whole(cut, team.size, team.rank)
    want = team_sum(Tensor(x), team).asnumpy()

    got = team_scatter(Tensor(x), team, cut).asnumpy()

    np.testing.assert_array_equal(got, cut.part(want, team))


# How a value lies before and after: whole on all, cut, or terms of a sum.
PAIRS = {
    "sum": ("term", "whole", lambda x, team, cut, n: team_sum(x, team)),
    "gather": ("cut", "whole", lambda x, team, cut, n: team_gather(x, team, cut, n)),
    "scatter": ("term", "cut", lambda x, team, cut, n: team_scatter(x, team, cut)),
    "slice": ("whole", "cut", lambda x, team, cut, n: team_slice(x, team, cut)),
    "spread": ("whole", "terms", lambda x, team, cut, n: team_spread(x, team)),
    "gather, terms": (
        "cut",
        "terms",
        lambda x, team, cut, n: team_gather(x, team, cut, n, True),
    ),
}


def value(name, x, team, cut, n):
    """What all ranks make of it: a whole output counts once, parts and terms add up.

    Each rank weighs by numbers of its own, but for whole outputs.
    """
    _, after, apply = PAIRS[name]
    seat = 0 if after == "whole" else team.rank
    y = apply(x, team, cut, n)
    return y, mine(2, y.shape, seat), after


def total(name, array, team, cut, n):
    y, weights, after = value(name, Tensor(array), team, cut, n)
    own = float((y.asnumpy() * weights).sum())
    return own if after == "whole" else WORLD.allreduce(own)


@pytest.mark.parametrize("cut", [Cut(1), Cut(1, 3, 2)], ids=str)
@pytest.mark.parametrize("name", PAIRS)
def test_gradients_are_those_of_finite_differences_over_all_ranks(team, name, cut):
    before = PAIRS[name][0]
    x = whole(cut, team.size, 0 if before == "whole" else team.rank)
    n = x.shape[1]
    if before == "cut":
        x = cut.part(whole(cut, team.size), team).copy()
    tensor = Tensor(x)
    tensor.attach_grad()
    with record():
        y, weights, _ = value(name, tensor, team, cut, n)
    (found,) = grad(y, tensor, Tensor(weights))

    step, places = 1e-6, WORLD.allreduce(x.size, op=MPI.MAX)
    for place in range(0, places, max(1, places // 4)):
        for rank in [None] if before == "whole" else range(team.size):
            here = rank in (None, team.rank) and place < x.size
            moved = x.copy(), x.copy()
            if here:
                moved[0].flat[place] += step
                moved[1].flat[place] -= step
            up, down = (total(name, a, team, cut, n) for a in moved)
            if here:
                assert (up - down) / (2 * step) == pytest.approx(
                    found.asnumpy().flat[place], rel=1e-6, abs=1e-8
                )


@pytest.mark.serial
def test_units_that_do_not_divide_are_spread_evenly():
    spans = [Cut(0).span(7, Seat(rank, 3)) for rank in range(3)]
    heads = [Cut(0, 3, 4).length(3 * 5 * 4, Seat(rank, 2)) for rank in range(2)]

    assert spans == [(0, 3), (3, 5), (5, 7)]
    assert heads == [3 * 3 * 4, 3 * 2 * 4]
