"""Marks: named attributes of nodes that passes read and kernels never see.

A mark says where a node comes from, or what is wanted for it: the part of the step that it
belongs to, the block whose inner values are not to be kept, a device. Whoever captures opens
a scope, and each node that is made inside it has the marks of all open scopes. Passes that
change a node keep its marks (``dataclasses.replace``); two equal nodes that are merged keep
those of the first.
"""

import itertools
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

__all__ = [
    "AGAIN",
    "BACKWARD",
    "DIVIDE",
    "GROUP",
    "NAME",
    "REGION",
    "Marks",
    "as_region",
    "current_marks",
    "marked",
]

Marks = tuple[tuple[str, Hashable], ...]

BACKWARD = ("part", "backward")  # made by the gradient walk
AGAIN = ("again", True)  # a copy for the backward part; never merged with its original
GROUP = "ctx_group"  # where the node is to run; only nodes of one group are merged
NAME = "name"  # what users call that which the node is a part of, for messages
DIVIDE = "divide"  # how a team of ranks is to share the node, if it is to
REGION = "region"  # values inside a region of equal number are not kept for the backward part

_REGIONS = itertools.count()  # next() is atomic
_MARKS: ContextVar[Marks] = ContextVar("hpctrain_marks", default=())


def current_marks() -> Marks:
    """Return the marks of the scopes that are open in this thread, sorted by name."""
    return _MARKS.get()


@contextmanager
def marked(**marks: Hashable) -> Iterator[None]:
    """Mark the nodes that are captured inside the ``with`` block; the inner scope wins.

    Examples
    --------
    >>> with marked(ctx_group="dev1"), marked(region=3):
    ...     current_marks()
    (('ctx_group', 'dev1'), ('region', 3))
    """
    token = _MARKS.set(tuple(sorted({**dict(_MARKS.get()), **marks}.items())))
    try:
        yield
    finally:
        _MARKS.reset(token)


def as_region(function: Callable[..., Any], *args: Any) -> Any:
    """Return ``function`` of ``args``, captured as a region of its own."""
    with marked(**{REGION: next(_REGIONS)}):
        return function(*args)
