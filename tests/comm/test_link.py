import dataclasses

import pytest

from hpctrain.comm.group import Group
from hpctrain.comm.link import Link, bytes_sent, measure
from hpctrain.errors import CommError


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
@pytest.mark.parametrize("nbytes", [0, 1, 64, 1000])
def test_an_allreduce_sends_what_its_two_halves_send(nbytes, ranks):
    half = bytes_sent(nbytes, ranks, "reduce_scatter")

    assert half == bytes_sent(nbytes, ranks, "allgather")
    assert 0 <= 2 * half - bytes_sent(nbytes, ranks) <= 1  # each is rounded up
    assert bytes_sent(nbytes, ranks, "whole") == nbytes * (ranks - 1)


def test_two_ranks_send_each_byte_once():
    assert [bytes_sent(1000, 2, how) for how in ("allreduce", "whole")] == [1000, 1000]


@pytest.mark.parametrize(("ranks", "how"), [(2, "broadcast"), (0, "allreduce")])
def test_an_unknown_exchange_is_refused(ranks, how):
    with pytest.raises(CommError, match="bytes_sent: got "):
        bytes_sent(8, ranks, how)


def test_the_link_is_the_same_on_all_ranks_and_possible(world):
    link = measure(world, rounds=2, in_flight=3)

    facts = list(dataclasses.asdict(link).values())
    assert world.allgather_obj(facts) == [facts] * world.size
    assert link.in_flight == 3
    assert 0 <= link.latency_s < 10
    assert 1e3 < link.bytes_per_s < 1e16
    assert 0 <= link.cpu_s_per_byte < 1e-3


def test_alone_a_rank_has_a_link_that_costs_nothing(group):
    if group.size == 1:
        assert measure(group) == Link(0.0, 1e15)


def test_measuring_leaves_no_message_behind(comm):
    made = comm.Dup()
    with Group(made) as group:
        measure(group)

        assert not made.Iprobe()
