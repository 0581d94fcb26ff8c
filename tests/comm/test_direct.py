import numpy as np
import pytest
from mpi4py import MPI

from hpctrain.comm.direct import Direct
from hpctrain.comm.group import Group
from hpctrain.errors import CheckpointError, CommError, ConfigError

SMALL, LARGE, UNEVEN = 50, 40000, 39989


class Half:
    """Values rounded to float16."""

    name, residual = "half", False

    def of_sums(self, ranks):
        return self

    def nbytes(self, count):
        return 2 * count

    def encode(self, values, out, residual=None):
        if values.dtype != np.float32:
            raise ConfigError(f"half: got {values.dtype}, needed float32")
        assert residual is None
        out.view("f2")[:] = values

    def decode(self, data, out):
        out[:] = data.view("f2")

    def add(self, data, out):
        out += data.view("f2")


class Quarters:
    """Values rounded to quarters from -32 to 31.75; the rest is kept."""

    name, residual = "quarters", True

    def of_sums(self, ranks):
        return self

    def nbytes(self, count):
        return count + 3  # of no alignment

    def encode(self, values, out, residual=None):
        whole = values + residual
        out[3:].view("i1")[:] = np.clip(np.rint(whole * 4), -128, 127)
        residual[:] = whole - out[3:].view("i1") * np.float32(0.25)

    def decode(self, data, out):
        out[:] = data[3:].view("i1") * np.float32(0.25)

    def add(self, data, out):
        out += data[3:].view("i1") * np.float32(0.25)


@pytest.fixture
def own():
    """A group for the transport alone."""
    with Group(MPI.COMM_WORLD.Dup(), limit=7001) as group:
        yield group


def sample(count, rank, step=0):
    return np.random.default_rng([count, rank, step]).standard_normal(count).astype("f4")


def encoded(codec, values, residual=None):
    """What others make of ``values``."""
    data, out = np.empty(codec.nbytes(values.size), "u1"), np.empty_like(values)
    codec.encode(values, data, residual)
    codec.decode(data, out)
    return out


def same_on_all(group, array):
    return len(set(group.allgather_obj(array.tobytes().hex()))) == 1


@pytest.mark.parametrize("exact", [0, 3])
@pytest.mark.parametrize("count", [3, 4, SMALL, LARGE, UNEVEN])
def test_halves_travel_and_single_precision_is_summed(world, own, count, exact):
    array = sample(count, world.rank)
    terms = [sample(count, rank) for rank in range(world.size)]
    total = encoded(Half(), terms[0])
    for term in terms[1:]:
        total += encoded(Half(), term)
    if world.size > 2 and count > SMALL:
        total = encoded(Half(), total)
    head = terms[0][:exact].copy()
    for term in terms[1:]:
        head += term[:exact]
    want = sample(count, 0) if world.size == 1 else np.concatenate([head, total[exact:]])

    Direct(own, Half()).allreduce(array, key=2, exact=exact).wait()

    np.testing.assert_array_equal(array, want)


@pytest.mark.parametrize("exact", [0, 3])
@pytest.mark.parametrize("count", [3, SMALL, UNEVEN])
def test_what_is_not_sent_is_sent_later(world, own, count, exact):
    transport, got, want = Direct(own, Quarters()), np.zeros(count), np.zeros(count)
    for step in range(12):
        array = sample(count, world.rank, step)
        want += sum(sample(count, rank, step).astype("f8") for rank in range(world.size))
        transport.allreduce(array, key=5, exact=exact).wait()
        assert same_on_all(world, array)
        got += array

    # Each of size + 1 encodings owes at most half a quarter.
    owed = np.full(count, 0.125 * (world.size + 1))
    owed[:exact] = 0
    assert np.all(abs(got - want) <= owed + 1e-4)


@pytest.mark.mpi(min_size=2)
def test_the_residuals_are_the_difference(world, own):
    transport, want = Direct(own, Quarters()), np.zeros(LARGE)
    array = sample(LARGE, world.rank)
    transport.reduce_scatter(array, key=5, exact=16).wait()
    part = transport.part(LARGE)
    want = sum(sample(LARGE, rank).astype("f8") for rank in range(world.size))
    owed = world.allgather_obj(transport.state()["up/5"].tolist())

    np.testing.assert_allclose(array[part], (want - np.sum(owed, axis=0))[part], atol=1e-5)
    np.testing.assert_allclose(array[:16], want[:16], atol=1e-5)
    assert list(transport.state()) == ["up/5"]


@pytest.mark.mpi(min_size=2)
def test_a_copy_of_the_state_continues_to_the_bit(world, own):
    first, second = Direct(own, Quarters()), Direct(own, Quarters())
    for key, count in ((0, SMALL), (1, UNEVEN)):
        first.allreduce(sample(count, world.rank), key).wait()
    state = first.state()
    assert set(state) == {"up/0", "up/1"} | ({"down/1"} if world.size > 2 else set())
    second.load(state)
    results = []
    for transport in (first, second):
        results.append(sample(UNEVEN, world.rank, 1))
        transport.allreduce(results[-1], 1).wait()

    np.testing.assert_array_equal(*results)
    assert any(np.any(first.state()[name] != state[name]) for name in state), "state is a copy"


@pytest.mark.mpi(min_size=2)
def test_residuals_of_other_slices_are_refused_until_reset(world, own):
    transport = Direct(own, Quarters())
    transport.load({"up/0": np.zeros(SMALL + 1, "f4")})

    with pytest.raises(CheckpointError, match="residual up/0: got 51 elements, needed 50"):
        transport.allreduce(sample(SMALL, 0), 0)

    transport.reset()
    transport.allreduce(sample(SMALL, 0), 0).wait()
    assert set(transport.state()) == {"up/0"}


def test_state_without_need_of_it_is_dropped(own):
    for codec in (None, Half()):
        transport = Direct(own, codec)
        transport.load({})
        assert transport.state() == {}


def test_parameters_are_gathered_to_the_bit_with_any_codec(world, own):
    transport = Direct(own, Half())
    array = np.zeros(LARGE)
    array[transport.part(LARGE)] = np.pi

    transport.allgather(array, 0).wait()

    np.testing.assert_array_equal(array, np.pi)


@pytest.mark.mpi(min_size=2)
def test_a_codec_refuses_what_it_cannot_encode(own):
    with pytest.raises(ConfigError, match="needed float32"):
        Direct(own, Half()).allreduce(np.zeros(LARGE), 0)


@pytest.mark.mpi(min_size=2)
def test_slices_of_different_lengths_are_told(world, own):
    array = np.zeros(SMALL + (world.rank == 0), "f4")

    transfer = Direct(own).allreduce(array, 4)

    if world.rank == 0:
        with pytest.raises(CommError, match=r"sum of slice 4: got 50 elements from rank \d"):
            transfer.wait()
        with pytest.raises(CommError, match="got 50 elements"):
            transfer.test()
    else:
        with pytest.raises(CommError, match="longer than the buffer"):
            transfer.wait()


def test_coded_transfers_share_memory_too(world, own):
    transport = Direct(own, Quarters())

    def step():
        arrays = [sample(count, world.rank) for count in (LARGE, UNEVEN, SMALL, 9999)]
        pending = [transport.allreduce(a, key, 3) for key, a in enumerate(arrays)]
        for transfer in reversed(pending):
            transfer.wait()

    step()
    made = transport.pool.made
    for _ in range(3):
        step()

    assert transport.pool.made == made


def test_keys_beyond_the_tags_of_mpi_are_fine(world, own):
    transport = Direct(own)
    array, other = np.ones(SMALL, "f4"), np.ones(LARGE, "f4")

    pending = [transport.allreduce(array, 16383), transport.allreduce(other, 10**6)]
    for transfer in pending:
        transfer.wait()

    assert set(array) == set(other) == {world.size}
