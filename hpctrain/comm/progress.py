"""How far this rank is: which exchanges it has started, which it waits for, where it stands.

What ranks tell each other when one of them waits too long; no MPI here.
"""

import sysconfig
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import monotonic
from types import FrameType
from typing import Any, Self

__all__ = ["CONTROL", "GRADIENT", "INSIDE", "Log", "State", "Wait", "collective", "place"]

GRADIENT, CONTROL, INSIDE = "gradient", "control", "inside"
"""The sequences of exchanges, the last one those inside a step's computation; each is started
in one order on all ranks."""

_ROOT = Path(__file__).parents[1]
_GROUP = str(Path(__file__).with_name("group.py"))
_SILENT = tuple(f"{_ROOT / name}/" for name in ("engine", "trace"))  # they wait for the others
_LIBRARY = (sysconfig.get_path("stdlib"), "<frozen")
_FRAMES = 3


@dataclass(slots=True)
class _Row:
    """An open exchange."""

    number: int
    name: str
    times: int
    """How often this one was started, of which this is the last."""
    since: float
    """When this rank began to wait for it; 0 if it does not."""


@dataclass(frozen=True, slots=True)
class Wait:
    """An exchange that has been started on a rank, is not complete, and is waited for.

    Attributes
    ----------
    sequence : str
        ``GRADIENT``, ``CONTROL``, ``INSIDE``, or one that only some ranks have.
    number : int
        Its place in the sequence, from 1, the same on all ranks.
    name : str
    seconds : float
        How long the rank has waited.
    """

    sequence: str
    number: int
    name: str
    seconds: float


@dataclass(frozen=True, slots=True)
class State:
    """What one rank says about itself.

    Attributes
    ----------
    started : dict of str to int
        Exchanges started so far, by sequence; without those that this rank has no part in.
    waits : list of Wait
        The oldest of each sequence.
    busy : dict of str to int
        The oldest exchange of each sequence that has been started, is not known to be complete,
        and is not waited for: this rank does something else first.
    told : dict of str to int
        The last exchange of each sequence that this rank has reported as stalled.
    doing : list of str
        What its threads do.
    """

    started: dict[str, int]
    waits: list[Wait] = field(default_factory=list)
    busy: dict[str, int] = field(default_factory=dict)
    told: dict[str, int] = field(default_factory=dict)
    doing: list[str] = field(default_factory=list)

    def plain(self) -> dict[str, Any]:
        """Return it in the types of JSON."""
        return asdict(self)

    @classmethod
    def of(cls, plain: dict[str, Any]) -> Self:
        """Return what `plain` was made of."""
        waits = [Wait(**wait) for wait in plain["waits"]]
        return cls(**{**plain, "waits": waits})

    def late(self, limit_s: float) -> list[Wait]:
        """Return what this rank has waited for longer than ``limit_s``."""
        return [wait for wait in self.waits if wait.seconds >= limit_s]


class Log:
    """The exchanges of one sequence of this rank: how many were started, and which are open.

    Parameters
    ----------
    sequence : str
        ``GRADIENT``, ``INSIDE``, or the name of one that only some ranks have.
    by_step : bool, optional
        Whether an exchange is named by its step, as those of ``GRADIENT`` are; else by its
        number in the sequence.

    Attributes
    ----------
    sequence : str
    by_step : bool
    first_step : int
        The step before the first exchange of a slice, if training goes on from a checkpoint.

    Notes
    -----
    One thread calls `posted`, the others may be called from any, without a lock. The first
    three cost less than a microsecond each.
    """

    def __init__(self, sequence: str = GRADIENT, by_step: bool | None = None) -> None:
        self.sequence = sequence
        self.by_step = sequence == GRADIENT if by_step is None else by_step
        self.first_step = 0
        self.started = 0
        self._times: dict[int, int] = {}
        self._open: dict[int, _Row] = {}

    def posted(self, key: int, name: str, waits: bool = True) -> None:
        """Note that the exchange ``key``, a slice, has been started on this rank.

        Parameters
        ----------
        key : int
            The same on every rank, and started once in each step.
        name : str
            For messages, such as ``slice 3 of 7 (conv2.weight)``.
        waits : bool
            Whether this rank waits for it from now on, or from `waiting` on.
        """
        self.started = number = self.started + 1
        self._times[key] = times = self._times.get(key, 0) + 1
        self._open[key] = _Row(number, name, times, monotonic() if waits else 0.0)

    def waiting(self, key: int) -> None:
        """Note that this rank now waits for an exchange; one that is not open is left alone."""
        row = self._open.get(key)
        if row is not None and not row.since:
            row.since = monotonic()  # in place: another thread may just close it

    def completed(self, key: int) -> None:
        """Note that it is complete here; one that is not open is left alone."""
        self._open.pop(key, None)

    def oldest(self, since: float = 0.0, now: float | None = None) -> Wait | None:
        """Return the first started of the exchanges that this rank waits for.

        Parameters
        ----------
        since, now : float, s
            Waiting before and after these moments of ``time.monotonic`` does not count.
        """
        rows = [row for row in self._open.copy().values() if row.since]
        if not rows:
            return None
        row = min(rows, key=lambda row: row.number)
        step = self.first_step + row.times
        count = f"step {step}" if self.by_step else f"message {row.number}"
        end = monotonic() if now is None else now
        seconds = end - max(row.since, since)
        return Wait(self.sequence, row.number, f"{count}, {row.name}", seconds)

    def busy(self) -> int | None:
        """Return the number of the first started exchange that this rank does not wait for."""
        rows = self._open.copy().values()
        return min((row.number for row in rows if not row.since), default=None)


def collective(frame: FrameType | None, group: object = None) -> str:
    """Return the collective of a group in which a thread is, and who called it; else nothing.

    Parameters
    ----------
    frame : frame
        The innermost of the thread.
    group : Group, optional
        The only one whose collectives count; any does if None.
    """
    found: FrameType | None = None
    for each in _outwards(frame):
        if each.f_code.co_filename == _GROUP:
            found = each
        elif found is not None:
            if group is not None and found.f_locals.get("self") is not group:
                return ""
            return f"{found.f_code.co_name} at {_where(each)}"
    return ""


def place(frame: FrameType | None) -> str:
    """Say where a thread is, in the code of hpctrain and its user.

    Returns
    -------
    str
        ``file:line function``, the innermost of each file, at most three, inside out.
    """
    found: dict[str, str] = {}
    for each in _outwards(frame):
        name = each.f_code.co_filename
        if _own(name):
            found.setdefault(name, _where(each))
    places = list(found.values())[:_FRAMES]
    return " < ".join(places) or ("unknown" if frame is None else _where(frame))


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _own(name: str) -> bool:
    """Tell whether a file belongs to hpctrain, without its engine, or to the user's program."""
    if name.startswith(f"{_ROOT}/"):
        return not name.startswith(_SILENT)
    return not name.startswith(_LIBRARY) and "/site-packages/" not in name


def _where(frame: FrameType) -> str:
    code = frame.f_code
    name = code.co_filename
    if name.startswith(f"{_ROOT}/"):
        name = name.removeprefix(f"{_ROOT.parent}/")
    return f"{name}:{frame.f_lineno} {code.co_name}"
