"""In which order slices are exchanged, and how good that can be.

What the next forward pass needs first should arrive first, but the backward pass makes it final
last.  An order is a permutation of the slices, fixed for every step and equal on all ranks; as
the link serves it strictly, an order in which a slice waits for a more urgent one that is not
ready yet leaves the link idle meanwhile, which can be worth it.

    order by          compute  F0 F1 F2 B2 B1 B0 . . . F0 . F1 F2
    readiness         link                2  1  1  1  1  0           F0 waits for all
    need              link                2  1  0  1  1  1           F0 waits for little

All functions are pure, and count in whole nanoseconds: ranks that pass the same numbers get the
same order.  No clock limits the search, only a number of simulations.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from operator import itemgetter

from hpctrain.comm.simulate import Model, Simulation, compiled, simulate
from hpctrain.comm.timeline import Link, Piece, Span, Step, Stretch, Timeline

__all__ = [
    "Link",
    "Piece",
    "Span",
    "Step",
    "Stretch",
    "Timeline",
    "backward_order",
    "best_order",
    "lower_bound",
    "plan_order",
    "simulate",
    "without_overlap",
]

# A simulation takes about 10 µs for each stretch and slice.
TASKS = 1800
AT_LEAST = 12
MARGIN = 1e-3  # numbers that were measured tell no more apart


def backward_order(step: Step) -> tuple[int, ...]:
    """Return the slices in the order in which they become final, ties by index."""
    return tuple(s for stretch in step.stretches for s in sorted(stretch.final))


def plan_order(step: Step, link: Link, hold_s: float = 0.0) -> tuple[int, ...]:
    """Return the order that sends, of what is ready, what the next step needs first.

    Parameters
    ----------
    step : Step
        Its stretches tell when a slice is final if nothing holds up the compute lane.
    link : Link
    hold_s : float
        Leave the link idle for up to so long if a more urgent slice becomes ready meanwhile.

    Returns
    -------
    tuple of int
        Ties by index.

    Notes
    -----
    List scheduling by earliest due date: with no hold the best there is, as long as slices are
    small against the time in which urgent ones become ready.

    References
    ----------
    Graham, "Bounds on multiprocessing timing anomalies", SIAM J. Appl. Math. 17 (1969) 416-429.
    """
    return _plan(compiled(step, link), min(hold_s, 1e9))


def _plan(model: Model, hold_s: float) -> tuple[int, ...]:
    ends = list(accumulate(model.work))
    ready = [ends[place] for place in model.final_in]
    gap = 0 if model.in_flight > 1 else model.latency
    hold = round(hold_s * 1e9)
    urgent = sorted(range(len(ready)), key=lambda s: (model.first_need[s], s))
    order: list[int] = []
    time = 0
    while urgent:
        time = max(time, min(ready[s] for s in urgent))
        s = next(s for s in urgent if ready[s] <= time + hold)
        urgent.remove(s)
        order.append(s)
        time = max(time, ready[s]) + model.wire[s] + gap
    return tuple(order)


def best_order(step: Step, link: Link, lag: int = 1) -> tuple[int, ...]:
    """Return the best order found, by the simulated time of a step.

    Candidates are `backward_order` and `plan_order` with several holds; they are improved, the
    best first, by moving slices forward that the compute lane waits for, then by any moves,
    short ones before long ones.  Where the plain plan is as good within 0.1 %, it is taken.

    Parameters
    ----------
    step : Step
    link : Link
    lag : {1, 0}
        See `simulate`.

    Notes
    -----
    At most ``max(12, 1800 // (stretches + slices))`` orders are simulated: 15 to 25 ms for 40
    stretches and 60 slices, on one core of a Xeon in 2026.  Of 300 random steps of at most 6
    slices it found the optimum in all but 2, which took up to 5 % longer.
    """
    model = compiled(step, link, lag)
    seen: dict[tuple[int, ...], _Tried] = {}
    mean = sum(model.wire) / max(1, len(model.wire)) / 1e9
    _tried(model, backward_order(step), seen)
    plain = _tried(model, _plan(model, 0.0), seen)
    for hold in (mean, 4 * mean, 16 * mean, 1e9):
        _tried(model, _plan(model, hold), seen)
    limit = max(AT_LEAST, TASKS // max(1, len(model.work) + len(model.wire)))
    enough = _bound(model) * (1 + MARGIN)
    for start in sorted(seen.values(), key=_Tried.key):
        better: _Tried | None = start
        while better is not None and min(t.period for t in seen.values()) > enough:
            better = _improved(model, better, seen, limit)
    best = min(seen.values(), key=_Tried.key)
    return plain.order if plain.period <= best.period * (1 + MARGIN) else best.order


@dataclass(frozen=True, slots=True)
class _Tried:
    """An order, and what it came to."""

    order: tuple[int, ...]
    period: int
    late: int  # by how much slices come too late, together
    waited: dict[int, int]

    def key(self) -> tuple[int, int]:
        """Return what the better order has less of."""
        return self.period, self.late


def _tried(model: Model, order: tuple[int, ...], seen: dict[tuple[int, ...], _Tried]) -> _Tried:
    if order not in seen:
        done = Simulation(model, order)
        row = done.rows[-1]
        due = [row.period + row.stretches[place] for place in model.first_need]
        late = sum(max(0, end - limit) for end, limit in zip(row.end, due, strict=True))
        seen[order] = _Tried(order, done.period, late, row.waited)
    return seen[order]


def _improved(
    model: Model, best: _Tried, seen: dict[tuple[int, ...], _Tried], limit: int
) -> _Tried | None:
    """Return a better neighbour of ``best``; None if there is none, or enough were tried."""
    for order in _neighbours(model, best):
        if order in seen:
            continue
        if len(seen) >= limit:
            return None
        tried = _tried(model, order, seen)
        if tried.key() < best.key():
            return tried
    return None


def _neighbours(model: Model, best: _Tried) -> Iterator[tuple[int, ...]]:
    """Move what is waited for most before its predecessors; then move any, near before far."""
    order = best.order
    kinds = [
        (model.final_in[s], model.first_need[s], model.wire[s], model.update[s]) for s in order
    ]
    for s, _ in sorted(best.waited.items(), key=itemgetter(1), reverse=True):
        place = order.index(s)
        # In front of one slice that differs, of all that are like it, or of all that come
        # before: moves among equal slices would change nothing.
        runs = [i for i in range(place) if i == 0 or kinds[i] != kinds[i - 1]]
        before = [i for i in range(place) if kinds[i] != kinds[place]]
        for target in dict.fromkeys((*before[-1:], *runs[:-3:-1], *runs[:1])):
            yield (*order[:target], s, *order[target:place], *order[place + 1 :])
    for span in range(1, len(order)):
        for i in range(len(order) - span):
            if kinds[i] != kinds[i + span]:
                first, *between, last = order[i : i + span + 1]
                yield (*order[:i], last, first, *between, *order[i + span + 1 :])
                yield (*order[:i], *between, last, first, *order[i + span + 1 :])


def lower_bound(step: Step, link: Link, lag: int = 1) -> float:
    """Return a time of a step, in s, below which no order can be.

    It is the largest of the time of all computation with what the link takes of it, the time
    of all messages, and, for each set of slices that become final at or after some stretch r
    and are read first at or before some stretch n: the time to send the set, the update of its
    last, and the stretches from n to r, which come after that and before the set of the next
    step.

    Parameters
    ----------
    step : Step
    link : Link
    lag : {1, 0}
        See `simulate`.
    """
    return _bound(compiled(step, link, lag)) / 1e9


def _bound(model: Model) -> int:
    gap = 0 if model.in_flight > 1 else model.latency
    bound = max(model.compute + sum(model.cpu), sum(model.wire) + gap * len(model.wire))
    sums = [0, *accumulate(model.work)]
    by_need = sorted(range(len(model.wire)), key=model.first_need.__getitem__)
    for r in sorted(set(model.final_in)):
        sent, count, update = 0, 0, None
        for s in by_need:
            if model.final_in[s] < r:
                continue
            sent, count = sent + model.wire[s], count + 1
            update = model.update[s] if update is None else min(update, model.update[s])
            rest = max(0, sums[r + 1] - sums[model.first_need[s]])
            chain = sent + gap * (count - 1) + model.latency + update + rest
            bound = max(bound, chain)
    return bound


def without_overlap(step: Step, link: Link) -> float:
    """Return the time of a step, in s, that computes, then sends one slice after another."""
    model = compiled(step, link)
    return (model.compute + sum(model.wire) + model.latency * len(model.wire)) / 1e9
