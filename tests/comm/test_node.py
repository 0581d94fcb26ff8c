import numpy as np
import pytest

from hpctrain.comm import paths, window
from hpctrain.comm.direct import Direct
from hpctrain.comm.halves import Half
from hpctrain.comm.node import Node
from hpctrain.comm.transport import MpiTransport, part_of
from hpctrain.comm.twobit import TwoBit
from hpctrain.comm.window import Window, hosts_of, room_bytes, share
from hpctrain.errors import CommError, ConfigError

COUNTS = [1, 5, 17, 300, 9001, 70000]


def layout(shape, size):
    """Hosts of the ranks: all on one, two equal halves that interleave or not, each alone."""
    if shape == "one host":
        return [0] * size
    if shape == "apart":
        return list(range(size))
    if size % 2:
        pytest.skip("no two equal halves")
    return [rank // (size // 2) for rank in range(size)]


@pytest.fixture(params=["one host", "two hosts", "interleaved", "apart"])
def hosts(request, world):
    if request.param == "interleaved":
        if world.size != 4:
            pytest.skip("needs four ranks")
        return [0, 1, 1, 0]
    return layout(request.param, world.size)


@pytest.fixture
def path(world, hosts):
    with paths.make("node", world, nbytes=800_000, staging=70_000, hosts=hosts) as made:
        assert made.kind == "node"
        yield made


def sample(count, dtype, rank, seed=0):
    values = np.random.default_rng([seed, count, rank]).standard_normal(count)
    return (values * 10.0 ** (np.arange(count) % 7 - 3)).astype(dtype)


def by_host(hosts, terms):
    """The sum of ``terms``, of all ranks: over the ranks of a host, then over hosts."""
    sums = []
    for host in dict.fromkeys(hosts):
        rows = [term for term, other in zip(terms, hosts, strict=True) if other == host]
        sums.append(rows[0].copy())
        for row in rows[1:]:
            sums[-1] += row
    for other in sums[1:]:
        sums[0] += other
    return sums[0]


def total(hosts, count, dtype, seed=0):
    return by_host(hosts, [sample(count, dtype, r, seed) for r in range(len(hosts))])


def views(path, counts, dtype):
    """Slices of these lengths one after the other in the window."""
    flat, found = path.window.mine[:800_000].view(dtype), []
    for count in counts:
        found.append(flat[:count])
        flat = flat[-(-count // 16) * 16 :]
    return found


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("exact", [0, 5, 40])
def test_allreduce_sums_over_ranks_of_a_host_and_then_hosts(world, hosts, path, dtype, exact):
    slices = views(path, COUNTS, dtype)
    for key, array in enumerate(slices):
        array[:] = sample(array.size, dtype, world.rank)

        path.transport.allreduce(array, key, min(exact, array.size)).wait()

        np.testing.assert_array_equal(array, total(hosts, array.size, dtype))


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("exact", [0, 5, 40])
def test_reduce_scatter_then_allgather_is_allreduce(world, hosts, path, dtype, exact):
    transport = path.transport
    for key, array in enumerate(views(path, COUNTS, dtype)):
        head, want = min(exact, array.size), total(hosts, array.size, dtype)
        part = transport.part(array.size)
        array[:] = sample(array.size, dtype, world.rank)

        transport.reduce_scatter(array, key, head).wait()

        np.testing.assert_array_equal(array[:head], want[:head])
        np.testing.assert_array_equal(array[part], want[part])
        array[: part.start], array[part.stop :] = np.nan, np.nan
        transport.allgather(array, key).wait()
        np.testing.assert_array_equal(array, want)


def test_the_parts_of_all_ranks_tile_the_slice(world, path):
    for count in COUNTS:
        parts = world.allgather_obj([path.transport.part(count).indices(count)[:2]])
        edges = sorted(tuple(part[0]) for part in parts)

        assert [i for start, stop in edges for i in range(start, stop)] == list(range(count))
    assert sorted(world.allgather_obj(path.transport.rank)) == list(range(world.size))
    assert path.transport.size == world.size


@pytest.mark.parametrize("pause_s", [0.0, 1e-4])
def test_steps_follow_each_other_without_a_barrier(world, hosts, path, pause_s):
    counts = [int(n) for n in np.random.default_rng(1).integers(1, 9000, 12)]
    slices = views(path, counts, "f4")
    for step in range(6):
        order = np.random.default_rng([step, world.rank]).permutation(len(counts))
        pending = []
        for key, array in enumerate(slices):
            array[:] = sample(array.size, "f4", world.rank, step)
            pending.append(path.transport.allreduce(array, key, exact=1))
        for key in order:
            pending[key].wait(pause_s)
            want = total(hosts, counts[key], "f4", step)
            np.testing.assert_array_equal(slices[key], want)
            slices[key][:] = np.nan  # nobody may still want to read this


def test_memory_is_made_in_the_first_step_only(world, path):
    slices = views(path, COUNTS, "f4")

    def step():
        pending = [path.transport.allreduce(array, key) for key, array in enumerate(slices)]
        for transfer in pending:
            transfer.wait()

    step()
    made = path.transport.pool.made
    for _ in range(3):
        step()

    assert path.transport.pool.made == made


def test_arrays_from_elsewhere_pass_through_the_window(world, hosts, path):
    arrays = [sample(count, "f4", world.rank) for count in (9001, 17)]

    pending = [path.transport.allreduce(array, key) for key, array in enumerate(arrays)]
    for transfer in pending:
        transfer.wait()

    for array in arrays:
        np.testing.assert_array_equal(array, total(hosts, array.size, "f4"))


@pytest.mark.mpi(min_size=2)
def test_too_many_arrays_from_elsewhere_are_refused(world, path):
    transport, array = path.transport, np.zeros(9001, "f4")
    transport.allreduce(array, 0).wait()
    with pytest.raises(CommError, match=r"slice 1: 36004 bytes lie outside the window"):
        transport.allreduce(array, 1)
    transport.reset()
    transport.allreduce(array, 1).wait()


@pytest.mark.mpi(min_size=2)
def test_slices_that_do_not_lie_alike_are_told(world):
    with paths.make("node", world, nbytes=4096) as path:
        flat = path.window.mine.view("f4")
        array = flat[16 * (world.rank == 0) :][:100]

        with pytest.raises(CommError, match=r"slice 3: 400 bytes lie at (0|64) of the window"):
            path.transport.allreduce(array, 3).wait()
        world.barrier()


@pytest.mark.mpi(min_size=4)
def test_hosts_exchange_halves_and_ranks_of_a_host_all_bits(world):
    hosts = [0, 0, 1, 1]
    terms = [sample(20000, "f4", rank) for rank in range(4)]
    sums = [
        term.astype("f2").astype("f4") for term in (terms[0] + terms[1], terms[2] + terms[3])
    ]
    want = sums[0] + sums[1]
    want[:16] = (terms[0] + terms[1] + (terms[2] + terms[3]))[:16]

    with paths.make("node", world, Half(), nbytes=80_000, hosts=hosts) as path:
        array = path.window.mine.view("f4")
        array[:] = terms[world.rank]
        path.transport.allreduce(array, 0, exact=16).wait()

        np.testing.assert_array_equal(array, want)


@pytest.mark.mpi(min_size=4)
def test_the_state_is_that_of_the_exchange_of_hosts(world):
    with paths.make("node", world, TwoBit(0.1), nbytes=8000, hosts=[0, 0, 1, 1]) as path:
        transport, array = path.transport, path.window.mine.view("f4")
        array[:] = sample(2000, "f4", world.rank)
        transport.allreduce(array, 7).wait()
        state = transport.state()
        part = part_of(2000, 2, world.rank % 2)
        assert {name: kept.size for name, kept in state.items()} == {
            "up/7": part.stop - part.start
        }
        transport.reset()
        assert transport.state() == {}
        transport.load(state)
        np.testing.assert_array_equal(transport.state()["up/7"], state["up/7"])


def test_a_window_shows_what_others_have_written(world):
    with share(world, 0) as local, Window(local, 1001) as made:
        assert made.mine.size == 1001
        assert not made.mine.any()
        assert made.mine.ctypes.data % 4096 == 0
        made.mine[-1] = local.rank + 1
        made.sync()
        local.barrier()
        made.sync()
        assert [made.of(rank)[-1] for rank in range(local.size)] == [
            rank + 1 for rank in range(local.size)
        ]
        local.barrier()
    made.free()


def test_too_little_shared_memory_is_told_before_it_is_touched(world, monkeypatch):
    monkeypatch.setattr(window, "room_bytes", lambda: 5 << 20)
    monkeypatch.setattr(paths, "room_bytes", lambda: 5 << 20)
    with pytest.raises(CommError, match=r"/dev/shm has 5 MiB free, needed \d+ for"):
        paths.make("node", world, nbytes=6 << 20)
    with paths.make("auto", world, nbytes=6 << 20) as path:
        assert path.kind == "direct"


@pytest.mark.parametrize("kind", ["auto", "mpi", "direct"])
def test_the_path_that_is_asked_for_is_made(world, kind):
    with paths.make(kind, world, nbytes=4096) as path:
        array = path.window.mine.view("f4") if path.window else np.empty(1024, "f4")
        array[:] = world.rank
        path.transport.allreduce(array, 0).wait()

        assert set(array) == {sum(range(world.size))}
        kinds = {"mpi": MpiTransport, "direct": Direct}
        kinds["auto"] = Node if world.size > 1 else Direct
        assert type(path.transport) is kinds[kind]


def test_ranks_of_one_machine_share_a_host(world):
    assert hosts_of(world) == [0] * world.size
    assert room_bytes() is None or room_bytes() > 0


@pytest.mark.serial
@pytest.mark.parametrize(
    ("kind", "hosts", "coded", "chosen"),
    [
        ("auto", [0], False, "direct"),
        ("auto", [0, 0, 0], False, "node"),
        ("auto", [0, 0, 0], True, "direct"),
        ("auto", [0, 1, 2], False, "direct"),
        ("auto", [0, 1, 0, 1], True, "node"),
        ("auto", [0, 0, 0, 1], False, "direct"),
        ("node", [0, 1, 2], True, "node"),
        ("mpi", [0, 0, 1], False, "mpi"),
        ("direct", [0, 0], True, "direct"),
    ],
)
def test_the_path_follows_from_where_the_ranks_are(kind, hosts, coded, chosen):
    assert paths.choose(kind, hosts, coded) == chosen


@pytest.mark.serial
@pytest.mark.parametrize(
    ("kind", "hosts", "coded", "words"),
    [
        ("ring", [0], False, "got 'ring', needed one of auto, mpi, direct, node"),
        ("mpi", [0, 1], True, "got mpi with compression"),
        ("node", [0, 0], True, "got node with compression"),
        ("node", [0, 0, 5], False, "got node with 2, 1 ranks on the hosts"),
    ],
)
def test_a_path_that_cannot_be_had_is_told(kind, hosts, coded, words):
    with pytest.raises(ConfigError, match=words):
        paths.choose(kind, hosts, coded)


def test_hosts_that_contradict_are_refused(world):
    with pytest.raises(ConfigError, match=f"got 9 hosts for {world.size} ranks"):
        paths.make("auto", world, hosts=[0] * 9)
