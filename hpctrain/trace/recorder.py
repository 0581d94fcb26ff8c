"""Spans and counters of one rank, kept in memory, the newest ones."""

import itertools
import json
import math
from collections import deque
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from numbers import Integral, Real
from time import perf_counter_ns
from typing import Any, Literal, TypedDict, cast

from hpctrain.errors import ConfigError

__all__ = ["Counter", "Event", "Recorder", "Span", "load"]


class Span(TypedDict):
    """A piece of work on a lane, from ``start_ns`` to ``end_ns``."""

    kind: Literal["span"]
    lane: str
    name: str
    start_ns: int
    end_ns: int
    args: dict[str, Any]


class Counter(TypedDict):
    """The value of a counter from ``t_ns`` on."""

    kind: Literal["counter"]
    name: str
    value: float
    t_ns: int


Event = Span | Counter


class Recorder:
    """Record spans and counters of one rank.

    Parameters
    ----------
    capacity : int
        How many events are kept; beyond that the oldest go.  One takes some 300 bytes.
    enabled : bool
        Whether anything is recorded; may be changed at any time through the attribute.

    Raises
    ------
    ConfigError
        If the capacity is below 1.

    Notes
    -----
    May be used from any thread without a lock: appending to a bounded deque is atomic.  A
    disabled recorder costs one test per call.
    """

    def __init__(self, capacity: int = 100_000, enabled: bool = True) -> None:
        if capacity < 1:
            raise ConfigError(f"trace: got capacity {capacity}, needed at least 1")
        self.enabled = enabled
        self._records: deque[tuple[int, Event]] = deque(maxlen=capacity)
        self._numbers = itertools.count(1)

    def span(self, lane: str, name: str, start_ns: int, end_ns: int, **args: Any) -> None:
        """Record a piece of work.

        Parameters
        ----------
        lane : str
            Track on which it is shown; spans of one track lie apart or inside each other.
        name : str
            What is shown on it.
        start_ns, end_ns : int
            Times of ``time.perf_counter_ns``.
        **args
            Shown when it is selected; what JSON does not know is kept as text.
        """
        if self.enabled:
            span = Span(
                kind="span", lane=lane, name=name, start_ns=start_ns, end_ns=end_ns, args=args
            )
            self._records.append((next(self._numbers), span))

    def counter(self, name: str, value: float, t_ns: int | None = None) -> None:
        """Record the value of a counter, by default at this moment."""
        if self.enabled:
            t_ns = perf_counter_ns() if t_ns is None else t_ns
            counter = Counter(kind="counter", name=name, value=float(value), t_ns=t_ns)
            self._records.append((next(self._numbers), counter))

    def measure(self, lane: str, name: str, **args: Any) -> AbstractContextManager[object]:
        """Return a context manager that records its block as a span, also if that raises."""
        if not self.enabled:
            return nullcontext()
        return _Measure(self, lane, name, args)

    def events(self) -> list[Event]:
        """Return what is kept, in the order of recording, as dictionaries fit for JSON."""
        events = [event for _, event in self._records.copy()]
        return [
            event if event["kind"] == "counter" else {**event, "args": _plain(event["args"])}
            for event in events
        ]

    @property
    def dropped(self) -> int:
        """How many events had to go because there were more than ``capacity``."""
        records = self._records.copy()
        return max((number for number, _ in records), default=0) - len(records)

    def clear(self) -> None:
        """Forget all events, and the count of dropped ones."""
        self._records.clear()
        self._numbers = itertools.count(1)

    def dump(self) -> bytes:
        """Return all events as JSON, for ``load`` on another rank."""
        return json.dumps(self.events(), separators=(",", ":")).encode()


class _Measure:
    """The block of ``Recorder.measure``."""

    __slots__ = ("_args", "_lane", "_name", "_recorder", "_start")

    def __init__(self, recorder: Recorder, lane: str, name: str, args: dict[str, Any]) -> None:
        self._recorder = recorder
        self._lane = lane
        self._name = name
        self._args = args

    def __enter__(self) -> None:
        self._start = perf_counter_ns()

    def __exit__(self, *_: object) -> None:
        end = perf_counter_ns()
        self._recorder.span(self._lane, self._name, self._start, end, **self._args)


def _plain(value: Any) -> Any:
    """Return ``value`` in the types of JSON: an odd argument must not cost the whole trace."""
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, Integral):  # NumPy's scalars too, which are registered there
        return int(value)
    if isinstance(value, Real) and math.isfinite(value):
        return float(value)
    return str(value)


def load(data: bytes) -> list[Event]:
    """Return the events of a ``Recorder.dump``."""
    return cast(list[Event], json.loads(data))
