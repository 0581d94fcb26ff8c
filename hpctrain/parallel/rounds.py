"""When a server may go on: rounds that all workers have to fill, and clocks of those who run.

Pure bookkeeping by slice and worker; letters are opaque here, and come in any order.
"""

from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

from hpctrain.errors import CommError

__all__ = ["Clocks", "Release", "Rounds"]


class Rounds:
    """Rounds of a synchronous server: each closes when every worker has pushed once.

    Counted by sender: a second push of one worker belongs to the next round.

    Parameters
    ----------
    workers : sequence of int

    Examples
    --------
    >>> rounds = Rounds([1, 2])
    >>> rounds.push(0, 1, "a"), rounds.push(0, 1, "b"), rounds.push(0, 2, "c")
    (None, None, ['a', 'c'])
    """

    def __init__(self, workers: Sequence[int]) -> None:
        self._workers = tuple(workers)
        self._open: dict[int, dict[int, deque[Any]]] = {}

    def push(self, key: int, worker: int, letter: Any) -> list[Any] | None:
        """Take a push; return the letters of a round that it closes, in worker order."""
        queues = self._open.setdefault(key, {w: deque() for w in self._workers})
        if worker not in queues:
            raise CommError(f"server: got a push from rank {worker}, which is no worker")
        queues[worker].append(letter)
        if not all(queues.values()):
            return None
        return [queue.popleft() for queue in queues.values()]

    def holds(self, key: int, worker: int) -> bool:
        """Return whether a push of a worker waits for the others."""
        return bool(self._open.get(key, {}).get(worker))

    @property
    def idle(self) -> bool:
        """Whether no round is open."""
        return not any(any(queues.values()) for queues in self._open.values())


class Release(NamedTuple):
    """An answer that may leave."""

    worker: int
    version: int


class Clocks:
    """Clocks of workers that do not wait for each other, or not for long.

    Parameters
    ----------
    workers : sequence of int
    staleness : int or None
        The answer to a push of step r waits until every worker has pushed step r - staleness;
        None: it never waits.

    References
    ----------
    Ho et al., "More effective distributed ML via a stale synchronous parallel parameter
    server", NeurIPS 2013.

    Examples
    --------
    >>> clocks = Clocks([1, 2], staleness=1)
    >>> clocks.push(0, 1, 0)  # worker 2 has not made step 0, but may be one behind
    [Release(worker=1, version=0)]
    >>> clocks.push(0, 1, 1)
    []
    >>> clocks.push(0, 2, 0)
    [Release(worker=1, version=1), Release(worker=2, version=0)]
    """

    def __init__(self, workers: Sequence[int], staleness: int | None = None) -> None:
        self._workers = list(workers)
        self._staleness = staleness
        self._last: dict[int, dict[int, int]] = {}
        self._held: dict[int, list[Release]] = {}

    def push(self, key: int, worker: int, version: int) -> list[Release]:
        """Take note of a push; return the answers that may leave now."""
        # All begin at one step: whoever comes first tells which.
        last = self._last.setdefault(key, dict.fromkeys(self._workers, version - 1))
        if worker not in last:
            raise CommError(f"server: got a push from rank {worker}, which is no worker")
        last[worker] = version
        self._held.setdefault(key, []).append(Release(worker, version))
        return self._released(key)

    def forget(self, worker: int) -> dict[int, list[Release]]:
        """Wait for a worker no longer; return by slice the answers that may leave for that."""
        self._workers.remove(worker)
        found = {}
        for key, last in self._last.items():
            last.pop(worker)
            held = [answer for answer in self._held[key] if answer.worker != worker]
            self._held[key] = held
            released = self._released(key) if last else []
            if released:
                found[key] = released
        return found

    def holds(self, key: int, worker: int) -> bool:
        """Return whether the answer to a worker is held back."""
        return any(answer.worker == worker for answer in self._held.get(key, ()))

    def _released(self, key: int) -> list[Release]:
        """Take out the answers that need not wait any longer."""
        last, held = self._last[key], self._held[key]
        if self._staleness is None:
            self._held[key] = []
            return held
        bound = min(last.values()) + self._staleness
        self._held[key] = [answer for answer in held if answer.version > bound]
        return [answer for answer in held if answer.version <= bound]

    @property
    def newest(self) -> int:
        """The last step that any worker has pushed; -1 before the first."""
        return max((max(last.values()) for last in self._last.values()), default=-1)

    @property
    def idle(self) -> bool:
        """Whether no answer is held back."""
        return not any(self._held.values())

    def reset(self) -> None:
        """Forget all clocks: the workers begin at another step.

        Raises
        ------
        CommError
            If an answer is held back: it would never leave.
        """
        if not self.idle:
            held = sorted({each.worker for held in self._held.values() for each in held})
            raise CommError(
                f"server: told to start while workers {held} wait for an answer, needed no "
                "step under way; start on all workers, and go on when all have"
            )
        self._last.clear()
