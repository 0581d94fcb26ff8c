"""Ways to recompute, from little to much: what each keeps, saves and costs, as estimates.

The forward part is cut into segments of about equal bytes, each cut where few values cross
it. What crosses a cut is kept; what else the first segments made is computed again, the
later ones keep everything. So a few segments give a little memory at little cost, all of
them the least memory: with n layers and √n segments, √n values cross and √n are in a segment.
A way may also be *light*: results of products, convolutions and loops over time are kept too,
and only what is cheap is computed again.
"""

import bisect
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from hpctrain.graph.ir import Graph, Node
from hpctrain.graph.recompute import Forward

__all__ = ["Way", "node_seconds", "ways"]

_HEAVY = frozenset({"contract", "window", "recurrent", "call"})
# Rates of one core of a server; only their ratio decides, and that roughly.
_FLOPS, _BYTES = 5e10, 1e10  # per second
# Statistics and the like are kept: to have them again may cost as much as the largest value.
_SMALL = 1 / 256
_FINER = 1.25  # ratio between the numbers of segments that are tried


def node_seconds(graph: Graph, node: Node) -> float:
    """Estimate the time of a node from its kind, its bytes and the products in it."""
    ins = [graph.specs[v] for v in node.inputs]
    outs = [graph.specs[v] for v in node.outputs]
    seconds = sum(s.nbytes for s in (*ins, *outs)) / _BYTES
    if node.row.kind not in _HEAVY or len(ins) < 2:
        return seconds
    if node.row.kind == "contract":
        # (m, k) by (k, n): the sizes mk, kn and mn multiply to the square of mkn.
        products = math.sqrt(ins[0].size * ins[1].size * outs[0].size)
    else:
        places = outs[0].size / max(1, outs[0].shape[-1])
        products = places * sum(s.size for s in ins[1:] if s.ndim > 1)
    return seconds + 2 * products / _FLOPS


@dataclass(frozen=True, slots=True)
class Way:
    """One way to recompute.

    Attributes
    ----------
    seconds : float
        What it costs in a step, by the estimate of `node_seconds`.
    nbytes : int
        Bytes in use at the busiest step, estimated.
    kept : frozenset of int
        Roots, for `hpctrain.graph.recompute.recompute`.
    """

    seconds: float
    nbytes: int
    kept: frozenset[int]


def ways(forward: Forward) -> list[Way]:
    """Return ways to recompute, each with less memory and more work than the one before."""
    sizes = _Sizes(forward)
    found = [
        way
        for cuts in sizes.choices()
        for light in (True, False)
        for way in _ways(sizes, cuts, light)
    ]
    best: list[Way] = []
    for way in sorted(found, key=lambda way: (way.seconds, way.nbytes)):
        # A hundredth less memory is the least that counts: each way is a plan to be made.
        if way.nbytes < 0.99 * (best[-1].nbytes if best else forward.bound_bytes):
            best.append(way)
    return best


class _Sizes:
    """Bytes by place of the forward part."""

    def __init__(self, forward: Forward) -> None:
        self.forward = forward
        sizes = {v: forward.nbytes(v) for v in forward.saved}
        self.total = sum(sizes.values())
        self.small = _SMALL * max(sizes.values(), default=0)
        self.made = [0] * forward.stop  # saved by the node at a place
        for value, nbytes in sizes.items():
            self.made[forward.maker[value]] += nbytes
        change = [0] * (forward.stop + 1)
        for value, last in forward.last.items():
            if value in forward.maker and value not in forward.free:
                change[forward.maker[value] + 1] += forward.nbytes(value)
                change[last + 1] -= forward.nbytes(value)
        # Made before a place and read at it or later.
        self.crossing = list(accumulate(change))

    def choices(self) -> Iterator[list[int]]:
        """Yield cuts for 2 segments, 3, 4 ... up to one for each saved value."""
        known: list[int] = []
        pieces = 2.0
        while round(pieces) <= len(self.forward.saved):
            cuts = self._cuts(self.total / round(pieces))
            if cuts and cuts != known:
                yield cuts
            known = cuts
            pieces *= _FINER

    def _cuts(self, limit: float) -> list[int]:
        """Return where segments begin that hold about ``limit`` bytes; the first is not 0."""
        cuts: list[int] = []
        half, held = 0, 0
        for place, nbytes in enumerate(self.made):
            held += nbytes
            if held < limit / 2:
                half = place + 1
            if held >= limit:
                at = min(range(half + 1, place + 2), key=lambda c: (self.crossing[c], -c))
                cuts.append(at)
                held = sum(self.made[at : place + 1])
                half = at
        return [cut for cut in cuts if cut < len(self.made)]


def _ways(sizes: _Sizes, cuts: Sequence[int], light: bool) -> Iterator[Way]:
    """Yield the ways that recompute the first segment, the first two and so on."""
    forward = sizes.forward
    nodes = forward.graph.nodes

    def segment(value: int) -> int:
        return bisect.bisect(cuts, forward.maker[value])

    def stays(value: int) -> bool:
        return (
            bisect.bisect(cuts, forward.last.get(value, 0)) > segment(value)
            or forward.nbytes(value) <= sizes.small
            or (light and nodes[forward.maker[value]].row.kind in _HEAVY)
        )

    roots = [v for v in forward.maker if v not in forward.views and v not in forward.free]
    kept = [set[int]() for _ in range(len(cuts) + 1)]
    saved = [set[int]() for _ in kept]
    for value in roots:
        if value in forward.saved:
            saved[segment(value)].add(value)
        if stays(value):
            kept[segment(value)].add(value)
    whole = frozenset().union(*kept)
    seconds = [0.0] * len(kept)
    for place in forward.missing(forward.saved, whole):
        if nodes[place].outputs[0] not in forward.views:
            seconds[bisect.bisect(cuts, place)] += node_seconds(forward.graph, nodes[place])
    yield from _first(forward, kept, saved, seconds)


def _first(
    forward: Forward, kept: list[set[int]], saved: list[set[int]], seconds: list[float]
) -> Iterator[Way]:
    """Yield the ways from what is kept and saved in each segment, and what copies cost."""

    def total(values: set[int]) -> int:
        return sum(map(forward.nbytes, values))

    stay = list(accumulate(map(total, kept)))
    rest = [total(s - k) for s, k in zip(saved, kept, strict=True)]
    held = [total(s) for s in saved]
    other = max(0, forward.bound_bytes - sum(held))
    busiest = 0
    chosen: set[int] = set()
    for place in range(len(kept) - 1):
        chosen |= kept[place]
        busiest = max(busiest, stay[place] + rest[place])
        later = saved[place + 1 :]
        nbytes = other + max(busiest, stay[place] + sum(held[place + 1 :]))
        yield Way(sum(seconds[: place + 1]), nbytes, frozenset(chosen.union(*later)))
