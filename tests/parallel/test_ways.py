"""Ways of gradients: buffers lie where the path needs them; each trains as one rank does."""

from functools import partial

import numpy as np
import pytest
from replicas import batches, mlp, parallel, serial

from hpctrain.comm import paths
from hpctrain.comm.compress import codec
from hpctrain.comm.link import bytes_sent
from hpctrain.comm.timeline import Link
from hpctrain.comm.transfer import block
from hpctrain.engine import DEFAULT_LANES, LaneSpec
from hpctrain.errors import ConfigError
from hpctrain.optim import SGD
from hpctrain.parallel import ways
from hpctrain.parallel.state import ModelState
from hpctrain.parallel.ways import connect, plain
from hpctrain.parallel.work import Options

KINDS = ("auto", "mpi", "direct", "node")
SHARES = {
    "plain": Options(),
    "sharded": Options(sharded=True),
    "shards": Options(shard=2),
    "accumulated": Options(accumulate=3),
    "both": Options(sharded=True, shard=2),
}
LINK = Link(1e-3, 1e8, 4)
SIZES = (7, 7, 2, 5, 1, 8)  # uneven on 3 ranks; of 2 and 1 some ranks have nothing
OPTIMIZER = SGD(momentum=0.9, weight_decay=0.01)


@pytest.fixture(autouse=True)
def link(monkeypatch):
    """Say what the link can do: to measure it takes a quarter of a second."""
    monkeypatch.setattr(ways, "measure", lambda *args: LINK)


@pytest.fixture(params=["pairs", "turns", "apart"])
def hosts(request, world, monkeypatch):
    """Pretend that the ranks are on several hosts; the host of each."""
    even = world.size % 2 == 0
    if request.param != "apart" and not even:
        pytest.skip("an odd number of ranks")
    host = {"pairs": lambda r: r // 2, "turns": lambda r: r % 2}.get(request.param)
    found = [host(r) if host else r for r in range(world.size)]
    monkeypatch.setattr(paths, "make", partial(paths.make, hosts=found))
    return found


def model_state(dtype=np.float64, slice_bytes=256):
    return ModelState(cast(mlp(), dtype).parameters, OPTIMIZER, slice_bytes)


def cast(model, dtype):
    for parameter in model.parameters.values():
        parameter.cast(dtype)
    return model


def lies_in(array, way):
    return way.path.window is not None and np.shares_memory(array, way.path.window.mine)


def left(way, state):
    """End in the order that memory needs."""
    state.leave()
    way.free()


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_exchanged_lies_in_the_memory_of_the_path(world, kind, share):
    state, options = model_state(), SHARES[share]
    state.flat.grads[:] = np.arange(state.flat.total)
    before = state.flat.weights.copy()

    way = connect(kind, world, state, options)

    shared = world.size > 1 and kind in ("auto", "node")
    summed = bool(options.shard or options.accumulate > 1)
    flat = state.flat
    if world.size > 1:
        assert lies_in(flat.grads, way) == (shared and not summed)
        assert lies_in(flat.weights, way) == (shared and options.sharded)
    assert (way.sums is not None) == summed
    if summed:
        assert world.size == 1 or lies_in(way.sums.buffer, way) == shared
        assert way.sums.buffer.dtype == np.float64 and not way.sums.buffer.any()
    np.testing.assert_array_equal(flat.weights, before)
    np.testing.assert_array_equal(flat.grads, np.arange(flat.total))
    for tensor in state.trained:
        assert np.shares_memory(tensor.array, flat.weights)
        assert np.shares_memory(tensor.grad.array, flat.grads)
    left(way, state)


@pytest.mark.parametrize("kind", KINDS)
def test_what_it_is_made_of_goes_by_the_ranks(world, kind):
    several, on_host = world.size > 1, kind in ("auto", "node")
    for options in (Options(), Options(sharded=True)):
        state = model_state()

        way = connect(kind, world, state, options)

        used = {"auto": "node"}.get(kind, kind) if several else "none"
        assert way.kind == used
        assert (way.transport is not None) == several
        assert (way.rows is not None) == several
        assert way.link == (None if on_host or not several else LINK)
        assert not several or (way.transport.rank, way.transport.size) == (
            world.rank, world.size
        )  # fmt: skip
        left(way, state)


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_outlives_the_memory_of_the_path(world, kind):
    state = model_state()
    before = state.flat.weights.copy()
    way = connect(kind, world, state, Options(sharded=True))

    left(way, state)

    np.testing.assert_array_equal(state.flat.weights, before)
    for tensor in state.trained:
        assert np.shares_memory(tensor.array, state.flat.weights)
        tensor.array[...] = 1
    assert state.flat.weights.max() == 1


def test_a_state_can_be_connected_again(world):
    """As when several ways are tried one after the other."""
    state = model_state()
    before = state.flat.weights.copy()

    for kind in ("node", "direct", "node", "mpi"):
        left(connect(kind, world, state, Options(sharded=True)), state)

    np.testing.assert_array_equal(state.flat.weights, before)


@pytest.mark.parametrize("count", [1, 16, 1000])
@pytest.mark.parametrize("kind", ["mpi", "direct"])
def test_between_ranks_go_the_fewest_bytes(world, kind, count):
    state = model_state()

    way = connect(kind, world, state, Options())

    assert way.wire_bytes(count, 8) == bytes_sent(8 * count, world.size)
    assert way.wire_bytes(count, 4) == plain(world, state, Options()).wire_bytes(count, 4)
    left(way, state)


@pytest.mark.parametrize("name", ["none", "fp16", "2bit", "topk"])
def test_between_hosts_goes_the_part_of_a_rank_in_the_bytes_of_its_codec(world, hosts, name):
    state, coded = model_state(np.float32), codec(name)
    across = len(set(hosts))
    if across == 1 and coded is not None and world.size > 1:
        pytest.skip("one host")

    way = connect("node", world, state, Options(), coded)

    local = world.size // across
    part = -(-1000 // local)
    nbytes = part * 4 if coded is None else coded.nbytes(part)
    if world.size > 1:
        assert way.wire_bytes(1000, 4) == bytes_sent(nbytes, across)
        assert way.link == (None if across == 1 else LINK)
    left(way, state)


def test_all_ranks_know_the_same_link(world, hosts, monkeypatch):
    """Ranks of one host measure it in groups of their own, but have to agree on an order."""
    mine = [Link(1e-3 * (r + 1), 1e8 / (r + 1), 4, 0.0, 1e-9 * r) for r in range(world.size)]

    def measure(group, rounds, in_flight):
        return mine[group.bcast_obj(world.rank, 0)]

    monkeypatch.setattr(ways, "measure", measure)
    state = model_state()

    way = connect("node", world, state, Options())

    assert (way.link is not None) == (len(set(hosts)) > 1)
    assert len(set(world.allgather_obj(repr(way.link)))) == 1
    left(way, state)


@pytest.mark.mpi(min_size=2)
def test_on_one_host_compression_takes_the_path_of_messages(world):
    state = model_state(np.float32)

    way = connect("auto", world, state, Options(), codec("bf16"))

    assert (way.kind, way.link) == ("direct", LINK)
    left(way, state)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize(
    ("kind", "name", "said"),
    [
        ("pigeon", "none", "path: got 'pigeon', needed one of auto, mpi, direct, node"),
        ("mpi", "fp16", "path: got mpi with compression"),
        ("node", "2bit", "path: got node with compression"),
    ],
)
def test_a_path_that_cannot_be_is_refused(world, kind, name, said):
    state = model_state(np.float32)
    before = state.flat.weights

    with pytest.raises(ConfigError, match=said):
        connect(kind, world, state, Options(), codec(name))

    assert state.flat.weights is before


@pytest.mark.parametrize(
    ("dtype", "options"), [(np.float64, Options()), (np.float32, Options(shard=2))]
)
def test_a_codec_takes_no_sums_in_double_precision(world, dtype, options):
    state = model_state(dtype)

    with pytest.raises(ConfigError, match="got fp16 for sums in float64, needed float32"):
        connect("direct", world, state, options, codec("fp16"))


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("kind", ["direct", "node"])
def test_training_by_any_path_is_that_of_one_rank(world, kind, share):
    trains_as_one(world, kind, share, overlap=True)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("share", ["plain", "sharded"])
@pytest.mark.parametrize("kind", ["mpi", "direct", "node"])
def test_training_by_any_path_without_overlap_is_that_of_one_rank(world, kind, share):
    trains_as_one(world, kind, share, overlap=False)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("share", ["plain", "both"])
def test_training_over_hosts_is_that_of_one_rank(world, hosts, share):
    trains_as_one(world, "node", share, overlap=True)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("share", ["plain", "sharded", "accumulated"])
@pytest.mark.parametrize("kind", ["mpi", "direct", "node"])
def test_a_thread_that_blocks_inside_mpi_trains_as_one_rank(world, kind, share):
    comm = LaneSpec(ordered=True, in_flight=3, pause_s=1e-4, block=block)
    trains_as_one(world, kind, share, True, {**DEFAULT_LANES, "comm": comm})


def trains_as_one(world, kind, share, overlap, lanes=DEFAULT_LANES):
    one, many = mlp(), mlp()
    data = batches([(n, 6) for n in SIZES])
    expected = serial(one, OPTIMIZER, data)
    options = Options(overlap, **{
        name: getattr(SHARES[share], name) for name in ("sharded", "shard", "accumulate")
    })  # fmt: skip

    results, state = parallel(
        many, OPTIMIZER, world, data, options=options, slice_bytes=256, path=kind, lanes=lanes
    )

    for (loss, correct, count), result in zip(expected, results, strict=True):
        assert result.loss_sum == pytest.approx(loss, rel=1e-10)
        assert (result.correct, result.count) == (correct, count)
    close(one, state, 1e-10)
    assert len(set(world.allgather_obj(state.digest()))) == 1


def close(one, state, limit):
    """Check the parameters against those of the twin; the largest difference."""
    found, apart = state.arrays(), []
    for name, parameter in one.parameters.items():
        want = parameter.data().asnumpy()
        np.testing.assert_allclose(found[f"parameters/{name}"], want, limit, limit)
        apart.append(np.abs(found[f"parameters/{name}"] - want).max())
    return max(apart)


# An error of a gradient is that of a number on the wire, 2**-11 and 2**-8 of it; the weights
# are of size 1, and move by about as much.
@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize(("name", "limit"), [("fp16", 1e-3), ("bf16", 2e-2), ("none", 2e-6)])
def test_rounded_numbers_on_the_wire_train_nearly_as_one_rank(world, name, limit):
    trains_nearly_as_one(world, "direct", name, limit)


@pytest.mark.mpi(min_size=2)
def test_rounded_numbers_between_hosts_train_nearly_as_one_rank(world, hosts):
    if len(set(hosts)) == 1:
        pytest.skip("one host")
    trains_nearly_as_one(world, "node", "fp16", 1e-3)


def trains_nearly_as_one(world, kind, name, limit):
    one, many = mlp(), cast(mlp(), np.float32)
    data = batches([(n, 6) for n in SIZES])
    serial(one, OPTIMIZER, data)
    data = [(x.astype(np.float32), y) for x, y in data]

    _, state = parallel(
        many, OPTIMIZER, world, data, slice_bytes=128, path=kind, coded=codec(name)
    )

    assert close(one, state, limit) > limit / 500  # no better than such numbers allow
    assert len(set(world.allgather_obj(state.digest()))) == 1
