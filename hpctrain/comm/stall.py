"""Tells who keeps the others waiting, and ends a run that does not move.

An exchange that one rank never starts keeps all others waiting, without a word.  On each rank a
thread looks now and then how old this rank's oldest open exchange is.  When it is too old the
thread asks the threads of all ranks, by messages of its own:

    rank 0   looks . . . looks  60 s!  asks - - - - - - > report
    rank 1   looks . . . looks . . . . . . . answers ^
    rank 2   looks . . . looks . . . . . . . answers ^    who does not answer is named too

The lowest rank that has waited too long speaks for all.
"""

import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, NoReturn, Self

from mpi4py import MPI

from hpctrain.comm import guard
from hpctrain.comm.group import Group
from hpctrain.comm.mail import Mail
from hpctrain.comm.progress import CONTROL, State, Wait, collective, place
from hpctrain.comm.stalled import report, stalled
from hpctrain.comm.watched import Logs
from hpctrain.comm.world import World
from hpctrain.trace import Activity

__all__ = ["EXIT_STALLED", "Watch"]

EXIT_STALLED = 124
"""Exit code of a run that was ended because nothing moved; that of ``timeout``, too."""
ANSWER_S = 3.0
"""How long other ranks may take to answer."""
GIVE_WAY_S = 10.0
"""How long a rank leaves it to a lower one to end the run."""
GAP_S = 5.0
"""A thread that slept longer than this beyond its time was stopped with its process."""

_LOOK_S = 0.02  # between two looks for answers

Running = Callable[[], Sequence[tuple[str, str, float]]]


@dataclass(slots=True)
class _Inquiry:
    """A question to all ranks that is under way."""

    number: int
    limit_s: float
    end: float
    answers: dict[int, State]
    """This rank's too."""
    askers: set[int] = field(default_factory=set)
    """Ranks that ask the same meanwhile, and so have waited as long."""


class _Seen(NamedTuple):
    """The collective in which the main thread is, or no name, and when it was first seen."""

    number: int
    name: str
    moment: float


class Watch:
    """Watches how long this rank waits for exchanges; collective to make, on the main thread.

    As a context manager it watches while its block runs.  Leaving it is collective and waits
    for all ranks, however long they take, unless an exception passes through.

    Parameters
    ----------
    world : World
        Collectives of its ``control`` group on the main thread are watched. If it stands for
        some ranks, all others make a watch as well.
    stall_s : float, s
        How long an exchange may take before the state of all ranks is printed, once.
    abort_s : float, s
        How long before all ranks end with `EXIT_STALLED`; 0: never.
    activity : Activity, optional
        Where the threads of this rank write what they are doing.
    running : callable, optional
        Returns the tasks that run: lane, name, seconds; see ``Engine.running``.
    group : Group, optional
        Of all ranks, whose collectives are watched instead of those of ``control``.

    Attributes
    ----------
    log : Log
        To be told when an exchange of gradients starts and ends.
    inside : Log
        To be told of what ranks wait for inside a step's computation, such as statistics.
    logs : Logs
        These two, and those of what only some ranks do together: make them before the block.

    Notes
    -----
    A rank alone is not watched.  Otherwise a look costs some 0.1 ms, once a second (each
    tenth of ``stall_s``, if that is less).  Time in which the whole process was stopped, as
    by a batch system that suspends jobs, does not count as waiting.
    """

    def __init__(
        self,
        world: World,
        stall_s: float = 60.0,
        abort_s: float = 300.0,
        activity: Activity | None = None,
        running: Running | None = None,
        group: Group | None = None,
    ) -> None:
        self.logs = Logs(world.whole.rank)
        self.log, self.inside = self.logs.gradient, self.logs.inside
        self._world, self._group, self._only = world.whole, group or world.control, group
        self._stall_s, self._abort_s = stall_s, abort_s
        self._activity = activity or Activity()
        self._running = running or (lambda: ())
        self._tick_s = min(1.0, stall_s / 10)
        self._control = _Seen(0, "", 0.0)
        self._looked = self._awake = time.monotonic()
        self._quiet_until = 0.0
        self._told: dict[str, int] = {}
        self._settled: dict[str, int] = {}  # told by this rank or left to another
        self._inquiry: _Inquiry | None = None
        self._inquiries = 0
        self._leaving = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True, name="stall")
        self._hosts: list[str] = self._world.control.allgather_obj(world.host)
        self._mail = Mail(MPI.COMM_WORLD.Dup(), world.guard.lasts)

    def posted(self, key: int, name: str) -> None:
        """Note that an exchange has been started; see `Log.posted`."""
        self.log.posted(key, name)

    def completed(self, key: int) -> None:
        """Note that it is complete; see `Log.completed`."""
        self.log.completed(key)

    def __enter__(self) -> Self:
        if self._world.size > 1:
            self._looked = self._awake = time.monotonic()
            self._thread.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, *_: object) -> None:
        self._leaving.set()
        if error is None:
            self._mail.meet()  # until then others may ask
        self._stop.set()
        if self._world.size > 1:
            self._thread.join()
        if error is None:
            self._mail.close()

    def _watch(self) -> None:
        try:
            while not self._stop.wait(_LOOK_S if self._inquiry else self._tick_s):
                self._look(time.monotonic())
        except Exception:
            # Training does not need this thread, and must not end for it.
            guard.say(
                f"{guard.where()} hpctrain: no watch for stalls from here on, training goes "
                f"on: {traceback.format_exc()}"
            )

    def _look(self, now: float) -> None:
        if now - self._looked > self._tick_s + GAP_S:
            self._awake = now
        self._looked = now
        self._look_at_control(now)
        self._serve()
        inquiry = self._inquiry
        if inquiry is None:
            self._consider(now)
        elif len(inquiry.answers) == self._world.size or now > inquiry.end:
            self._inquiry = None
            self._conclude(inquiry, now)

    def _look_at_control(self, now: float) -> None:
        """Note the collective in which the main thread is, and since when."""
        before = self._control
        calls, name = self._group.calls, collective(_main_frame(), self._only)
        if calls != before.number or bool(name) != bool(before.name):
            self._control = _Seen(calls, name, now)

    def _waits(self, now: float) -> list[Wait]:
        """Return the oldest open exchange of each sequence."""
        waits, control = self.logs.waits(self._awake, now), self._control
        if control.name:
            seconds = now - max(control.moment, self._awake)
            waits.append(Wait(CONTROL, control.number, control.name, seconds))
        return waits

    def _state(self, now: float) -> State:
        doing = [f"{each.what} for {each.seconds:.1f} s" for each in self._activity.now()]
        doing += [f"lane {lane}: {name} for {s:.1f} s" for lane, name, s in self._running()]
        doing.append(f"main thread at {place(_main_frame())}")
        return State(
            {**self.logs.started(), CONTROL: self._group.calls},
            self._waits(now),
            self.logs.busy(),
            self._told,
            doing,
        )

    def _consider(self, now: float) -> None:
        """Ask all ranks, if this one has waited too long and nobody has said so."""
        if self._leaving.is_set() or now < self._quiet_until:
            return
        # A low rank comes first, so that not everybody asks everybody.
        modest_s = 1.5 * self._tick_s * min(self._world.rank, 2)
        waits = self._waits(now)
        longest = max((wait.seconds for wait in waits), default=0.0) - modest_s
        if 0 < self._abort_s <= longest:
            self._ask(self._abort_s, now)
        elif any(
            wait.seconds - modest_s >= self._stall_s
            and wait.number > self._settled.get(wait.sequence, 0)
            for wait in waits
        ):
            self._ask(self._stall_s, now)

    def _ask(self, limit_s: float, now: float) -> None:
        self._inquiries += 1
        mine = {self._world.rank: self._state(now)}
        self._inquiry = _Inquiry(self._inquiries, limit_s, now + ANSWER_S, mine)
        for rank in range(self._world.size):
            if rank != self._world.rank:
                self._mail.send(rank, {"ask": self._inquiries, "limit_s": limit_s})

    def _serve(self) -> None:
        """Answer the questions that have come, and take the answers."""
        for source, message in self._mail.received():
            now, inquiry = time.monotonic(), self._inquiry
            if "ask" in message:
                state = self._state(now).plain()
                self._mail.send(source, {"answer": message["ask"], "state": state})
                self._heard(source, message["limit_s"], now)
            elif inquiry is not None and message["answer"] == inquiry.number:
                inquiry.answers[source] = State.of(message["state"])

    def _heard(self, source: int, limit_s: float, now: float) -> None:
        """Leave it to a lower rank to speak that has waited as long."""
        inquiry = self._inquiry
        if inquiry is not None and limit_s >= inquiry.limit_s:
            inquiry.askers.add(source)
        elif inquiry is None and source < self._world.rank:
            self._give_way(limit_s, now)

    def _give_way(self, limit_s: float, now: float) -> None:
        self._settle(limit_s, now)
        if limit_s == self._abort_s:
            self._quiet_until = now + GIVE_WAY_S

    def _settle(self, limit_s: float, now: float) -> None:
        """Ask no more about what this rank has waited for about as long as ``limit_s``."""
        for wait in self._waits(now):
            if wait.seconds > 0.9 * limit_s:
                self._settled[wait.sequence] = wait.number

    def _conclude(self, inquiry: _Inquiry, now: float) -> None:
        """Speak, or leave it to a lower rank."""
        rank, limit_s = self._world.rank, inquiry.limit_s
        if not any(wait.seconds >= limit_s for wait in self._waits(now)):
            return  # it has moved meanwhile
        states = {r: inquiry.answers.get(r) for r in range(self._world.size)}
        late = {r for r, state in states.items() if state and state.late(limit_s)}
        ends = limit_s == self._abort_s
        gave_way = self._quiet_until > 0
        if min(late | inquiry.askers) < rank and not (ends and gave_way):
            self._give_way(limit_s, now)
            return
        text = report(states, self._hosts, limit_s)
        if ends:
            self._end(text)
        self._settle(limit_s, now)
        subjects = stalled(states, limit_s).items()
        if not all(_told(inquiry, sequence, wait.number) for sequence, wait in subjects):
            self._told.update((sequence, wait.number) for sequence, wait in subjects)
            guard.say(f"{guard.where()} hpctrain: {text}")

    def _end(self, text: str) -> NoReturn:
        setting = f"exchange.abort_s is {self._abort_s:g}"
        guard.abort(EXIT_STALLED, f"hpctrain: {text}  all ranks end, because {setting}")


def _told(inquiry: _Inquiry, sequence: str, number: int) -> bool:
    """Tell whether a rank has said that this exchange is stalled."""
    return any(state.told.get(sequence, 0) >= number for state in inquiry.answers.values())


def _main_frame() -> Any:
    return sys._current_frames().get(threading.main_thread().ident or 0)
