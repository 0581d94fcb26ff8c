import numpy as np
import pytest
from mpi4py import MPI

from hpctrain.comm.direct import Direct
from hpctrain.comm.group import Group
from hpctrain.comm.transport import MpiTransport, part_of
from hpctrain.errors import CommError

COUNTS = [0, 1, 5, 16, 17, 100, 1000, 9000]


@pytest.fixture(params=["mpi", "direct", "pieces of mpi", "pieces of direct"])
def transport(request):
    limit = 500 if request.param.startswith("pieces") else 2**31 - 1
    with Group(MPI.COMM_WORLD.Dup(), limit=limit) as group:
        yield (Direct if "direct" in request.param else MpiTransport)(group)


def sample(count, dtype, rank, seed=0):
    values = np.random.default_rng([seed, count, rank]).standard_normal(count)
    return (values * 10.0 ** (np.arange(count) % 7 - 3)).astype(dtype)


def in_order(count, dtype, size, seed=0):
    """The sum that one rank makes alone: rank 0, and the others added to it one by one."""
    total = sample(count, dtype, 0, seed)
    for rank in range(1, size):
        total += sample(count, dtype, rank, seed)
    return total


def same_on_all(group, array):
    texts = group.allgather_obj(array.tobytes().hex())
    return texts == texts[:1] * group.size


def check_sum(transport, got, count, dtype, seed=0, place=slice(None)):
    """Check elements ``place`` of the sum, to the last bit where we choose its order."""
    if isinstance(transport, MpiTransport):
        terms = [sample(count, dtype, r, seed).astype("f8") for r in range(transport.size)]
        error = abs(got - sum(terms)[place])
        assert np.all(
            error <= transport.size * np.finfo(dtype).eps * sum(map(abs, terms))[place]
        )
    else:
        np.testing.assert_array_equal(got, in_order(count, dtype, transport.size, seed)[place])


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("exact", [0, 5])
def test_allreduce_sums_in_the_order_of_the_ranks(world, transport, dtype, exact):
    for count in COUNTS:
        array = sample(count, dtype, world.rank)

        transport.allreduce(array, key=3, exact=min(exact, count)).wait()

        check_sum(transport, array, count, dtype)
        assert same_on_all(world, array)


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("exact", [0, 5, 40])
def test_reduce_scatter_makes_the_own_part_and_the_head(world, transport, dtype, exact):
    for count in COUNTS:
        array, head = sample(count, dtype, world.rank), min(exact, count)

        transport.reduce_scatter(array, key=3, exact=head).wait()

        for place in (transport.part(count), slice(head)):
            check_sum(transport, array[place], count, dtype, place=place)


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_allgather_brings_every_part_to_all(world, transport, dtype):
    for count in COUNTS:
        array, part = np.full(count, np.nan, dtype), transport.part(count)
        array[part] = sample(count, dtype, 0)[part]

        transport.allgather(array, key=3).wait()

        np.testing.assert_array_equal(array, sample(count, dtype, 0))


@pytest.mark.parametrize("pause_s", [0.0, 1e-4])
def test_transfers_may_be_waited_for_in_any_order_on_each_rank(world, transport, pause_s):
    counts = np.random.default_rng(1).integers(1, 20000, 24)
    arrays = [sample(int(n), "f4", world.rank, key) for key, n in enumerate(counts)]
    order = np.random.default_rng([2, world.rank]).permutation(len(arrays))

    pending = [transport.allreduce(array, key) for key, array in enumerate(arrays)]
    for key in order:
        pending[key].wait(pause_s)

    for key, array in enumerate(arrays):
        check_sum(transport, array, array.size, "f4", key)


def test_testing_alone_brings_transfers_to_their_end(world, transport):
    arrays = [sample(9000, "f4", world.rank, key) for key in range(6)]

    left = [transport.allreduce(array, key) for key, array in enumerate(arrays)]
    while left:
        left = [transfer for transfer in left if not transfer.test()]

    for key, array in enumerate(arrays):
        check_sum(transport, array, 9000, "f4", key)


def test_memory_is_made_in_the_first_step_only(world, transport):
    def step():
        arrays = [sample(n, "f4", world.rank) for n in (70, 5000, 20001, 20000)]
        for call in (transport.allreduce, transport.reduce_scatter):
            pending = [call(array, key, exact=3) for key, array in enumerate(arrays)]
            for transfer in pending:
                transfer.wait()

    step()
    made = transport.pool.made
    for _ in range(3):
        step()

    assert transport.pool.made == made


def test_what_is_not_finite_arrives_without_a_warning(world, transport):
    array = np.ones(9000, "f4")
    array[[5, 8000]] = np.inf if world.rank % 2 else -np.inf
    array[7] = 3e38

    transport.allreduce(array, 0).wait()

    inf = -np.inf if world.size == 1 else np.nan
    np.testing.assert_array_equal(array[[5, 8000]], inf)
    assert np.isinf(array[7]) == (world.size > 1)
    assert array[6] == world.size


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.zeros(4, "f2"), "dtype <f2"),
        (np.zeros(4, "i4"), "dtype <i4"),
        (np.zeros(4, ">f4"), "dtype >f4"),
        (np.zeros((2, 2), "f4"), r"shape \(2, 2\)"),
        (np.zeros(8, "f4")[::2], "strides"),
        (np.broadcast_to(np.float32(0), 1), "read-only"),
        ([1.0], "a list"),
    ],
    ids=["half", "whole", "foreign", "matrix", "strided", "constant", "list"],
)
def test_what_is_no_slice_is_refused(transport, array, words):
    for call in (transport.allreduce, transport.reduce_scatter, transport.allgather):
        with pytest.raises(CommError, match=f"of slice 7: got .*{words}"):
            call(array, key=7)


@pytest.mark.serial
@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_parts_tile_the_slice(size):
    for count in COUNTS:
        parts = [part_of(count, size, rank) for rank in range(size)]

        assert [i for part in parts for i in range(count)[part]] == list(range(count))
        assert all(part.start % 16 == 0 or part.start == count for part in parts)
        assert max(p.stop - p.start for p in parts) <= count / size + 32
        assert parts[0].stop >= min(count, 16)
