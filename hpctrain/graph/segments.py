"""Where a plan is cut so that communication can start early and parameters may arrive late.

Parameters and gradients are exchanged in *slices*. A plan is cut before a step that is the
first to read a slice of the parameters, and after a step that makes a slice of the gradients
final: the last that writes or reads it. Each strip, a segment, is one task for the engine.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from hpctrain.graph.plan import Plan
from hpctrain.graph.strips import Strip

__all__ = ["Segment", "cut"]


@dataclass(frozen=True, slots=True)
class Segment:
    """Steps ``start`` up to ``stop`` of a plan.

    Attributes
    ----------
    reads : tuple of int
        Slices of the parameters that it reads.
    writes : tuple of int
        Slices of the gradients that it writes into, or reads.
    final : tuple of int
        Those that no step touches after it.
    name : str
        The kinds of work in it, for traces.
    """

    start: int
    stop: int
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    final: tuple[int, ...]
    name: str


def cut(
    plan: Plan,
    read: Mapping[int, tuple[int, ...]],
    written: Mapping[int, tuple[int, ...]],
    strips: Sequence[Strip] | None = None,
    touched: Callable[[int, tuple[int, int]], set[int]] | None = None,
) -> list[Segment]:
    """Cut a plan into segments.

    Parameters
    ----------
    plan : Plan
    read : mapping of leaf to slices
        Which slices of the parameters a leaf lies in.
    written : mapping of output to slices
        Which slices of the gradients an output lies in.
    strips : sequence of Strip, optional
        The steps, if some are carried out in strips.
    touched : callable, optional
        Takes an output and a span of its rows and returns the slices these lie in.

    Returns
    -------
    list of Segment
        They cover all steps in order; each slice of ``written`` is final in exactly one.
    """
    nodes = plan.graph.nodes
    steps = [Strip(place) for place in range(len(nodes))] if strips is None else strips
    reads = [_slices(plan, nodes[step.node].inputs, read) for step in steps]
    # A gradient that later steps read must not be sent before: its sum is written over it.
    writes = [_writes(plan, step, written, touched) for step in steps]
    last = {s: step for step, slices in enumerate(writes) for s in slices}
    first: dict[int, int] = {}
    for step, slices in enumerate(reads):
        for s in slices:
            first.setdefault(s, step)
    cuts = {0, len(reads), *first.values(), *(step + 1 for step in last.values())}
    edges = sorted(cuts)
    names = [nodes[step.node].row.name for step in steps]
    return [_segment(names, a, b, reads, writes, last) for a, b in zip(edges, edges[1:])]  # noqa: RUF007, B905


def _writes(
    plan: Plan,
    step: Strip,
    written: Mapping[int, tuple[int, ...]],
    touched: Callable[[int, tuple[int, int]], set[int]] | None,
) -> set[int]:
    node = plan.graph.nodes[step.node]
    if step.rows is None or touched is None:
        return _slices(plan, (*node.outputs, *node.inputs), written)
    return touched(node.outputs[0], step.rows) | _slices(plan, node.inputs, written)


def _segment(
    names: Sequence[str],
    start: int,
    stop: int,
    reads: list[set[int]],
    writes: list[set[int]],
    last: dict[int, int],
) -> Segment:
    touched = set().union(*writes[start:stop])
    return Segment(
        start,
        stop,
        reads=tuple(sorted(set().union(*reads[start:stop]))),
        writes=tuple(sorted(touched)),
        final=tuple(sorted(s for s in touched if last[s] < stop)),
        name=_name(names[start:stop]),
    )


def _name(names: Sequence[str]) -> str:
    weighty = [n for n in dict.fromkeys(names) if n not in ("reshape", "transpose", "identity")]
    return "+".join(weighty[:4] or names[:1]) + (
        f"+{len(weighty) - 4}" if len(weighty) > 4 else ""
    )


def _slices(
    plan: Plan, values: tuple[int, ...], where: Mapping[int, tuple[int, ...]]
) -> set[int]:
    found: set[int] = set()
    for value in values:
        while value in plan.views:
            value = plan.views[value]
        found.update(where.get(value, ()))
    return found
