"""What a run says while it runs: a live bar on a terminal, plain lines anywhere else."""

import math
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, TextIO

__all__ = ["Console", "Progress", "duration"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Where a run is, over all ranks.

    Attributes
    ----------
    epoch : int
        From 1.
    step, steps : int
        Steps done and to do; the bar shows their ratio.
    values : mapping of str to float
        Loss and metrics, in the order in which they are shown.
    rate : float
        Samples per second of all ranks together.
    slowest_rank, slowest_host, slowest_lag : int, str, float
        The rank that computes longest, and by what share longer than the middle one.
    data, comm : float
        Shares of the time spent waiting for data and for other ranks.
    comm_slice : int
        The slice of the gradient that is waited for most, -1 if none stands out.
    left_s : float
        Seconds to the end; NaN if unknown.
    """

    epoch: int
    step: int
    steps: int
    values: Mapping[str, float] = field(default_factory=dict)
    rate: float = math.nan
    slowest_rank: int = -1
    slowest_host: str = ""
    slowest_lag: float = 0.0
    data: float = math.nan
    comm: float = math.nan
    comm_slice: int = -1
    left_s: float = math.nan

    def __str__(self) -> str:
        parts = [
            f"epoch {self.epoch} step {self.step}/{self.steps}",
            *map(_value, self.values.items()),
        ]
        if math.isfinite(self.rate):
            parts.append(f"{self.rate:,.0f} samples/s")
        if self.slowest_rank >= 0:
            host = f" @ {self.slowest_host}" if self.slowest_host else ""
            parts.append(f"slowest rank {self.slowest_rank}{host} {self.slowest_lag:+.0%}")
        parts += [
            f"{name} {share:.0%}"
            for name, share in (("data", self.data), ("comm", self.comm))
            if math.isfinite(share)
        ]
        if self.comm_slice >= 0 and self.comm >= 0.01:
            parts[-1] += f" (most for slice {self.comm_slice})"
        if math.isfinite(self.left_s):
            parts.append(f"ETA {duration(self.left_s)}")
        return " ".join(parts).replace("%", " %")


def _value(item: tuple[str, float]) -> str:
    """Write four figures, in a form that also shows 1e-7 and NaN for what they are."""
    name, value = item
    short = f"{value:.4f}" if 1e-3 <= abs(value) < 1e4 or value == 0 else f"{value:.3e}"
    return f"{name} {short if math.isfinite(value) else value}"


def duration(seconds: float) -> str:
    """Return a time as ``0:42``, ``1:02:03`` or ``2d 3:04:05``."""
    minutes, s = divmod(round(seconds), 60)
    hours, m = divmod(minutes, 60)
    days, h = divmod(hours, 24)
    if not hours:
        return f"{m}:{s:02d}"
    return f"{f'{days}d ' if days else ''}{h}:{m:02d}:{s:02d}"


class Console:
    """The voice of a run; ranks other than 0 are silent.

    Parameters
    ----------
    rank : int
    stream : text stream, optional
        Default: the standard output.
    tty : bool, optional
        Whether to draw a live bar.  Default: if the stream is a terminal that can move its
        cursor, and ``NO_COLOR`` is not set.
    log : path, optional
        A file to which every line goes as well.
    """

    def __init__(
        self,
        rank: int = 0,
        stream: TextIO | None = None,
        tty: bool | None = None,
        log: Path | None = None,
    ) -> None:
        self._speaks = rank == 0
        self._stream = stream or sys.stdout
        self._log = open(log, "a", buffering=1) if log and self._speaks else None  # noqa: SIM115
        live = _can_draw(self._stream) if tty is None else tty
        self._bar = _Bar(self._stream) if live and self._speaks else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Take the bar away and close the log."""
        if self._bar is not None:
            self._bar.stop()
        if self._log is not None:
            self._log.close()
        self._bar = self._log = None

    def line(self, text: str) -> None:
        """Say something; on a terminal it scrolls by above the bar."""
        self._record(text)
        if self._speaks and self._bar is not None:
            self._bar.above(text)
        elif self._speaks:
            # In one piece, so that lines of other processes come before or after it.
            self._stream.write(f"{text}\n")
            self._stream.flush()

    def progress(self, progress: Progress) -> None:
        """Say where the run is."""
        if self._speaks and self._bar is not None:
            self._record(str(progress))
            self._bar.update(progress)
        else:
            self.line(str(progress))

    def facts(self, title: str, facts: Mapping[str, Any]) -> None:
        """Say a title and a table of names and values: what starts, or what came out.

        Whole numbers get thousands separators; None leaves a fact out.
        """
        shown = {name: fact for name, fact in facts.items() if fact is not None}
        width = max(map(len, shown), default=0)
        self.line(title)
        for name, fact in shown.items():
            text = f"{fact:,}" if type(fact) is int else str(fact)
            self.line(f"  {name:<{width}}  {text}")

    def _record(self, text: str) -> None:
        if self._log is not None:
            self._log.write(f"{text}\n")


def _can_draw(stream: TextIO) -> bool:
    if "OMPI_COMM_WORLD_SIZE" in os.environ:
        return False  # Open MPI gives ranks a terminal of its own, wherever its output goes
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM", "dumb") == "dumb"
    return stream.isatty() and not plain


class _Bar:
    """A bar of Rich, drawn when there is news and by no thread of its own."""

    def __init__(self, stream: TextIO) -> None:
        # Loaded here: it takes a tenth of a second, and only one rank on a terminal needs it.
        from rich.console import Console as Screen
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as Bars

        self._bars = Bars(
            BarColumn(bar_width=20),
            TextColumn("{task.description}", markup=False),
            console=Screen(file=stream, force_terminal=True, highlight=False),
            auto_refresh=False,
            transient=True,
        )
        self._task = self._bars.add_task("", total=None)
        self._bars.start()

    def update(self, progress: Progress) -> None:
        self._bars.update(
            self._task,
            completed=progress.step,
            total=progress.steps,
            description=str(progress),
            refresh=True,
        )

    def above(self, text: str) -> None:
        self._bars.console.print(text, markup=False, soft_wrap=True)
        self._bars.refresh()

    def stop(self) -> None:
        self._bars.stop()
