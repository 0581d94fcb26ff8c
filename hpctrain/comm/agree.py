"""Let the ranks compare what they believe, before it can hurt."""

from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import Any

import numpy as np

from hpctrain.comm.group import Group
from hpctrain.comm.wording import ranks, spread
from hpctrain.errors import ConfigError, HpctrainError

_SHOWN = 80  # characters of a value in a message


def agree(
    group: Group, facts: Mapping[str, str], error: type[HpctrainError] = ConfigError
) -> None:
    """Raise on every rank unless all ranks have the same facts.

    Parameters
    ----------
    group : Group
        The ranks that compare; collective.
    facts : mapping of str to str, ordered
        What must be equal, by name: settings, versions, shapes and dtypes of parameters, a hash
        of the graph, a digest of the data.  Keep long values out by `digest`.
    error : type, default ConfigError
        What to raise.

    Raises
    ------
    HpctrainError
        Of type ``error``, the same on all ranks, naming the first fact that differs, its values
        and the ranks that have them.

    Notes
    -----
    Costs one allreduce of 64 bytes when all agree; the facts travel only when they do not.
    """
    if group.size == 1:
        return
    own = np.frombuffer(bytes.fromhex(digest([repr(list(facts.items())).encode()])), np.uint64)
    # The largest of the complements is the complement of the smallest.
    extremes = np.concatenate([own, ~own])
    group.allreduce(extremes, "max", name="digest of facts")
    largest, smallest = extremes[: own.size], ~extremes[own.size :]
    if (largest == smallest).all():
        return
    rows = group.allgather_obj(list(facts.items()))
    raise error(f"agree: {difference(rows)}; start all ranks with the same command and files")


def difference(rows: list[list[tuple[str, str]]]) -> str:
    """Say how the facts of the ranks differ first; ``rows`` are (name, text) pairs by rank."""
    tables = [dict(row) for row in rows]
    for name in dict.fromkeys(name for row in rows for name, _ in row):
        values = [table.get(name) for table in tables]
        if len(set(values)) == 1:
            continue
        if None in values:
            having = [rank for rank, value in enumerate(values) if value is not None]
            lacking = [rank for rank, value in enumerate(values) if value is None]
            return f"{name} is known on {ranks(having)} but not on {ranks(lacking)}"
        return f"{name} is {spread(_excerpts([str(value) for value in values]))}"
    orders = [[name for name, _ in row] for row in rows]
    place = next(i for i, names in enumerate(zip(*orders, strict=True)) if len(set(names)) > 1)
    return f"fact {place + 1} is {spread([order[place] for order in orders])}"


def digest(parts: Iterable[Any]) -> str:
    """Return 64 hexadecimal digits that stand for ``parts``.

    Parameters
    ----------
    parts : iterable of bytes, or of C-contiguous arrays on the host
        Only their bytes count, in order: the digest does not see where one part ends.
    """
    hasher = blake2b(digest_size=32)
    for part in parts:
        view = memoryview(part)
        if view.nbytes:  # an empty view of several dimensions cannot be cast
            hasher.update(view.cast("B"))
    return hasher.hexdigest()


def _excerpts(values: list[str]) -> list[str]:
    """Shorten long values around the place where they begin to differ."""
    if max(map(len, values)) <= _SHOWN:
        return [value or "empty" for value in values]
    columns = enumerate(zip(*values, strict=False))
    shortest = min(map(len, values))
    place = next((i for i, column in columns if len(set(column)) > 1), shortest)
    start = max(0, place - _SHOWN // 4)
    cut = [value[start : start + _SHOWN] for value in values]
    before = "…" if start else ""
    return [
        f"{before}{text}{'…' if start + _SHOWN < len(value) else ''}" or "empty"
        for text, value in zip(cut, values, strict=True)
    ]
