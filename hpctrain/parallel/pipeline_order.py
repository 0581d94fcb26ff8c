"""A proof that a pipeline schedule comes to its end: what happens before what.

The receiver has a number of *buffers* for each channel. One of them is taken from when a
message is sent until the action that needs it begins. The walk below sends as MPI does at
worst: a send lasts until a buffer takes its message. No rank ever chooses, so a schedule that
comes to its end in this way does so in every real run, however fast ranks and messages are.
"""

from collections import Counter
from itertools import product

from hpctrain.errors import EngineError
from hpctrain.parallel.pipeline_messages import (
    Channel,
    Message,
    home_of,
    message_of,
    messages,
    needs,
    parts,
)
from hpctrain.parallel.pipeline_schedule import Action, Kind, PipelineSchedule

__all__ = ["buffers_needed", "execution_order", "verify"]


def verify(schedule: PipelineSchedule, buffers: int | None = None) -> PipelineSchedule:
    """Check that every action is there once, comes after what it needs, and that all ends.

    Parameters
    ----------
    schedule : PipelineSchedule
    buffers : int, optional
        For each channel, at least 0; with 0 a send lasts until the receiver is at the action
        that needs the message. None: as many as there are messages.

    Returns
    -------
    PipelineSchedule
        ``schedule``.

    Raises
    ------
    EngineError
        Naming the first action that is missing, too many, or before what it needs.
    """
    _verify_counts(schedule)
    _verify_ranks(schedule)
    execution_order(schedule, buffers)
    return schedule


def execution_order(
    schedule: PipelineSchedule, buffers: int | None = None
) -> tuple[tuple[int, Action], ...]:
    """Return all actions with their ranks, each after everything that it needs.

    Raises
    ------
    EngineError
        If the ranks come to a point from which none can go on.
    """
    walk = _Walk(schedule, buffers)
    moved = True
    while moved:
        moved = sum(map(walk.advance, range(len(schedule)))) > 0  # every rank, each time
    if len(walk.order) < sum(map(len, schedule)):
        raise EngineError(f"verify: {walk.complaint()}, so no rank can go on")
    return tuple(walk.order)


def buffers_needed(schedule: PipelineSchedule) -> int:
    """Return the least number of buffers for each channel, at least 1, with which all ends.

    Notes
    -----
    1 for all schedules with one stage on a rank. With chunks never more than ``g - S + 2``,
    where g micro-batches go through a chunk together: a rank may run ahead of the next, and
    two ranks send activations and cotangents over one channel.
    """
    most = max(map(len, messages(schedule).values()), default=1)
    for buffers in range(1, most):
        try:
            execution_order(schedule, buffers)
        except EngineError:
            continue
        return buffers
    execution_order(schedule, most)
    return most


class _Walk:
    """Ranks going through their actions, with sends that last until there is a buffer."""

    def __init__(self, schedule: PipelineSchedule, buffers: int | None) -> None:
        self.schedule, self.buffers = schedule, buffers
        self.home = home_of(schedule)
        self.last = max(self.home, default=0)
        self.at = [0] * len(schedule)
        self.sending: list[Message | None] = [None] * len(schedule)
        self.taken: Counter[Channel] = Counter()
        self.has: list[set[Action]] = [set() for _ in schedule]  # results, by rank
        self.order: list[tuple[int, Action]] = []

    def advance(self, rank: int) -> bool:
        """Let a rank go on as far as it can; return whether it has sent or done anything."""
        before = self.at[rank], self.sending[rank]
        while self._send(rank) and self._act(rank):
            pass
        return before != (self.at[rank], self.sending[rank])

    def _send(self, rank: int) -> bool:
        """Return whether the rank has nothing more to send."""
        message = self.sending[rank]
        if message is None:
            return True
        channel = message.source, message.dest
        full = self.buffers is not None and self.taken[channel] >= self.buffers
        if full and (self.buffers or not self._awaits(message)):
            return False
        self.taken[channel] += 1
        self.has[message.dest].add(message.carried)
        self.sending[rank] = None
        return True

    def _awaits(self, message: Message) -> bool:
        """Return whether the receiver is at the action that needs ``message``."""
        free = self.sending[message.dest] is None
        return free and message.carried in self.missing(message.dest)

    def _act(self, rank: int) -> bool:
        """Do the next action if everything that it needs is there."""
        if self.at[rank] == len(self.schedule[rank]) or self.missing(rank):
            return False
        action = self.schedule[rank][self.at[rank]]
        for need in needs(action, self.last):
            source = self.home[need.stage]
            self.taken[source, rank] -= source != rank
        self.has[rank].update(parts(action))
        self.sending[rank] = message_of(action, self.home)
        self.order.append((rank, action))
        self.at[rank] += 1
        return True

    def missing(self, rank: int) -> list[Action]:
        """Return what the next action of a rank needs and the rank does not have."""
        if self.at[rank] == len(self.schedule[rank]):
            return []
        wanted = needs(self.schedule[rank][self.at[rank]], self.last)
        return [need for need in wanted if need not in self.has[rank]]

    def complaint(self) -> str:
        """Say what the first rank that cannot go on is waiting for, and why in vain."""
        for rank, message in enumerate(self.sending):
            if message is None and self.missing(rank):
                need, here = self.missing(rank)[0], self.schedule[rank][self.at[rank]]
                other = self._state(self.home[need.stage])
                return f"rank {rank} has {here} before {need}, which it needs; {other}"
        stuck = next(message for message in self.sending if message is not None)
        return f"{self._state(stuck.source)}; {self._state(stuck.dest)}"

    def _state(self, rank: int) -> str:
        message = self.sending[rank]
        if message is not None:
            return (
                f"rank {rank} cannot send the {message}, since all {self.buffers} buffers of "
                f"rank {message.dest} are taken"
            )
        if self.at[rank] == len(self.schedule[rank]):
            return f"rank {rank} has ended"
        return f"rank {rank} is at {self.schedule[rank][self.at[rank]]}"


def _verify_counts(schedule: PipelineSchedule) -> None:
    """Check that F, B and W of each stage and micro-batch are there once."""
    found = Counter(p for actions in schedule for action in actions for p in parts(action))
    stages = 1 + max((action.stage for action in found), default=-1)
    micro_batches = 1 + max((action.micro for action in found), default=-1)
    kinds: tuple[Kind, ...] = ("F", "B", "W")
    for stage, micro, kind in product(range(stages), range(micro_batches), kinds):
        wanted = Action(kind, stage, micro)
        if found[wanted] != 1:
            raise EngineError(f"verify: got {wanted} {found[wanted]} times, needed it once")


def _verify_ranks(schedule: PipelineSchedule) -> None:
    """Check that no rank has an action before another of its own that it needs."""
    home = home_of(schedule)
    for rank, actions in enumerate(schedule):
        done: set[Action] = set()
        for action in actions:
            for need in needs(action, max(home)):
                if home[need.stage] == rank and need not in done:
                    raise EngineError(
                        f"verify: rank {rank} has {action} before {need}, which it needs"
                    )
            done.update(parts(action))
