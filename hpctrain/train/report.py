"""What a run tells: lines on rank 0, records in metrics.jsonl."""

from collections.abc import Mapping
from time import perf_counter
from typing import Any

import numpy as np

from hpctrain.comm.world import World
from hpctrain.parallel.data_parallel import DataParallel
from hpctrain.parallel.pipeline import Pipeline
from hpctrain.parallel.served_parallel import ServedParallel
from hpctrain.parallel.work import StepResult
from hpctrain.train.console import Console, Progress
from hpctrain.train.metrics import RecordWriter
from hpctrain.train.position import Position

__all__ = ["Report"]


class Report:
    """Collects timings on every rank and lets rank 0 speak.

    Parameters
    ----------
    world : World
    console : Console
    total : int
        Steps to be done in all.
    records : RecordWriter or None
        Rank 0's metrics file.
    together : bool
        Whether the ranks are in step, so that they can compare their times.
    """

    def __init__(
        self,
        world: World,
        console: Console,
        total: int,
        records: RecordWriter | None = None,
        together: bool = True,
    ) -> None:
        self._together = together and world.size > 1
        self._world = world
        self._console = console
        self._total = total
        self._records = records
        self._data_s = 0.0
        self._since = perf_counter()
        self._started = self._since
        self._first = self._told = 0  # step where the run begins; deaths told
        self._last = Position()

    def begin(self, at: Position) -> None:
        """Note where the run begins."""
        self._first = at.step
        self._last = Position(**at.plain())
        self._since = self._started = perf_counter()

    def waited(self, seconds: float) -> None:
        """Note that this rank stood still for data."""
        self._data_s += seconds

    def step(self, at: Position, result: StepResult, step: DataParallel) -> None:
        """Report on the steps since the last report; collective if the ranks are in step."""
        now = perf_counter()
        busy_s, exposed_s = step.meter.take()
        mine = np.array([busy_s, exposed_s.sum(), self._data_s, now - self._since])
        rows = mine[None]
        if self._together:
            rows = np.empty((self._world.size, len(mine)))
            self._world.control.allgather(mine, rows)
        count = at.count - self._last.count
        values = self._bubble(step, result) if isinstance(step, Pipeline) else {}
        if count:  # else all steps were skipped
            values["loss"] = (at.loss_sum - self._last.loss_sum) / count
        if count and step.objective.correct is not None:
            values["acc"] = (at.correct - self._last.correct) / count
        steps = max(at.step - self._last.step, 1)
        self._tell(at, values, count, rows, step.schedule.lr(result.step), exposed_s / steps)
        self._data_s = 0.0
        self._since = now
        self._last = Position(**at.plain())

    def _bubble(self, step: Pipeline, result: StepResult) -> dict[str, float]:
        """Return the time in which stages stand still, and what their times let expect."""
        found = step.bubble(result.step)
        expected = 0.0 if self._world.rank else found.expected()
        return {"bubble": found.share, "expected": expected}

    def _tell(
        self,
        at: Position,
        values: dict[str, float],
        count: int,
        rows: Any,
        lr: float,
        exposed_s: np.ndarray,
    ) -> None:
        if self._world.rank:
            return
        busy, _, _, wall = rows.T
        seconds = float(wall.max())
        # A wait that began before the last report counts as a whole when it ends.
        waits = np.minimum(rows[:, 1:3] / wall[:, None], 1).mean(axis=0)
        slowest = int(busy.argmax())
        lag = float(busy.max() / max(np.median(busy), 1e-9) - 1)
        pace = (perf_counter() - self._started) / max(at.step - self._first, 1)
        progress = Progress(
            epoch=at.epoch + 1,
            step=at.step,
            steps=self._total,
            values=values,
            rate=count / max(seconds, 1e-9),
            slowest_rank=slowest if self._together else -1,
            slowest_host=self._world.host if len(self._world.hosts) == 1 else "",
            slowest_lag=lag,
            data=float(waits[1]),
            comm=float(waits[0]),
            comm_slice=_worst(exposed_s),
            left_s=pace * (self._total - at.step),
        )
        self._console.progress(progress)
        self._record(
            "step", at, values, lr=lr, samples_per_s=progress.rate, data=progress.data,
            comm=progress.comm, slowest_rank=slowest, slowest_lag=lag,
            # Of rank 0: mean of a step, by slice, then what no slice is known for.
            exposed_ms=[round(s * 1e3, 3) for s in exposed_s.tolist()],
        )  # fmt: skip

    def skipped(self, at: Position, result: StepResult) -> None:
        """Say which ranks made a step skip; collective."""
        flags = np.empty(self._world.size, np.uint8)
        self._world.control.allgather(np.array([result.mine], np.uint8), flags)
        if self._world.rank:
            return
        ranks = [int(rank) for rank in flags.nonzero()[0]]
        scales = result.scale, result.next_scale
        change = f" (loss scale {scales[0]:.9g} -> {scales[1]:.9g})"
        self._console.line(f"step {at.step} skipped: {_whose(ranks)} is not finite{change}")
        self._record("skip", at, {}, ranks=ranks, loss_scale=scales[1])

    def losses(self, at: Position, step: DataParallel) -> None:
        """Say which ranks have died since the last call, on the rank that speaks."""
        if self._world.rank or not isinstance(step, ServedParallel):
            return
        trade = step.trade
        trade.losses.news()
        for rank in trade.losses.ranks[self._told :]:
            self._told += 1
            left = trade.post.size - trade.terms.servers - self._told
            self._console.line(
                f"{trade.losses.name(rank)} has died, the other workers ({left}) go on; its "
                f"records are theirs when epoch {at.epoch + 1} is over ({self._told} of "
                f"{trade.losses.tolerate} deaths tolerated)"
            )
            self._record("death", at, {}, rank=rank)

    def epoch(self, at: Position, values: Mapping[str, float], step: DataParallel) -> None:
        """Report on a whole epoch and its evaluation."""
        if self._world.rank == 0:
            shown = " ".join(f"{n.replace('_', ' ')} {v:.4f}" for n, v in values.items())
            self._console.line(f"epoch {at.epoch + 1} done: {shown}")
            self._record("epoch", at, values)
            if isinstance(step, ServedParallel):
                self._servers(at, step.trade.ask("figures"))
        step.meter.take()
        self._data_s = 0.0
        self._since = perf_counter()
        self._last = Position(step=at.step)

    def _servers(self, at: Position, figures: list[dict[str, Any]]) -> None:
        """Tell how busy the servers were, and how late what they got."""
        for server, found in enumerate(figures):
            late = found["late"]
            pushes = sum(times for _, times in late)
            line = (
                f"server {server}: busy {found['busy']:.0%}, queue {found['queue']:.1f} "
                f"(at most {found['longest']})"
            )
            if pushes:
                shares = ", ".join(f"{by}: {times / pushes:.0%}" for by, times in late[:8])
                line += f", updates between a pull and its push: {shares}"
            for rank, times in found["skipped"]:
                line += f", {times} gradient(s) of rank {rank} left out, not finite"
            self._console.line(line)
            if self._records is not None:
                self._records.write(
                    {"kind": "server", "epoch": at.epoch + 1, "step": at.step, "server": server}
                    | found
                )

    def _record(
        self, kind: str, at: Position, values: Mapping[str, float], **more: Any
    ) -> None:
        if self._records is not None:
            self._records.write(
                {"kind": kind, "epoch": at.epoch + 1, "step": at.step, **values, **more}
            )


def _whose(ranks: list[int]) -> str:
    """Return whose gradient it is."""
    if not ranks:
        return "the sum of the gradients"
    if len(ranks) == 1:
        return f"the gradient of rank {ranks[0]}"
    return f"the gradient of each of ranks {', '.join(map(str, ranks))}"


def _worst(exposed_s: np.ndarray) -> int:
    """Return the slice that rank 0 waited for most, -1 if it is hardly worth a word."""
    slices = exposed_s[:-1]
    if len(slices) < 2 or slices.max() < 0.2 * exposed_s.sum() or not exposed_s.sum():
        return -1
    return int(slices.argmax())
