"""The row of a primitive that carries out a fused operation.

There are three ways: one compiled loop nest (`nest`), the members' own kernels over tiles
that stay in cache (`tiles`, where no compiler is installed), and one CUDA kernel (`cuda`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpctrain.autograd import Primitive, Spec
from hpctrain.errors import ShapeError
from hpctrain.graph.cuda import run_cuda
from hpctrain.graph.ir import Graph
from hpctrain.graph.nest import Nest
from hpctrain.graph.tiles import Tiles
from hpctrain.graph.work import Fused

__all__ = ["Prepared", "fused_row", "prepare", "work_of"]


def fused_row(work: Fused, compiled: bool) -> Primitive:
    """Make the row that computes ``work``.

    Parameters
    ----------
    work : Fused
    compiled : bool
        Whether a compiler is there; without one ``work`` has no sums.
    """
    way = _Way(work, compiled)
    return Primitive(
        work.name,
        "elementwise",
        way.infer,
        way.kernel,
        scratch=way.scratch,
        inplace=_inplace(work) if compiled else _inplace_of_last(work),
        bind=way.bind,
    )


def work_of(row: Primitive) -> Fused | None:
    """Return what a row computes that `fused_row` has made; None for any other."""
    way = getattr(row.kernel, "__self__", None)
    return way.work if isinstance(way, _Way) else None


class _Way:
    """How a fused operation is carried out; its methods are the columns of its row."""

    def __init__(self, work: Fused, compiled: bool) -> None:
        self.work = work
        self.nest = Nest(work) if compiled else None
        self.tiles = None if compiled else Tiles(work)

    def infer(self, specs: Sequence[Spec], **_: Any) -> Sequence[Spec]:
        """Return the specs of the results; it was made for these inputs only."""
        taken = [a.spec for a in self.work.inputs]
        if list(specs) != taken:
            got, wanted = (", ".join(map(str, s)) for s in (specs, taken))
            raise ShapeError(f"{self.work.name}: got {got}, was fused for {wanted}")
        return [r.spec for r in self.work.results]

    def scratch(self, specs: Sequence[Spec], **_: Any) -> list[Spec]:
        """Return the specs of partial sums, or of tiles."""
        return self.nest.scratch() if self.nest else self.tiles.scratch() if self.tiles else []

    def kernel(self, xp: Any, ins: Any, outs: Any, scratch: Any, **_: Any) -> None:
        """Compute."""
        if xp is not np:
            run_cuda(self.work, xp, ins, outs)
        elif self.nest:
            plain = [a if _plain(a) else np.array(a, order="C") for a in ins]
            self.nest.bind(plain, outs, scratch)()
        elif self.tiles:
            self.tiles.bind(xp, ins, outs, scratch)()

    def bind(
        self, xp: Any, ins: Any, outs: Any, scratch: Any, **_: Any
    ) -> Callable[[], None] | None:
        """Return the compiled kernel with its addresses filled in, or the tiles cut."""
        if xp is not np or not all(_plain(a) for a in ins):
            return None
        if self.tiles:
            return self.tiles.bind(xp, ins, outs, scratch)
        return self.nest.bind(ins, outs, scratch) if self.nest else None


def _plain(array: Any) -> bool:
    """Return whether the address of ``array`` says where its elements are."""
    return isinstance(array, np.ndarray) and array.flags.c_contiguous


def _whole(work: Fused) -> list[int]:
    """Return the inputs that are read element for element, and in no other way."""
    sources = [a.source for a in work.inputs]
    return [
        i
        for i, a in enumerate(work.inputs)
        if a.value == a.source and a.shape == work.shape and sources.count(a.source) == 1
    ]


def _inplace(work: Fused) -> tuple[tuple[int, int], ...]:
    """Pair inputs and results: all elements of a vector are read before one is written."""
    results = [j for j, r in enumerate(work.results) if r.axes is None]
    return tuple((i, j) for i in _whole(work) for j in results)


def _inplace_of_last(work: Fused) -> tuple[tuple[int, int], ...]:
    """Pair as the last member allows: when it writes, the others have read."""
    last = work.members[-1]
    if len(work.results) != 1 or last.outputs[0] != work.results[0].value:
        return ()
    own = {last.inputs[i] for i, _ in last.row.inplace}
    safe = [v not in last.inputs or v in own for v in (a.value for a in work.inputs)]
    return tuple((i, 0) for i in _whole(work) if safe[i])


@dataclass(frozen=True, slots=True)
class Prepared:
    """What making the kernels of a graph took.

    Attributes
    ----------
    kernels : int
        Compiled kernels of the graph; those that several nodes share count once.
    compiled : int
        Those that were not on disk.
    seconds : float
    """

    kernels: int
    compiled: int
    seconds: float


def prepare(graph: Graph) -> Prepared:
    """Compile what ``graph`` needs, or load it, ahead of its first run."""
    ways = [getattr(node.row.kernel, "__self__", None) for node in graph.nodes]
    nests = [way.nest for way in ways if isinstance(way, _Way) and way.nest]
    made = list({id(nest.compiled): nest.compiled for nest in nests}.values())
    return Prepared(len(made), sum(not c.from_disk for c in made), sum(c.seconds for c in made))
