import time

from hpctrain.comm import clock


def test_ranks_of_one_host_have_one_clock(world):
    offsets = clock.offsets(world)

    if world.rank == 0:
        # Linux counts perf_counter_ns from the start of the host.
        assert offsets[0] == 0
        assert len(offsets) == world.size
        assert all(abs(offset) < 50_000_000 for offset in offsets)
    else:
        assert offsets == []


def test_a_clock_that_is_ahead_is_found(world, monkeypatch):
    ahead = 10**12 * world.rank
    truth = time.perf_counter_ns
    monkeypatch.setattr(clock.time, "perf_counter_ns", lambda: truth() + ahead)

    offsets = clock.offsets(world, pings=5)

    if world.rank == 0:
        assert [round(offset / 10**12) for offset in offsets] == list(range(world.size))
