"""Steps one behind the other, as a run makes them, and how long they take."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import median
from time import perf_counter, sleep

import numpy as np

from hpctrain.comm.group import Group
from hpctrain.parallel.data_parallel import DataParallel
from hpctrain.parallel.work import LAG, Work

__all__ = ["Pace", "pace", "straggler"]

WINDOW = 5  # steps in one sample of the time
TURN = 4  # steps for which a rank is the slow one, where all take turns


@dataclass(frozen=True, slots=True)
class Pace:
    """How steps went, on the slowest rank.

    Attributes
    ----------
    step_s : float
        Median over all runs of 5 steps of the time of one.
    exposed_s : float
        Mean time in which the compute lane waited for exchanges.
    uneven_s : float
        What of it the ranks waited for the one that computed longest in a step: not for
        messages, but for each other.
    loss : float
        Of the last step.
    rate : float
        Steps in a second of all ranks together, while all of them make some.
    """

    step_s: float
    exposed_s: float
    uneven_s: float
    loss: float
    rate: float


def straggler(who: str, seconds: float, group: Group) -> Callable[[int], float]:
    """Return how long this rank sleeps in a step, where one is slower than the others.

    Parameters
    ----------
    who : str
        ``RANK:FACTOR``, or ``turn:FACTOR`` if each rank is the slow one for four steps.
    seconds : float
        How long the others sleep.
    group : Group
    """
    rank, _, factor = who.partition(":")
    slow = seconds * float(factor)

    def sleeps(number: int) -> float:
        now = number // TURN % group.size if rank == "turn" else int(rank)
        return slow if now == group.rank else seconds

    return sleeps


def pace(
    step: DataParallel,
    part: Work,
    group: Group,
    steps: int,
    warm_up: int,
    sleeps: Callable[[int], float] | None = None,
) -> Pace:
    """Make steps on the same part of a batch; collective.

    Parameters
    ----------
    step : DataParallel
        Prepared for the shape of ``part``.
    part : Work
    group : Group
        All ranks.
    steps, warm_up : int
        Steps that count, after some that do not.
    sleeps : callable, optional
        From the number of a step to seconds for which this rank sleeps before it computes, as
        if a device worked for it.
    """
    pending: deque[int] = deque()
    group.barrier()
    begun = perf_counter()
    ends, meters, loss = [], [], 0.0
    for number in range(warm_up + steps + LAG):
        if number < warm_up + steps:
            if sleeps is not None:
                rest = partial(sleep, sleeps(number))
                step.engine.push(rest, writes=step.variables, name="sleep")
            pending.append(step.step(part))
        if number >= LAG:
            loss = step.result(pending.popleft()).loss
            ends.append(perf_counter())
            busy, exposed = step.meter.take()
            meters.append([busy, exposed.sum()])
    step.engine.wait_all()
    ends = ends[warm_up - 1 :]
    windows = [(b - a) / WINDOW for a, b in zip(ends, ends[WINDOW:], strict=False)]
    seconds = median(windows or [(ends[-1] - ends[0]) / steps])
    rows = np.empty((group.size, 1 + len(meters[warm_up:]), 2))
    group.allgather(np.array([[seconds, 0.0], *meters[warm_up:]]), rows)
    computed, waited = rows[:, 1:, 0], rows[:, 1:, 1].mean(axis=1)
    uneven = (computed.max(axis=0) - computed).mean(axis=1)
    worst = int(waited.argmax())
    return Pace(
        float(rows[:, 0, 0].max()),
        float(waited[worst]),
        float(min(waited[worst], uneven[worst])),
        loss,
        _rate(group, np.array(ends) - begun),
    )


def _rate(group: Group, ends: np.ndarray) -> float:
    """Return how many steps all ranks make in a second, from the times at which steps end."""
    every = np.empty((group.size, ends.size))
    group.allgather(ends, every)
    start, stop = every[:, 0].max(), every[:, -1].min()
    made = ((every > start) & (every <= stop)).sum()
    return float(made / (stop - start)) if stop > start else 0.0
