import threading

import pytest
from mpi4py import MPI

from hpctrain.comm import probe
from hpctrain.comm.probe import Spare, slowdown, spare_core


@pytest.mark.parametrize(
    ("alone", "beside", "times"),
    [
        ([2.0, 2.0, 2.0], [2.0, 2.0, 2.0], 1.0),
        ([2.0, 1.0, 2.0], [4.0, 4.0, 9.0], 2.0),
        ([1.0, 8.0, 1.0], [1.0, 1.0, 8.0], 1.0),  # a moment's disturbance is none
    ],
)
def test_the_slowdown_is_that_of_the_medians(alone, beside, times):
    assert slowdown(alone, beside) == times


def given_times(monkeypatch, alone, beside):
    """Let the work take the times given, and no time."""
    times = [time for pair in zip(alone, beside, strict=True) for time in pair]

    class Given:
        def timed(self):
            return times.pop(0)

    monkeypatch.setattr(probe, "_Work", Given)
    monkeypatch.setattr(probe, "_TIMES", (3, 3))


@pytest.mark.parametrize(("beside", "free"), [(1.09, True), (1.11, False), (0.9, True)])
def test_a_tenth_is_allowed(world, monkeypatch, beside, free):
    given_times(monkeypatch, [1.0] * 3, [beside] * 3)

    found = spare_core(world)

    assert found == Spare(free, beside)
    assert bool(found) is free


def test_one_slow_rank_decides_for_all(world, monkeypatch):
    given_times(monkeypatch, [1.0] * 3, [2.0 if world.rank == world.size - 1 else 1.0] * 3)

    assert spare_core(world) == Spare(False, 2.0)


def test_what_is_found_is_the_same_on_all_ranks(world, monkeypatch):
    monkeypatch.setattr(probe, "_TIMES", (2, 3))
    found = spare_core(world)

    assert found.slowdown > 0
    assert found.free == (found.slowdown <= probe.LIMIT)
    assert len(set(world.allgather_obj(found.slowdown))) == 1


def test_without_calls_from_threads_there_is_no_use_of_a_core(world, monkeypatch):
    monkeypatch.setattr(MPI, "Query_thread", lambda: MPI.THREAD_SERIALIZED)

    assert not spare_core(world)


def running():
    return [thread for thread in threading.enumerate() if thread.name == "hpctrain-probe"]


def test_the_thread_ends_when_an_exception_passes():
    with pytest.raises(RuntimeError, match="work failed"), probe._waiting():
        assert len(running()) == 1
        raise RuntimeError("work failed")

    assert running() == []


def test_an_error_of_mpi_in_the_thread_is_raised(monkeypatch):
    def fails(what, function, *args):
        if function.__name__ == "Wait":
            raise ValueError(f"{what}: no")
        return function(*args)

    monkeypatch.setattr(probe, "call", fails)

    with pytest.raises(ValueError, match="probe: no"), probe._waiting():
        for thread in running():
            thread.join()

    assert running() == []
