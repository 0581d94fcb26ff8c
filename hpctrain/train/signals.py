"""Reasons to stop early: a signal, a file, a time limit.

Nothing is done when they come: they raise a flag that the training loop reads between two
steps and agrees on with the other ranks.  The loop then saves and leaves with ``EXIT_STOPPED``,
which tells a job script to run the same command again.
"""

import re
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any, Self

from hpctrain.errors import ConfigError

__all__ = ["EXIT_STOPPED", "StopFlag", "time_left"]

EXIT_STOPPED = 75  # EX_TEMPFAIL of sysexits.h: try again later
_SIGNALS = (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT)
_POLL_S = 1.0


class StopFlag:
    """Whether this rank has been asked to stop.

    Parameters
    ----------
    stop_file : path, optional
        Stop when this file appears; it is then deleted.  For one rank only, lest the others
        ask the file system in vain.
    limit_s : float, optional
        Stop this many seconds from now.

    Notes
    -----
    A context manager: inside, ``SIGUSR1``, ``SIGTERM`` and ``SIGINT`` raise the flag; after the
    first ``SIGINT`` the next one ends the process at once, as a shell shows with status 130.
    Outside the main thread, as in a notebook's worker, signals are left alone.
    """

    def __init__(self, stop_file: Path | None = None, limit_s: float | None = None) -> None:
        self.reason = ""
        self._stop_file = stop_file
        self._deadline = None if limit_s is None else time.monotonic() + limit_s
        self._next_poll = 0.0
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        for number in _SIGNALS:
            try:
                self._before[number] = signal.signal(number, self._raise_flag)
            except ValueError:  # not the main thread
                break
        return self

    def __exit__(self, *_: object) -> None:
        for number, before in self._before.items():
            # None stands for a handler that was not installed from Python.
            signal.signal(number, signal.SIG_DFL if before is None else before)
        self._before.clear()

    def _raise_flag(self, number: int, _: FrameType | None) -> None:
        self.reason = self.reason or f"signal {signal.Signals(number).name}"
        if number == signal.SIGINT:
            # The system's own handling also ends a process that waits inside a library.
            signal.signal(signal.SIGINT, signal.SIG_DFL)

    def requested(self) -> bool:
        """Return whether to stop; ``reason`` says why.  Costs a look at the clock."""
        now = time.monotonic()
        if not self.reason and self._deadline is not None and now >= self._deadline:
            self.reason = "time limit"
        if not self.reason and self._stop_file is not None and now >= self._next_poll:
            self._next_poll = now + _POLL_S
            if self._stop_file.exists():
                self._stop_file.unlink(missing_ok=True)
                self.reason = f"file {self._stop_file.name}"
        return bool(self.reason)


def time_left(text: str, environ: Mapping[str, str], margin_s: float = 60.0) -> float | None:
    """Return the seconds after which to stop, or None for no limit.

    Parameters
    ----------
    text : str
        Nothing; ``auto``; or a time as Slurm writes it: ``MINUTES``, ``MINUTES:SECONDS``,
        ``HOURS:MINUTES:SECONDS``, ``DAYS-HOURS``, ``DAYS-HOURS:MINUTES``,
        ``DAYS-HOURS:MINUTES:SECONDS``.
    environ : mapping
        For ``auto``: ``SLURM_JOB_END_TIME``, in seconds of the epoch, tells when the job ends
        (Slurm 23.02 and later); without it there is no limit.
    margin_s : float
        For ``auto``: how long before that end to stop, so that there is time to save.

    Raises
    ------
    ConfigError
        If the text is none of these.
    """
    if text == "auto":
        end = environ.get("SLURM_JOB_END_TIME", "")
        return max(0.0, int(end) - time.time() - margin_s) if end.isdigit() else None
    if not text:
        return None
    match = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d\d))?(?::(\d\d))?", text)
    if match is None:
        raise ConfigError(f'run.time_limit: got "{text}", needed a time such as 90 or 1:30:00')
    days, *fields = match.groups()
    numbers = [int(field) for field in fields if field is not None]
    if days is None and len(numbers) < 3:
        numbers.insert(0, 0)
    hours, minutes, seconds = [*numbers, 0, 0][:3]
    return float(((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds)
