"""Going on without dead ranks: with threads for ranks, since few MPI libraries bear a death."""

import threading
from types import SimpleNamespace

import pytest

from hpctrain.comm.lasting import Deaths, check_tolerance, lasting
from hpctrain.errors import ConfigError, LostRankError

pytestmark = pytest.mark.serial
LIMIT_S = 20


class World:
    """What the fake communicators of all ranks share."""

    def __init__(self, size):
        self.size, self.dead, self.changed = size, set(), threading.Condition()

    def kill(self, rank):
        with self.changed:
            self.dead.add(rank)
            self.changed.notify_all()


class Meeting:
    """One communicator, as all its ranks see it."""

    def __init__(self, world, ranks):
        self.world, self.ranks, self.revoked = world, ranks, False
        self.rounds = {}  # by kind and number of the call: what each rank brings

    def bring(self, kind, number, rank, value, living):
        """Wait until all are there, or all who live; return what they bring."""
        with self.world.changed:
            there = self.rounds.setdefault((kind, number), {})
            there[rank] = value
            self.world.changed.notify_all()
            ready = self.world.changed.wait_for(
                lambda: self._all(there, living) or self._over(living), LIMIT_S
            )
            assert ready, f"{kind} {number} hangs on rank {rank}"
            if not self._all(there, living):
                raise LostRankError(kind)
            return dict(there)

    def _all(self, there, living):
        return set(self.ranks) - (self.world.dead if living else set()) <= set(there)

    def _over(self, living):
        return not living and (self.revoked or self.world.dead & set(self.ranks))


class FakeComm:
    """A communicator of one rank, with what `lasting` and `Deaths` ask of it."""

    def __init__(self, meeting, rank):
        self.meeting, self.rank, self.calls = meeting, rank, 0
        self.size, self.group = len(meeting.ranks), None

    def _number(self):
        self.calls += 1
        return self.calls

    def gather(self, value, before_return=lambda: None):
        found = self.meeting.bring("gather", self._number(), self.rank, value, False)
        before_return()
        return found

    def Get_failed(self):
        dead = sorted(self.meeting.world.dead & set(self.meeting.ranks))
        return SimpleNamespace(size=len(dead), Translate_ranks=lambda ranks, group: dead)

    def Ack_failed(self):
        return 0

    def Set_errhandler(self, _):
        pass

    def Revoke(self):
        with self.meeting.world.changed:
            self.meeting.revoked = True
            self.meeting.world.changed.notify_all()

    def Agree(self, flag):
        return min(self.meeting.bring("agree", self._number(), self.rank, flag, True).values())

    def Shrink(self):
        self.meeting.bring("shrink", self._number(), self.rank, 0, True)
        with self.meeting.world.changed:
            ranks = [r for r in self.meeting.ranks if r not in self.meeting.world.dead]
            made = self.meeting.rounds.setdefault("made", Meeting(self.meeting.world, ranks))
        return FakeComm(made, self.rank)


def run(world, work):
    """Let a thread for each rank do ``work(comm, rank)``; return what those who live return."""
    whole, found = Meeting(world, list(range(world.size))), {}

    def one(rank):
        comm = FakeComm(whole, rank)
        try:
            found[rank] = lasting(comm, lambda c: work(c, rank))
        except SystemExit:
            world.kill(rank)

    threads = [threading.Thread(target=one, args=(r,), daemon=True) for r in range(world.size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    return {rank: (comm.size, value) for rank, (comm, value) in found.items()}


def test_where_nobody_dies_it_is_done_once():
    calls = []

    def work(comm, rank):
        calls.append(rank)
        return comm.gather(rank)

    assert run(World(3), work) == dict.fromkeys(range(3), (3, {0: 0, 1: 1, 2: 2}))
    assert sorted(calls) == [0, 1, 2]


@pytest.mark.parametrize("victim", [0, 2])
def test_who_dies_before_is_left_out(victim):
    def work(comm, rank):
        if rank == victim:
            raise SystemExit
        return sorted(comm.gather(rank))

    left = [rank for rank in range(3) if rank != victim]
    assert run(World(3), work) == dict.fromkeys(left, (2, left))


def test_those_who_have_it_done_do_it_again_with_those_who_have_not():
    """The rank that dies has taken part: one rank has its value, the other an error."""
    world, died = World(3), threading.Event()

    def work(comm, rank):
        if comm.size == 3 and rank == 1:
            assert died.wait(LIMIT_S)
            raise LostRankError("gather")
        found = comm.gather(rank) if comm.size == 2 else {0: 0, 1: 1, 2: 2}
        if rank == 2:
            died.set()
            raise SystemExit
        return sorted(found)

    assert run(world, work) == {0: (2, [0, 1]), 1: (2, [0, 1])}


def test_deaths_are_told_once():
    world = World(4)
    comm = FakeComm(Meeting(world, list(range(4))), 0)
    deaths = Deaths(SimpleNamespace(comm=comm))

    assert list(deaths()) == []
    world.kill(2)
    assert list(deaths()) == [2] and list(deaths()) == []
    world.kill(1)
    assert list(deaths()) == [1]


@pytest.mark.parametrize(("library", "value", "bears"), [
    ("Open MPI v5.0.11", "1", True),
    ("Open MPI v5.0.11", "true", True),
    ("Open MPI v5.0.11", "0", False),
    ("Open MPI v5.0.11", None, False),
    ("MPICH 5.0.2", "1", False),
])  # fmt: skip
def test_only_open_mpi_started_for_it_bears_deaths(library, value, bears):
    environ = {} if value is None else {"OMPI_MCA_mpi_ft_enable": value}
    if bears:
        check_tolerance(library, environ)
        return
    with pytest.raises(ConfigError, match=r"exchange.tolerate: got .* --with-ft ulfm"):
        check_tolerance(library, environ)
