"""What compression owes comes back: bit for bit on as many ranks, in sum on others."""

import numpy as np
import pytest
from mpi4py import MPI

from hpctrain.autograd import Tensor
from hpctrain.comm.compress import codec
from hpctrain.comm.group import Group
from hpctrain.comm.paths import make
from hpctrain.comm.transport import MpiTransport
from hpctrain.errors import CheckpointError
from hpctrain.parallel.flat import FlatParameters
from hpctrain.train.owed import PREFIX, collect, restore

pytestmark = pytest.mark.mpi(min_size=2)


@pytest.fixture
def world():
    """All ranks."""
    with Group(MPI.COMM_WORLD.Dup()) as group:
        yield group


def buffers(slice_bytes=400):
    tensors = [Tensor(np.zeros(n, np.float32)) for n in (70, 300, 5)]
    for tensor in tensors:
        tensor.attach_grad()
    return FlatParameters(tensors, slice_bytes)


def path(world, kind):
    """A path on which all ranks compress; with two ranks on a host if there are four."""
    if kind == "direct":
        return make("direct", world, codec("2bit", threshold=0.3))
    hosts = [rank // 2 if world.size == 4 else rank for rank in range(world.size)]
    return make("node", world, codec("2bit", threshold=0.3), nbytes=10000, hosts=hosts)


def exchange(made, flat, rng):
    """Sum all slices, so that something is owed; return the sums."""
    room = np.empty(0, np.uint8) if made.window is None else made.window.mine
    buffer = room[: 4 * flat.total].view(np.float32) if room.size else flat.grads
    buffer[:] = rng.normal(size=flat.total)
    for piece in flat.slices:
        exact = 0 if piece.index else len(flat.riders)
        array = buffer[piece.start : piece.stop]
        made.transport.allreduce(array, piece.index, exact).wait()
    return buffer.copy()


@pytest.mark.parametrize("kind", ["direct", "node"])
def test_on_as_many_ranks_it_is_the_same_to_the_bit(world, kind):
    flat, rng = buffers(), np.random.default_rng(world.rank)
    with path(world, kind) as made:
        exchange(made, flat, rng)
        arrays, rows = collect(world, made.transport, flat)
        state = made.transport.state()
        following = exchange(made, flat, np.random.default_rng(50 + world.rank))
    with path(world, kind) as made:
        restore(world, made.transport, flat, (arrays, world.bcast_obj(rows)))
        again = made.transport.state()
        expected = exchange(made, flat, np.random.default_rng(50 + world.rank))

    assert list(again) == list(state) != []
    for name, array in state.items():
        np.testing.assert_array_equal(again[name], array)
    np.testing.assert_array_equal(following, expected)
    assert all(name.startswith(PREFIX) for name in arrays)
    assert len(arrays) == (world.size if world.rank == 0 else 0)


def whole(world, transport, flat):
    """Return what all ranks together owe, as the flat gradient lies."""
    total = np.zeros(flat.total)
    for name, array in transport.state().items():
        piece = flat.slices[int(name.split("/")[1])]
        exact = 0 if piece.index else len(flat.riders)
        span = transport.span(name, piece.stop - piece.start, exact)
        assert span.stop - span.start == array.size
        total[piece.start + span.start : piece.start + span.stop] += array
    world.allreduce(total)
    return total


@pytest.mark.parametrize("kind", ["direct", "node"])
@pytest.mark.parametrize("slice_bytes", [400, 900])
def test_on_other_ranks_all_owe_as_much_together(world, kind, slice_bytes):
    """Saved by 5 ranks, in other slices."""
    before, flat = buffers(), buffers(slice_bytes)
    rng = np.random.default_rng(3)
    sizes = [piece.stop - piece.start for piece in before.slices]
    first = before.slices[1].start
    ups = [[f"up/{p.index}", p.start, p.stop] for p in before.slices]
    rows = [[*ups, ["down/1", first + 3 * r, first + 3 * r + 3]] for r in range(5)]
    arrays = {
        f"{PREFIX}{rank}": rng.normal(size=sum(sizes) + 3).astype(np.float32)
        for rank in range(5)
    }
    expected = sum(array[:-3].astype(float) for array in arrays.values())
    for rank in range(5):
        expected[first + 3 * rank : first + 3 * rank + 3] += arrays[f"{PREFIX}{rank}"][-3:]

    with path(world, kind) as made:
        saved = arrays if world.rank == 0 else {}
        restore(world, made.transport, flat, (saved, rows), factor=0.5)
        found = whole(world, made.transport, flat)
        exchange(made, flat, rng)  # every residual has the length that its key needs

    np.testing.assert_allclose(found, expected / 2, rtol=1e-5, atol=1e-5)


def test_nobody_owes_anything_without_compression(world):
    flat = buffers()

    with world.dup() as group:
        assert collect(world, MpiTransport(group), flat) == ({}, [])
        assert collect(world, None, flat) == ({}, [])


def test_a_residual_outside_the_gradient_is_refused(world):
    flat = buffers()
    rows = [[["up/0", 0, flat.total + 1]]]

    with world.dup() as group, pytest.raises(CheckpointError, match="use the same model"):
        restore(world, MpiTransport(group), flat, ({}, rows))
