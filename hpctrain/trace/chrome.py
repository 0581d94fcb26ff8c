"""The trace of all ranks in the format of Chrome's tracing tools.

Format: "Trace Event Format", Google (2016): ``X`` complete spans, ``C`` counters, ``i``
instants, ``M`` metadata; times in µs.  A process stands for a rank, a thread for a track.
"""

import gzip
import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hpctrain.trace.recorder import Counter, Event, Span

__all__ = ["chrome_trace", "write_chrome_trace"]

Row = dict[str, Any]


def chrome_trace(
    per_rank: Mapping[int, Sequence[Event]],
    offsets: Mapping[int, int],
    hosts: Mapping[int, str],
) -> Row:
    """Return the events of all ranks as one Chrome trace.

    Parameters
    ----------
    per_rank : mapping of rank to list of Event
        What ``Recorder.events`` or ``load`` returned.
    offsets : mapping of rank to int, ns
        How far the rank's clock is ahead of rank 0's; a missing rank has the same clock, as
        all ranks of one host do.
    hosts : mapping of rank to str
        For the titles; may miss ranks.

    Returns
    -------
    dict
        To be written as JSON.  All times are µs on rank 0's clock.  A track has the same
        number on every rank.

    Notes
    -----
    Spans of one track lie apart or inside each other.  If a lane has some that cross, they are
    spread over further tracks, ``lane (2)`` and so on.  A counter that is not finite is
    shown as an instant, because JSON has no word for it.
    """
    tracks = {rank: _tracks(events) for rank, events in per_rank.items()}
    names = sorted({name for by_name in tracks.values() for name in by_name})
    tids = {name: tid for tid, name in enumerate(names)}
    rows: list[Row] = []
    for rank in sorted(per_rank):
        offset = offsets.get(rank, 0)
        rows += _titles(rank, hosts.get(rank), {name: tids[name] for name in tracks[rank]})
        for name, spans in tracks[rank].items():
            rows += [_span(rank, tids[name], span, offset) for span in spans]
        rows += [
            _counter(rank, event, offset)
            for event in per_rank[rank]
            if event["kind"] == "counter"
        ]
    return {"traceEvents": rows, "displayTimeUnit": "ms"}


def write_chrome_trace(
    path: str | os.PathLike[str],
    per_rank: Mapping[int, Sequence[Event]],
    offsets: Mapping[int, int],
    hosts: Mapping[int, str],
) -> None:
    """Write ``chrome_trace`` to ``path``, compressed if the name ends in ``.gz``.

    The file is there whole or not at all: it is written under a temporary name beside it,
    then renamed.
    """
    path = Path(path)
    trace = chrome_trace(per_rank, offsets, hosts)
    data = json.dumps(trace, allow_nan=False, separators=(",", ":")).encode()
    if path.suffix == ".gz":
        data = gzip.compress(data, mtime=0)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(data)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _tracks(events: Iterable[Event]) -> dict[str, list[Span]]:
    """Return the spans of each track, by start; crossing spans go to further tracks."""
    lanes: dict[str, list[Span]] = {}
    for event in events:
        if event["kind"] == "span":
            lanes.setdefault(event["lane"], []).append(event)
    tracks: dict[str, list[Span]] = {}
    for lane, spans in lanes.items():
        for number, track in enumerate(_apart(spans), start=1):
            tracks[lane if number == 1 else f"{lane} ({number})"] = track
    return tracks


def _apart(spans: Iterable[Span]) -> list[list[Span]]:
    """Return ``spans`` in lists within which they lie apart or inside each other."""
    tracks: list[list[Span]] = []
    open_ends: list[list[int]] = []  # per track, the ends of the spans around now, inmost last
    for span in sorted(spans, key=lambda span: (span["start_ns"], -span["end_ns"])):
        for ends in open_ends:
            while ends and ends[-1] <= span["start_ns"]:
                ends.pop()
        fits = (i for i, ends in enumerate(open_ends) if not ends or span["end_ns"] <= ends[-1])
        index = next(fits, len(tracks))
        if index == len(tracks):
            tracks.append([])
            open_ends.append([])
        tracks[index].append(span)
        open_ends[index].append(span["end_ns"])
    return tracks


def _titles(rank: int, host: str | None, tids: Mapping[str, int]) -> list[Row]:
    title = f"rank {rank}" if host is None else f"rank {rank} @ {host}"
    process: Row = {"ph": "M", "pid": rank}
    rows = [
        process | {"name": "process_name", "args": {"name": title}},
        process | {"name": "process_sort_index", "args": {"sort_index": rank}},
    ]
    for name, tid in tids.items():
        thread = process | {"tid": tid}
        rows.append(thread | {"name": "thread_name", "args": {"name": name}})
        rows.append(thread | {"name": "thread_sort_index", "args": {"sort_index": tid}})
    return rows


def _span(rank: int, tid: int, span: Span, offset: int) -> Row:
    return {
        "ph": "X",
        "pid": rank,
        "tid": tid,
        "name": span["name"],
        "ts": (span["start_ns"] - offset) / 1000,
        "dur": (span["end_ns"] - span["start_ns"]) / 1000,
        "args": span["args"],
    }


def _counter(rank: int, counter: Counter, offset: int) -> Row:
    name, value = counter["name"], counter["value"]
    row: Row = {"pid": rank, "ts": (counter["t_ns"] - offset) / 1000}
    if math.isfinite(value):
        return row | {"ph": "C", "name": name, "args": {"value": value}}
    return row | {"ph": "i", "s": "p", "name": f"{name} = {value}"}
