"""Training steps that follow each other, carried out on paper.

The compute lane has one worker and takes what is ready, oldest push first, as the engine does;
a step pushes its stretches, then its exchanges, then its updates, then comes the next step:

    compute   S0 S1 S2 S3 S4 S5 . U2 U1 U0 | S0 S1 ...
    link               X2    X1    X0            strictly in one order, some under way

Only the end of a stretch makes slices ready, and the link serves them first come, first served:
all times of a message are known once it is ready.  All is counted in whole nanoseconds, so
that equal numbers give equal results on any machine.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from hpctrain.comm.timeline import Kind, Link, Span, Step, Timeline
from hpctrain.errors import ConfigError

__all__ = ["Model", "Simulation", "compiled", "simulate"]

MAX_STEPS = 12  # steps that differ from each other are averaged over the last half of these


@dataclass(frozen=True, slots=True)
class Model:
    """A step over a link, in nanoseconds; by stretch and by slice."""

    work: tuple[int, ...]
    needs: tuple[frozenset[int], ...]
    final: tuple[tuple[int, ...], ...]
    final_in: tuple[int, ...]  # the stretch that makes a slice final
    first_need: tuple[int, ...]  # the first stretch that waits for it
    last_use: tuple[int, ...]  # the stretch after which it may be updated
    wire: tuple[int, ...]
    cpu: tuple[int, ...]  # taken from the compute lane while on the wire
    update: tuple[int, ...]
    latency: int
    in_flight: int

    @property
    def compute(self) -> int:
        """Time of all stretches and updates."""
        return sum(self.work) + sum(self.update)


def compiled(step: Step, link: Link, lag: int = 1) -> Model:
    """Return the numbers that a simulation works with; see `simulate`."""
    slices = range(len(step.pieces))
    # A gradient that the update of the step before still reads must not be written.
    needs = [frozenset((*stretch.reads, *stretch.final)) for stretch in step.stretches]
    final_in = {s: i for i, stretch in enumerate(step.stretches) for s in stretch.final}
    users = {s: [i for i, need in enumerate(needs) if s in need] for s in slices}
    if lag == 0 and needs:
        needs[0] = frozenset(slices)
    cpu = [_ns(p.nbytes * link.cpu_s_per_byte) for p in step.pieces]
    moved = [_ns(p.nbytes / link.bytes_per_s) for p in step.pieces]
    return Model(
        work=tuple(_ns(stretch.seconds) for stretch in step.stretches),
        needs=tuple(needs),
        final=tuple(stretch.final for stretch in step.stretches),
        final_in=tuple(final_in[s] for s in slices),
        first_need=tuple(0 if lag == 0 else users[s][0] for s in slices),
        last_use=tuple(users[s][-1] for s in slices),
        wire=tuple(_ns(link.overhead_s) + max(m, c) for m, c in zip(moved, cpu, strict=True)),
        cpu=tuple(cpu),
        update=tuple(_ns(p.update_s) for p in step.pieces),
        latency=_ns(link.latency_s),
        in_flight=link.in_flight,
    )


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)


@dataclass(slots=True)
class Row:
    """What happened in one step; times but the first count from its begin."""

    begun: int
    stretches: list[int]  # when the lane came to them
    ready: list[int]
    start: list[int]
    end: list[int]
    early: frozenset[int]  # updated before the end of the step
    waited: dict[int, int]  # how long the lane stood still for a slice of the step before
    period: int = 0

    def same(self, other: "Row") -> bool:
        """Return whether the step went as ``other`` did: then all that follow do."""
        return (
            self.period == other.period
            and self.end == other.end
            and self.stretches == other.stretches
            and self.early == other.early
        )


class Simulation:
    """Steps that follow each other until they repeat.

    Parameters
    ----------
    model : Model
    order : sequence of int
        A permutation of the slices.

    Attributes
    ----------
    rows : list of Row
    period : int
        Time from one step to the next.
    """

    def __init__(self, model: Model, order: Sequence[int]) -> None:
        self.rows: list[Row] = []
        self.spans: list[tuple[Kind, int, int, int]] = []
        self._model = model
        self._order = order
        self._place = {s: place for place, s in enumerate(order)}
        self._now = 0
        self._missing: set[int] = set()  # slices without their update of the step before
        self._early = set(order)  # slices with their update of this step; all, before the first
        self._arriving: list[tuple[int, int, int]] = []  # (time, step, place in the order)
        self._arrived: list[tuple[int, int]] = []  # (step, place): the oldest push first
        self._ends: list[int] = []  # of all messages so far
        self._wire_free = 0
        self._taken: list[tuple[int, int, int]] = []  # (begin, end, share) that cost the lane
        self._seen = 0  # of these, how many are over
        self.period = self._run()

    def _run(self) -> int:
        for number in range(MAX_STEPS):
            self.rows.append(self._step(number))
            # Before the first step there was none, so that it is like no other.
            if number > 1 and self.rows[-1].same(self.rows[-2]):
                return self.rows[-1].period
        half = MAX_STEPS // 2
        return (self._now - self.rows[-half].begun) // half

    def _step(self, number: int) -> Row:
        model, count = self._model, len(self._order)
        begun = self._now
        self._missing = set(self._order) - self._early
        self._early = set()
        row = Row(begun, [], [0] * count, [0] * count, [0] * count, frozenset(), {})
        held: dict[int, list[int]] = {}  # sent, but still read, until the end of a stretch
        sent = 0
        final: set[int] = set()
        for place, work in enumerate(model.work):
            row.stretches.append(self._now - begun)
            self._wait(place, number, row)
            self._occupy("stretch", place, work)
            for s in model.final[place]:
                row.ready[s] = self._now - begun
                final.add(s)
            while sent < count and (s := self._order[sent]) in final:
                self._send(s, row)
                held.setdefault(max(place, model.last_use[s]), []).append(s)
                sent += 1
            for s in held.pop(place, ()):
                arrival = max(self._now, row.end[s] + begun)
                heapq.heappush(self._arriving, (arrival, number, self._place[s]))
        row.early = frozenset(self._early)
        row.period = self._now - begun
        return row

    def _wait(self, place: int, number: int, row: Row) -> None:
        """Run updates and stand still until the stretch at ``place`` may start."""
        arriving, arrived = self._arriving, self._arrived
        needs = self._model.needs[place]
        while True:
            while arriving and arriving[0][0] <= self._now:
                heapq.heappush(arrived, heapq.heappop(arriving)[1:])
            able = needs.isdisjoint(self._missing)
            if arrived and (not able or arrived[0][0] < number):
                self._update(number)
            elif able:
                return
            else:
                gap = arriving[0][0] - self._now
                s = min(needs & self._missing, key=self._place.__getitem__)
                row.waited[s] = row.waited.get(s, 0) + gap
                self._now += gap

    def _update(self, number: int) -> None:
        step, place = heapq.heappop(self._arrived)
        s = self._order[place]
        self._occupy("update", s, self._model.update[s])
        if step == number:
            self._early.add(s)
        else:
            self._missing.discard(s)

    def _send(self, s: int, row: Row) -> None:
        """Put a slice that is ready now on the link, behind those before it."""
        model, ends = self._model, self._ends
        start = self._now
        if len(ends) >= model.in_flight:
            start = max(start, ends[-model.in_flight])
        begin = max(start, self._wire_free)
        self._wire_free = begin + model.wire[s]
        ends.append(self._wire_free + model.latency)
        row.start[s], row.end[s] = start - row.begun, ends[-1] - row.begun
        self.spans.append(("send", s, begin, self._wire_free))
        if model.cpu[s]:
            self._taken.append((begin, self._wire_free, model.cpu[s]))

    def _occupy(self, kind: Kind, index: int, work: int) -> None:
        begin = self._now
        self._now = self._slowed(begin, work) if self._taken else begin + work
        self.spans.append((kind, index, begin, self._now))

    def _slowed(self, time: int, work: int) -> int:
        """Return when ``work`` is done that begins now, while the link takes its share."""
        while self._seen < len(self._taken) and self._taken[self._seen][1] <= time:
            self._seen += 1
        for begin, end, share in self._taken[self._seen :]:
            if work <= begin - time:
                break
            work -= max(0, begin - time)
            time = max(begin, time)
            length, left = end - begin, end - begin - share
            done = (end - time) * left // length
            if work <= done:
                return time if not work else time - (-work * length // left)
            work -= done
            time = end
        return time + work


def simulate(step: Step, link: Link, order: Sequence[int], lag: int = 1) -> Timeline:
    """Return what a training step comes to when many follow each other.

    Parameters
    ----------
    step : Step
    link : Link
    order : sequence of int
        A permutation of the slices: in this order they are exchanged.
    lag : {1, 0}
        1: a stretch waits for the slices that it reads, no more.  0: the first stretch waits
        for all, as systems do that end a step with everything updated.

    Returns
    -------
    Timeline
        Of the last step but one that was simulated.  Steps are simulated until two are alike,
        12 at most; then their mean is the time of a step.

    Raises
    ------
    ConfigError
        If ``order`` is not a permutation of the slices.

    Notes
    -----
    The result of step t is waited for before step t + 2, as the trainer does; all updates of
    step t are made in the course of step t + 1, so that this delays nothing.

    All ranks are taken to be alike and to start each exchange at the same time.  Costs 1 to
    2 ms for 40 stretches and 60 slices, where 3 steps are enough.
    """
    if sorted(order) != list(range(len(step.pieces))):
        raise ConfigError(
            f"simulate: got order {list(order)}, needed each of {len(step.pieces)} slices once"
        )
    model = compiled(step, link, lag)
    return _timeline(model, tuple(order), Simulation(model, order))


def _timeline(model: Model, order: tuple[int, ...], done: Simulation) -> Timeline:
    row, after = done.rows[-2:]
    begun, end = row.begun, after.begun
    spans = [
        Span(kind, index, max(0, a - begun) / 1e9, min(b - begun, end - begun) / 1e9)
        for kind, index, a, b in done.spans
        if a < end and b > begun
    ]
    slices = range(len(order))
    needed = [end - begun + after.stretches[model.first_need[s]] for s in slices]
    return Timeline(
        order=order,
        step_ns=done.period,
        compute_s=model.compute / 1e9,
        exposed_s=sum(row.waited.values()) / 1e9,
        link_s=sum(model.wire) / 1e9,
        ready_s=_seconds(row.ready),
        start_s=_seconds(row.start),
        end_s=_seconds(row.end),
        needed_s=_seconds(needed),
        waited_s=_seconds([row.waited.get(s, 0) for s in slices]),
        spans=tuple(spans),
    )


def _seconds(times: Sequence[int]) -> tuple[float, ...]:
    return tuple(time / 1e9 for time in times)
