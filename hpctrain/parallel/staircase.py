"""A pipeline's timeline as text: ranks are rows, time goes to the right.

Each action begins with its kind and the number of its micro-batch and fills its time with
dashes; dots are idle. Where a rank has several stages, a letter says which of them:
``F3b`` is the forward of its second one.
"""

from collections.abc import Sequence
from string import ascii_lowercase
from typing import NamedTuple

from hpctrain.parallel.pipeline_schedule import Action
from hpctrain.parallel.pipeline_times import Span, Timeline

__all__ = ["draw"]

_COLUMNS = 600  # at most, where the shortest action is very short


def draw(timeline: Timeline) -> str:
    """Draw a timeline; a column is as long as the shortest action.

    Parameters
    ----------
    timeline : Timeline

    Returns
    -------
    str
        One line for each rank. An action that is shorter than half a column, which only
        happens where the longest times are very much longer, may be hidden.

    Examples
    --------
    >>> from hpctrain.parallel.pipeline_schedule import schedule
    >>> from hpctrain.parallel.pipeline_times import Times, simulate
    >>> print(draw(simulate(schedule("1f1b", 2, 2), Times((1, 1), (1, 1), (1, 1)))))
    rank 0 |F0 F1 .  .  BW0-- .  BW1--
    rank 1 |.  F0 BW0-- F1 BW1-- .  .
    """
    durations = [end - start for row in timeline.ranks for _, start, end in row if end > start]
    column_s = max(min(durations, default=1.0), timeline.makespan_s / _COLUMNS)
    ranks = len(timeline.ranks)
    several = any(span.action.stage >= ranks for row in timeline.ranks for span in row)
    rows = [_cells(row, ranks, column_s, several) for row in timeline.ranks]
    # Wide enough for every label and a space, in the columns that it has.
    width = max((-(-(len(c.label) + 1) // c.columns) for row in rows for c in row), default=2)
    columns = _column(timeline.makespan_s, column_s)
    names = [f"rank {rank}" for rank in range(ranks)]
    return "\n".join(
        f"{name:<{len(names[-1])}} |{_line(row, columns, width)}"
        for name, row in zip(names, rows, strict=True)
    )


class _Cell(NamedTuple):
    """An action as it is drawn: what is written, and from which column over how many."""

    label: str
    start: int
    columns: int


def _cells(row: Sequence[Span], ranks: int, column_s: float, several: bool) -> list[_Cell]:
    found = []
    for action, start_s, end_s in row:
        start, end = _column(start_s, column_s), _column(end_s, column_s)
        if end > start:
            found.append(_Cell(_label(action, ranks, several), start, end - start))
    return found


def _column(time_s: float, column_s: float) -> int:
    """Return the column whose left edge is nearest to a time."""
    return int(time_s / column_s + 0.5)


def _label(action: Action, ranks: int, several: bool) -> str:
    chunk = ascii_lowercase[action.stage // ranks % len(ascii_lowercase)] if several else ""
    return f"{action.kind}{action.micro}{chunk}"


def _line(cells: Sequence[_Cell], columns: int, width: int) -> str:
    """Write the cells over a line of dots."""
    line = list(".".ljust(width) * columns)
    for label, start, count in cells:
        text = label.ljust(count * width - 1, "-") + " "
        line[start * width : (start + count) * width] = text
    return "".join(line).rstrip()
