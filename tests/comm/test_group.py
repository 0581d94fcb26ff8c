import numpy as np
import pytest
from mpi4py import MPI

from hpctrain.comm.group import Group
from hpctrain.errors import CommError

DTYPES = ["f4", "f8", "i4", "i8", "u1", "c8"]
OPS = {"sum": MPI.SUM, "max": MPI.MAX, "min": MPI.MIN, "prod": MPI.PROD}


def counts(p):
    return sorted({0, 1, p - 1, p, 7, 20})


def sample(n, dtype, seed):
    """Small whole numbers: every order of summation gives the same result."""
    return np.random.default_rng(seed).integers(0, 5, n).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_allreduce_gives_what_mpi_gives(comm, group, dtype):
    for n in counts(comm.size):
        array = sample(n, dtype, comm.rank)
        want = np.empty_like(array)
        comm.Allreduce(array, want)

        group.allreduce(array)

        np.testing.assert_array_equal(array, want)


@pytest.mark.parametrize("op", OPS)
def test_every_op_gives_what_mpi_gives_started_or_blocking(comm, group, op):
    array = sample(10, "f8", comm.rank) + 1
    other = array.copy()
    want = np.empty_like(array)
    comm.Allreduce(array, want, OPS[op])

    handle = group.iallreduce(other, op)
    handle.wait()
    group.allreduce(array, op)
    handle.wait()

    np.testing.assert_array_equal(array, want)
    np.testing.assert_array_equal(other, want)


def test_handles_may_be_waited_for_in_any_order(comm, group):
    arrays = [np.full((2, 3), comm.rank + k, "f4") for k in range(5)]
    handles = [group.iallreduce(array) for array in arrays]

    handles[3].wait()
    while not handles[1].test():
        pass
    for handle in handles:
        handle.wait()

    total = sum(range(comm.size))
    assert [array[1, 2] for array in arrays] == [total + k * comm.size for k in range(5)]


def test_a_long_array_passes_whole(world):
    array = np.arange(10**5, dtype="f4")

    world.allreduce(array, "max")
    world.bcast(array, world.size - 1)

    np.testing.assert_array_equal(array, np.arange(10**5))


@pytest.mark.parametrize("dtype", [*DTYPES, "f2", "?"])
def test_bcast_and_reduce_go_from_and_to_any_root(comm, group, dtype):
    for root, n in enumerate(counts(comm.size)):
        root %= comm.size
        array = sample(n, dtype, comm.rank)
        mine = array.copy()
        whole = np.array([sample(n, dtype, rank) for rank in range(comm.size)], dtype)
        want = whole.any(axis=0) if dtype == "?" else whole.sum(axis=0, dtype=dtype)

        group.reduce(array, root)
        np.testing.assert_array_equal(array, want if comm.rank == root else mine)

        group.bcast(array, root)
        np.testing.assert_array_equal(array, want)


@pytest.mark.parametrize("dtype", [*DTYPES, "f2", "?"])
def test_reduce_scatter_then_allgather_is_allreduce(comm, group, dtype):
    for n in counts(comm.size):
        array = sample(n * comm.size, dtype, comm.rank).reshape(comm.size, n)
        sent, part, whole = array.copy(), np.empty(n, dtype), np.empty_like(array)

        group.reduce_scatter(array, part)
        group.allgather(part, whole)

        np.testing.assert_array_equal(array, sent)
        group.allreduce(array)
        np.testing.assert_array_equal(whole, array)
        np.testing.assert_array_equal(part, array[comm.rank])


def test_a_part_may_lie_in_the_whole(comm, group):
    whole = sample(5 * comm.size, "f4", comm.rank).reshape(comm.size, 5)
    want = sum(sample(5 * comm.size, "f4", rank) for rank in range(comm.size))

    group.reduce_scatter(whole, whole[comm.rank])
    group.allgather(whole[comm.rank], whole)

    np.testing.assert_array_equal(whole.reshape(-1), want)


def test_halves_are_summed_in_single_precision(comm, group):
    # 2048 + 1 + 1 + … stays 2048 in float16.
    array = np.full(4, 2048 if comm.rank == 0 else 1, np.float16)

    group.allreduce(array)

    assert array.dtype == np.float16
    np.testing.assert_array_equal(array, np.float16(2048 + comm.size - 1))


def test_halves_too_large_become_infinite_without_a_warning(world):
    array = np.full(3, 60000, np.float16)

    world.allreduce(array)

    assert np.isinf(array).all() == (world.size > 1)


@pytest.mark.parametrize(("op", "want"), [("sum", 1), ("max", 1), ("min", 0), ("prod", 0)])
def test_truth_values_are_combined_by_any_and_all(world, op, want):
    array = np.array([world.rank == 0, True, False])

    world.allreduce(array, op)

    assert array.tolist() == [bool(want) or world.size == 1, True, False]


@pytest.mark.parametrize("dtype", ["f4", "f2", "?", "c16"])
def test_messages_pass_arrays_of_any_dtype_round_the_ring(comm, group, dtype):
    left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    for n in counts(comm.size):
        out = np.empty(n, dtype)

        receiving = group.irecv(out, left, tag=5)
        group.isend(sample(n, dtype, comm.rank), right, tag=5).wait()
        receiving.wait()

        np.testing.assert_array_equal(out, sample(n, dtype, left))


@pytest.mark.mpi(min_size=2)
def test_messages_of_a_pair_are_told_apart_by_tag_and_keep_their_order(world):
    first, second, third = (np.full(4, k, "i4") for k in (1, 2, 3))
    if world.rank == 0:
        world.send(first, 1, tag=7)
        world.isend(second, 1, tag=8).wait()
        world.send(third, 1, tag=7)
    elif world.rank == 1:
        out = np.empty((3, 4), "i4")
        pending = world.irecv(out[1], 0, tag=8)
        world.recv(out[0], 0, tag=7)
        world.recv(out[2], 0, tag=7)
        pending.wait()
        assert out[:, 0].tolist() == [1, 2, 3]


@pytest.mark.mpi(min_size=2)
def test_a_message_of_another_size_than_the_buffer_is_refused(world):
    if world.rank == 0:
        world.send(np.ones(3), 1)
        world.send(np.ones(9), 1)
    elif world.rank == 1:
        with pytest.raises(
            CommError, match=r"recv from rank 0 \(tag 0\): got 3 elements, needed 5"
        ):
            world.recv(np.ones(5), 0)
        with pytest.raises(CommError, match="the message that came is longer than the buffer"):
            world.recv(np.ones(5), 0)


VALUES = [None, 3, 0.1, "Fähre", [1, [2]], {"a": {"b": []}}, float("inf"), ""]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_objects_reach_the_other_ranks(comm, group, value):
    root = comm.size - 1
    mine = [value, comm.rank, "x" * comm.rank]
    every = [[value, rank, "x" * rank] for rank in range(comm.size)]

    assert group.bcast_obj(mine if comm.rank == root else None, root) == every[root]
    assert group.allgather_obj(mine) == every
    assert group.gather_obj(mine, root) == (every if comm.rank == root else None)


def test_split_orders_by_key_and_dup_keeps_the_ranks(world):
    with world.split(world.rank % 2, -world.rank) as half, half.dup() as twin:
        members = half.allgather_obj(world.rank)

        assert members == [r for r in range(world.size) if r % 2 == world.rank % 2][::-1]
        assert (twin.rank, twin.size) == (half.rank, half.size)
        assert members[half.rank] == world.rank
        twin.barrier()
    half.free()


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.ones((4, 4))[:, ::2], "is not C-contiguous; pass numpy.ascontiguousarray of it"),
        (np.ones((2, 3), order="F"), r"array of shape \(2, 3\) and strides \(8, 16\) is not"),
        (np.ones(3, ">f4"), "dtype >f4 has foreign byte order; convert it with astype"),
        (np.array([None, 1]), "dtype object cannot be sent; send numbers or truth values"),
        (np.array(["a"]), "dtype <U1 cannot be sent"),
        (np.frombuffer(b"12345678"), "the array is read-only; pass a copy"),
        ([1.0, 2.0], "got a list, needed an array"),
    ],
    ids=["strided", "fortran", "foreign", "object", "text", "read-only", "list"],
)
def test_what_mpi_cannot_send_is_refused_in_a_sentence(world, array, message):
    for call in (world.allreduce, lambda array: world.irecv(array, 0)):
        with pytest.raises(CommError, match=message):
            call(array)


@pytest.mark.mpi(min_size=2)
def test_unknown_ops_and_unfit_parts_are_refused(world):
    with pytest.raises(CommError, match=r"got op 'mean', needed one of sum, max, min, prod"):
        world.allreduce(np.ones(2), "mean")
    with pytest.raises(CommError, match="complex numbers have no order"):
        world.allreduce(np.ones(2, "c8"), "max")
    with pytest.raises(
        CommError, match=r"allgather: 2 elements of float64 per rank do not make 1"
    ):
        world.allgather(np.ones(2), np.ones(1))
    with pytest.raises(CommError, match=r"float32 per rank do not make"):
        world.reduce_scatter(np.ones(world.size), np.ones(1, "f4"))
    with pytest.raises(CommError, match="cannot be written as JSON: Object of type set"):
        world.bcast_obj({1}, world.rank)


@pytest.fixture
def checked(world):
    with Group(MPI.COMM_WORLD.Dup(), debug=True) as group:
        yield group


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize(
    ("calls", "message"),
    [
        (  # other counts
            [lambda g: g.allreduce(np.ones(4)), lambda g: g.allreduce(np.ones(3))],
            r"sum float64 × 4 on .* but call 1 is allreduce sum float64 × 3 on rank 1; every",
        ),
        (  # other dtypes
            [lambda g: g.allreduce(np.ones(4)), lambda g: g.allreduce(np.ones(4, "f4"))],
            r"sum float64 × 4 on .* but call 1 is allreduce sum float32 × 4 on rank 1; every",
        ),
        (  # other ops
            [lambda g: g.allreduce(np.ones(4)), lambda g: g.allreduce(np.ones(4), "max")],
            r"allreduce sum float64 .* but call 1 is allreduce max float64 × 4 on rank 1",
        ),
        (  # equal arrays in another order
            [
                lambda g: g.iallreduce(np.ones(4), name="weight"),
                lambda g: g.iallreduce(np.ones(4), name="bias"),
            ],
            r"× 4 \(weight\) on .* but call 1 is allreduce sum float64 × 4 \(bias\) on rank 1",
        ),
        (  # other collectives
            [lambda g: g.barrier(), lambda g: g.bcast_obj(1)],
            r"call 1 is barrier on .* but call 1 is bcast_obj from 0 on rank 1",
        ),
        (  # other roots
            [lambda g: g.bcast(np.ones(2), 0), lambda g: g.bcast(np.ones(2), 1)],
            r"bcast float64 from 0 × 2 on .* but call 1 is bcast float64 from 1 × 2 on rank 1",
        ),
    ],
    ids=["count", "dtype", "op", "order", "collective", "root"],
)
def test_debug_names_the_call_that_differs_on_all_ranks(checked, calls, message):
    with pytest.raises(CommError, match=message):
        calls[checked.rank == 1](checked)


def test_debug_lets_equal_calls_pass(checked):
    array = np.ones(4)

    checked.allreduce(array, name="a")
    checked.barrier()
    with checked.dup() as twin:
        twin.bcast(array, 0)

    np.testing.assert_array_equal(array, checked.size)


def test_tuples_come_back_as_lists_on_any_number_of_ranks(group):
    assert group.bcast_obj((1, {2: 3})) == [1, {"2": 3}]
    assert group.allgather_obj((1,)) == [[1]] * group.size
