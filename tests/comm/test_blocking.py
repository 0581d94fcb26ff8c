"""Waiting inside MPI for several messages at once."""

import numpy as np
import pytest

from hpctrain.comm.direct import Direct
from hpctrain.comm.request import Handle, wait_any
from hpctrain.comm.transfer import block
from hpctrain.comm.transport import MpiTransport
from hpctrain.errors import CommError


def ring(group, arrays, tags):
    """Start to send arrays to the next rank, and to receive as many; return all handles."""
    before, after = (group.rank - 1) % group.size, (group.rank + 1) % group.size
    landed = [np.full_like(array, -1) for array in arrays]
    coming = [group.irecv(a, before, tag) for a, tag in zip(landed, tags, strict=True)]
    going = [
        group.isend(a, after, tag) for a, tag in reversed(list(zip(arrays, tags, strict=True)))
    ]
    return landed, coming, going


def finish(handles):
    """Wait for all handles, one message at a time; return how many times that took."""
    open_ones, turns = [h for h in handles if not h.test()], 0
    while open_ones:
        wait_any(open_ones)
        turns += 1
        open_ones = [handle for handle in open_ones if not handle.test()]
    return turns


def test_each_wait_ends_with_a_message(group):
    arrays = [np.arange(n) + 100.0 * group.rank for n in (0, 1, 7, 1000)]
    landed, coming, going = ring(group, arrays, [3, 4, 5, 6])
    turns = finish([*coming, *going])

    before = (group.rank - 1) % group.size
    for n, array in zip((0, 1, 7, 1000), landed, strict=True):
        np.testing.assert_array_equal(array, np.arange(n) + 100.0 * before)
    assert turns <= sum(max(1, -(-n // min(group.limit, 2**31))) for n in (0, 1, 7, 1000)) * 2


def test_a_message_of_another_size_is_an_error_of_its_handle(world):
    """The other messages are not concerned."""
    landed, coming, going = ring(world, [np.ones(8), np.ones(3)], [1, 2])
    before = (world.rank - 1) % world.size
    short, after = np.empty(4), (world.rank + 1) % world.size
    wrong = world.irecv(short, before, 9)
    sent = world.isend(np.ones(8), after, 9)
    finish([*coming, *going, sent])
    with pytest.raises(CommError, match=r"recv from rank \d+ \(tag 9\): the message that came"):
        while not wrong.test():
            wait_any([wrong])

    assert all(array.all() for array in landed)


def test_what_has_nothing_to_wait_for_is_not_blocked_on():
    class Flag:
        def handles(self):
            return ()

    assert not block([Flag()])
    assert not block([])
    assert Handle().handles() == ()


@pytest.mark.parametrize("make", [MpiTransport, Direct])
def test_sums_are_the_same_however_they_are_waited_for(world, make):
    rng = np.random.default_rng(7)
    every = rng.standard_normal((world.size, 6, 5000)).astype(np.float32)
    found = []
    for blocking in (False, True):
        mine = every[world.rank].copy()
        transport = make(world.dup())
        under_way = [transport.allreduce(row, key) for key, row in enumerate(mine)]
        while under_way:
            under_way = [pending for pending in under_way if not pending.test()]
            if blocking and under_way:
                assert block(under_way)
        found.append(mine)

    np.testing.assert_array_equal(*found)
    np.testing.assert_allclose(
        found[0], every.sum(axis=0, dtype=np.float64), rtol=1e-4, atol=1e-5
    )
