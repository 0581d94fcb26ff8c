"""Batches that are ready when training asks for them.

With an engine the next batches are read on its ``io`` lane while the present one is used:

    step         t            t + 1          t + 2
    training     uses  t      uses  t+1      uses  t+2
    io lane      reads t+2    reads t+3      reads t+4        (depth 2)
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

from hpctrain.engine import Engine, Variable
from hpctrain.errors import ConfigError, DataError, EngineError
from hpctrain.io.records import Records
from hpctrain.io.sampler import EpochPlan, Plan, part

__all__ = ["Batch", "Loader", "Transform"]

Arrays = dict[str, npt.NDArray[Any]]
Ids = npt.NDArray[np.int64]
Transform = Callable[[Mapping[str, npt.NDArray[Any]], Ids, int], None]


@dataclass(eq=False, slots=True)
class _Slot:
    """Buffers for one batch, and the variable that stands for them in the engine."""

    buffers: Arrays
    variable: Variable | None


@dataclass(eq=False, slots=True)
class Batch:
    """The records of one global batch that this rank has.

    Attributes
    ----------
    inputs, targets : tuple of ndarray, shape (count, *field.shape)
        One per field of that role, on the host; views of buffers that are used again.
    ids : ndarray, shape (count,), int64
        Record numbers.
    count : int
        Records on this rank; may be 0.
    global_count : int
        Records on all ranks together.
    epoch, step : int
        The position of this batch; training goes on at ``step + 1``.
    variable : Variable or None
        Stands for the arrays in the engine: a task that reads them names it in ``reads``,
        and the buffers are not filled again before that task has run.
    row : int
        Place of the first record in the global batch.
    wait_seconds : float
        How long training stood still for this batch.
    """

    inputs: tuple[npt.NDArray[Any], ...]
    targets: tuple[npt.NDArray[Any], ...]
    ids: Ids
    global_count: int
    epoch: int
    step: int
    variable: Variable | None
    row: int = 0
    wait_seconds: float = 0.0
    _give_back: Callable[[], None] | None = field(default=None, repr=False)

    @property
    def count(self) -> int:
        """Records on this rank."""
        return len(self.ids)

    def release(self) -> None:
        """Let the buffers be filled again; tasks that are pushed already still read them."""
        if self._give_back is not None:
            self._give_back()
            self._give_back = None


class Loader:
    """Read the batches of a rank, some steps ahead.

    Parameters
    ----------
    records : Records
        Used by this loader only, while it iterates.
    plan : Plan
        The global batches.
    rank, size : int
        Among the ranks that share each batch (data parallelism, not the world).
    engine : Engine, optional
        Without one every batch is read when it is asked for.
    depth : int
        How many batches are read ahead.
    dtype : dtype
        Of floating-point and scaled fields; integers stay integers.
    transform : callable, optional
        ``transform(arrays, ids, epoch)`` changes the arrays of a batch in place; by record
        number, so that it does not depend on the number of ranks (see `augment`).
    unit : int
        Records of a batch that go to one rank together (see `sampler.part`).
    hold : int, optional
        How many further batches may be asked for before the buffers of one are filled again;
        ``depth`` if it is not given. Without an engine nothing else keeps them.

    Attributes
    ----------
    buffer_sets : int
        How many batches' buffers have been allocated.

    Notes
    -----
    A batch is valid until its ``release()``, or until ``hold`` further batches have been
    asked for, and then until the tasks pushed so far that read it have run.  There are
    ``depth + 1`` sets of buffers if every batch is released before the next is asked for, and
    at most ``depth + hold + 1`` otherwise.
    """

    def __init__(  # noqa: PLR0913 - each is a choice of the run
        self,
        records: Records,
        plan: Plan,
        rank: int = 0,
        size: int = 1,
        engine: Engine | None = None,
        depth: int = 2,
        dtype: npt.DTypeLike = np.float32,
        transform: Transform | None = None,
        unit: int = 1,
        hold: int | None = None,
    ) -> None:
        if plan.n != records.n:
            raise ConfigError(
                f"loader: the plan is for {plan.n} records, the data hold {records.n}"
            )
        if depth < 1:
            raise ConfigError(f"loader: got depth {depth}, needed at least 1")
        self.records = records
        self.plan = plan
        self.rank = rank
        self.size = size
        self.depth = depth
        self.hold = depth if hold is None else hold
        self.unit = unit
        self._capacity = part(min(plan.batch, max(plan.n, 1)), 0, size, unit).stop
        part(0, rank, size)  # refuses a rank outside the group
        self._engine = engine
        self.dtype = dtype
        self._transform = transform
        # Files and caches serve one task at a time: every read writes this variable.
        self._files = engine.variable("records") if engine else None
        self._free: list[_Slot] = []
        self.buffer_sets = 0

    def share(self, rank: int, size: int) -> None:
        """Take another part of each batch, from the next epoch on; between two epochs."""
        part(0, rank, size)  # refuses a rank outside the group
        self.rank, self.size = rank, size
        self._capacity = part(
            min(self.plan.batch, max(self.plan.n, 1)), 0, size, self.unit
        ).stop
        self._free.clear()  # these may be too small

    def epoch(self, epoch: int, step: int = 0) -> Iterator[Batch]:
        """Yield the batches of an epoch from ``step`` on.

        Raises
        ------
        DataError
            If a file is damaged, at the batch that needs it.
        """
        batches = self.plan.epoch(epoch)
        ahead: deque[tuple[_Slot, Batch]] = deque()
        held: deque[Batch] = deque()
        following = step
        depth = self.depth if self._engine else 0
        try:
            while ahead or following < batches.steps:
                while len(held) > self.hold:
                    held.popleft().release()
                while len(ahead) <= depth and following < batches.steps:
                    ahead.append(self._start(batches, following))
                    following += 1
                # The oldest is handed out; `depth` more are on their way.
                batch = ahead.popleft()[1]
                self._wait(batch)
                held.append(batch)
                yield batch
        finally:
            for slot, _ in ahead:
                self._free.append(slot)
            for batch in held:
                batch.release()

    def _start(self, batches: EpochPlan, step: int) -> tuple[_Slot, Batch]:
        """Begin to read a batch into free buffers."""
        ids, total = batches.batch(step, self.rank, self.size, self.unit)
        slot = self._free.pop() if self._free else self._new_slot()
        arrays = {name: array[: len(ids)] for name, array in slot.buffers.items()}
        batch = Batch(
            tuple(arrays[field.name] for field in self.records.inputs),
            tuple(arrays[field.name] for field in self.records.targets),
            ids,
            total,
            batches.epoch,
            step,
            slot.variable,
            part(total, self.rank, self.size, self.unit).start,
        )
        batch._give_back = partial(self._free.append, slot)
        fill = partial(self._fill, arrays, ids, batches.epoch)
        if self._engine is None or self._files is None or slot.variable is None:
            start = perf_counter()
            fill()
            batch.wait_seconds = perf_counter() - start
        else:
            writes = (self._files, slot.variable)
            name = f"read epoch {batches.epoch} step {step}"
            self._engine.push(fill, writes=writes, lane="io", name=name)
        return slot, batch

    def _new_slot(self) -> _Slot:
        self.buffer_sets += 1
        variable = self._engine.variable(f"batch {self.buffer_sets}") if self._engine else None
        return _Slot(self.records.buffers(self._capacity, self.dtype), variable)

    def _fill(self, arrays: Arrays, ids: Ids, epoch: int) -> None:
        self.records.read(ids, arrays)
        if self._transform is not None and len(ids):
            self._transform(arrays, ids, epoch)

    def _wait(self, batch: Batch) -> None:
        """Wait until the batch is read; the time counts as time that training stood still."""
        if self._engine is None or batch.variable is None:
            return
        start = perf_counter()
        failure: BaseException | None = None
        try:
            self._engine.wait(batch.variable)
        except EngineError as error:
            # Damaged data are the data's fault, not the engine's.
            failure = error.__cause__ if isinstance(error.__cause__, DataError) else error
        if failure is not None:
            raise failure
        batch.wait_seconds = perf_counter() - start
