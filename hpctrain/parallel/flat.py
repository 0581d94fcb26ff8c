"""Parameters, gradients and optimizer state in flat buffers, cut into slices.

The buffers begin with a few *riders*: numbers that travel with the last slice of the
gradient (loss, flags), so that a step needs no other message. Parameters follow in the order
of the model, each aligned to 64 bytes; the padding is zero and stays zero.

Offsets and lengths count elements.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from hpctrain import backend
from hpctrain.autograd import Tensor
from hpctrain.errors import ShapeError

__all__ = [
    "RIDER_BYTES",
    "FlatParameters",
    "RowCuts",
    "Slice",
    "joined",
    "make_offsets",
    "make_slices",
]

RIDER_BYTES = 64  # room for 16 numbers in float32, 8 in float64
LONGEST = 2**30  # elements of a slice, about: codecs number them in 32 bits


@dataclass(frozen=True, slots=True)
class Slice:
    """Elements ``start`` up to ``stop`` of a flat buffer, and the parameters in it."""

    index: int
    start: int
    stop: int
    parameters: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RowCuts:
    """A parameter that lies in several slices, by rows.

    Attributes
    ----------
    edges : tuple of int
        Rows before which a slice has all that it needs of the parameter.
    spans : tuple of (slice, start, stop)
        The slices with the elements of the parameter that lie in them.
    width : int
        Elements of a row.
    """

    edges: tuple[int, ...]
    spans: tuple[tuple[int, int, int], ...]
    width: int

    def slices(self, rows: tuple[int, int]) -> set[int]:
        """Return the slices in which these rows lie."""
        first, end = rows[0] * self.width, rows[1] * self.width
        return {index for index, start, stop in self.spans if start < end and stop > first}


def make_offsets(sizes: Sequence[int], itemsize: int) -> tuple[list[int], int]:
    """Return the offset of each parameter, and the length of the buffer.

    Examples
    --------
    >>> make_offsets([3, 20, 1], itemsize=4)
    ([16, 32, 64], 80)
    """
    unit = RIDER_BYTES // itemsize
    offsets, end = [], unit
    for size in sizes:
        offsets.append(end)
        end += -(-size // unit) * unit
    return offsets, end


def make_slices(
    offsets: Sequence[int],
    sizes: Sequence[int],
    total: int,
    limit: int,
    whole: Collection[int] = (),
) -> list[Slice]:
    """Cut a buffer into slices of about ``limit`` elements.

    A slice ends where a parameter ends if that gives at least half of ``limit``; a parameter
    longer than ``limit`` is cut into equal parts. The riders stay in one piece, the head of
    the first slice.

    Parameters
    ----------
    offsets, sizes : sequence of int
        Of the parameters.
    total : int
        Length of the buffer.
    limit : int
        At least 1; at most 2**30 counts.
    whole : collection of int
        Parameters that have a slice of their own, however long.
    """
    if limit < 1:
        raise ShapeError(f"slices: got a limit of {limit} elements, needed at least 1")
    limit = min(limit, LONGEST)
    ends = [*offsets[1:], total] if offsets else [total]
    head = offsets[0] if offsets else total
    edges = [0]
    for place, end in enumerate(ends):
        if place in whole:
            edges += [offsets[place], end]
            continue
        start = max(edges[-1], head)
        pieces = -(-(end - start) // limit)
        edges += [start + (end - start) * i // pieces for i in range(1, pieces)]
        if 2 * (end - edges[-1]) >= limit or end == total:
            edges.append(end)
    spans = [(a, b) for a, b in pairwise(edges) if a < b]
    return [
        Slice(i, a, b, tuple(_inside(offsets, sizes, a, b))) for i, (a, b) in enumerate(spans)
    ]


def _inside(offsets: Sequence[int], sizes: Sequence[int], a: int, b: int) -> list[int]:
    return [
        i for i, (o, n) in enumerate(zip(offsets, sizes, strict=True)) if o < b and o + n > a
    ]


def joined(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Join spans that touch, so that a sum over them does not depend on the slices."""
    found: list[tuple[int, int]] = []
    for a, b in spans:
        if found and found[-1][1] == a:
            found[-1] = (found[-1][0], b)
        else:
            found.append((a, b))
    return found


class FlatParameters:
    """The trained parameters of a model in one buffer, their gradients in another.

    Parameters
    ----------
    tensors : sequence of Tensor
        Leaves with gradients, of one float dtype, on one device. Their arrays are replaced by
        views of the buffers; the tensors stay the same.
    slice_bytes : int
        Size of a slice, about.
    like : Tensor, optional
        Has the dtype and device of the buffers if there are no tensors.

    Attributes
    ----------
    limit : int
        Elements of a slice, about.
    weights, grads : array, shape (total,)
    riders : array
        The head of ``grads``.
    """

    def __init__(
        self,
        tensors: Sequence[Tensor],
        slice_bytes: int,
        like: Tensor | None = None,
    ) -> None:
        models = tensors or ([] if like is None else [like])
        dtypes = {t.dtype for t in models}
        if len(dtypes) != 1:
            raise ShapeError(
                f"flat parameters: got {len(dtypes)} dtypes, needed one; cast the model"
            )
        self.dtype = dtypes.pop()
        self.device = models[0].device
        self.tensors = list(tensors)
        self.sizes = [t.size for t in tensors]
        self.offsets, self.total = make_offsets(self.sizes, self.dtype.itemsize)
        self.limit = max(1, slice_bytes // self.dtype.itemsize)
        self.slices = make_slices(self.offsets, self.sizes, self.total, self.limit)
        self.weights = self.zeros()
        self.grads = self.zeros()
        self.riders = self.grads[: RIDER_BYTES // self.dtype.itemsize]
        for place, tensor in enumerate(self.tensors):
            self._adopt(tensor, place)

    def keep_whole(self, places: Collection[int], limit: int = 0) -> None:
        """Cut the slices anew so that each of these parameters has one of its own.

        ``limit`` is the length of the others, about; 0: that of before.
        """
        self.limit = limit or self.limit
        self.slices = make_slices(self.offsets, self.sizes, self.total, self.limit, places)

    def zeros(self) -> Any:
        """Return a buffer of the same length, all zero."""
        buffer = backend.empty((self.total,), self.dtype, self.device)
        buffer[...] = 0
        return buffer

    def view(self, buffer: Any, place: int) -> Any:
        """Return the part of ``buffer`` that belongs to a parameter, in its shape."""
        start = self.offsets[place]
        return buffer[start : start + self.sizes[place]].reshape(self.tensors[place].shape)

    def _adopt(self, tensor: Tensor, place: int) -> None:
        view = self.view(self.weights, place)
        view[...] = tensor.array
        tensor.value = view
        assert tensor.grad is not None, "a trained parameter has a gradient"
        tensor.grad.value = self.view(self.grads, place)

    def move(self, weights: Any = None, grads: Any = None) -> None:
        """Let the buffers lie elsewhere from now on; what they hold moves along.

        Parameters
        ----------
        weights, grads : array, shape (total,), dtype and device of the parameters, optional
            Such as memory that other ranks see.
        """
        if weights is not None:
            weights[...] = self.weights
            self.weights = weights
            for place, tensor in enumerate(self.tensors):
                tensor.value = self.view(weights, place)
        if grads is not None:
            grads[...] = self.grads
            self.grads = grads
            self.riders = grads[: RIDER_BYTES // self.dtype.itemsize]
            for place, tensor in enumerate(self.tensors):
                assert tensor.grad is not None, "a trained parameter has a gradient"
                tensor.grad.value = self.view(grads, place)

    def where(self) -> list[tuple[int, ...]]:
        """Return for each parameter the slices that it lies in."""
        found: list[list[int]] = [[] for _ in self.sizes]
        for piece in self.slices:
            for place in piece.parameters:
                found[place].append(piece.index)
        return [tuple(f) for f in found]

    def span(self, piece: Slice, place: int) -> tuple[int, int]:
        """Return where in the buffers the elements of a parameter lie that a slice has."""
        at = self.offsets[place]
        return max(piece.start, at), min(piece.stop, at + self.sizes[place])

    def row_cuts(self) -> dict[int, RowCuts]:
        """Return, by place, how parameters that lie in several slices are cut by rows."""
        found = {}
        for place, indices in enumerate(self.where()):
            size, shape = self.sizes[place], self.tensors[place].shape
            if len(indices) < 2 or not shape:
                continue
            width, at = size // shape[0], self.offsets[place]
            pieces = [self.slices[index] for index in indices]
            spans = [(p.index, max(p.start - at, 0), min(p.stop - at, size)) for p in pieces]
            edges = {-(-stop // width) for _, _, stop in spans} - {shape[0]}
            found[place] = RowCuts(tuple(sorted(edges)), tuple(spans), width)
        return found

    def runs(self, piece: Slice, factors: Sequence[tuple[float, float]]) -> list[Any]:
        """Cut a slice where the factors of its parameters change.

        Parameters
        ----------
        piece : Slice
        factors : sequence of (lr_mult, wd_mult)
            One for each parameter.

        Returns
        -------
        list of (start, stop, factors)
        """
        runs: list[Any] = []
        for place in piece.parameters:
            start = max(self.offsets[place], piece.start)
            end = self.offsets[place + 1] if place + 1 < len(self.offsets) else self.total
            stop = min(end, piece.stop)
            if runs and runs[-1][2] == factors[place] and runs[-1][1] == start:
                runs[-1] = (runs[-1][0], stop, factors[place])
            else:
                runs.append((start, stop, factors[place]))
        return runs

    def named(self, names: Sequence[str], buffer: Any) -> dict[str, np.ndarray]:
        """Return the parameters' parts of ``buffer`` by name, on the host; views on a CPU."""
        return {n: backend.to_host(self.view(buffer, i)) for i, n in enumerate(names)}
