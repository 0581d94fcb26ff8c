"""How many updates a server has made, and how many of them its workers know."""

from collections.abc import Sequence

__all__ = ["Counts"]


class Counts:
    """Counts updates by slice.

    Parameters
    ----------
    slices : int
        What concerns one slice is counted by one thread at a time.
    workers : sequence of int

    Examples
    --------
    >>> counts = Counts(1, [1, 2])
    >>> counts.heard(0, 2)
    >>> counts.count(0)
    >>> counts.late(0, 2), counts.made(0)
    (1, 1)
    """

    def __init__(self, slices: int, workers: Sequence[int]) -> None:
        self._slices, self._workers = slices, workers
        # Updates before the optimizer's state was made: of all slices, or of each.
        self._before: int | None = 0
        self._made = [0] * slices
        self.start(0)

    def start(self, updates: int) -> None:
        """Go on after so many updates, all of which the workers know."""
        self._updates = [updates] * self._slices
        self._seen = [dict.fromkeys(self._workers, updates) for _ in range(self._slices)]

    def begin_anew(self) -> None:
        """Note that the optimizer's state is new."""
        self._before, self._made = None, list(self._updates)

    def of_state(self, updates: int) -> int:
        """Return how many of the updates so far the optimizer's state has seen, in step."""
        if self._before is None:
            self._before = updates
        return updates - self._before

    def made(self, index: int) -> int:
        """Return how many updates of a slice the optimizer's state has seen, out of step."""
        return self._updates[index] - self._made[index]

    def of_each(self) -> list[int]:
        """Return by slice how many updates the state has seen for each worker."""
        return [self.made(index) // len(self._workers) for index in range(self._slices)]

    def count(self, index: int) -> None:
        """Count an update out of step."""
        self._updates[index] += 1

    def heard(self, index: int, worker: int) -> None:
        """Note that a worker gets a slice as it is now."""
        self._seen[index][worker] = self._updates[index]

    def late(self, index: int, worker: int) -> int:
        """Return how many updates of a slice were made since a worker has got it."""
        return self._updates[index] - self._seen[index][worker]
