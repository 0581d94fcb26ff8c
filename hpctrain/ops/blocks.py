"""Cache blocks and folded axes: how kernels keep NumPy's inner loops long and in cache.

NumPy runs one loop over memory for each operation, so a kernel of several operations on a
large array reads and writes main memory each time. Cut into *blocks* of `BLOCK` elements it
reads and writes it once. And NumPy's innermost loop runs along the last axis: an axis of 16
channels costs more in loop overhead than in arithmetic. *Folding* rows of such an axis side
by side, to about `WIDE` elements, removes that.

On a GPU one launch on the whole array is best, so there the block is the array.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from hpctrain.autograd import Spec

__all__ = [
    "BLOCK", "WIDE", "add_row", "as_bits", "block_spec", "chunks", "clear", "fold", "mask_bits",
    "room", "row_blocks", "row_spec", "rows_per_block", "spans", "sum_rows",
    "tile", "with_row",
]  # fmt: skip

BLOCK = 16384  # elements: three float32 arrays of it fill a fifth of a 1 MiB level-2 cache
WIDE = 1024  # elements of a folded row; from about 512 on the loop overhead is hidden


def spans(n: int, step: int) -> Iterator[slice]:
    """Cut ``range(n)`` into slices of ``step``."""
    return (slice(i, min(i + step, n)) for i in range(0, n, step))


def rows_per_block(width: int, elements: int = BLOCK) -> int:
    """Return how many rows of ``width`` make a block, at least 1."""
    return max(1, elements // max(width, 1))


def block_spec(spec: Spec, count: int = 1) -> list[Spec]:
    """Return the specs of ``count`` scratch arrays for the blocks of an array of ``spec``."""
    return [spec.with_shape((min(BLOCK, spec.size),))] * count


def chunks(
    xp: Any, arrays: Sequence[Any], scratch: Sequence[Any] = ()
) -> Iterator[tuple[list[Any], list[Any]]]:
    """Cut arrays of one shape into blocks.

    Parameters
    ----------
    xp : module
    arrays : sequence of array
        All of one shape, of any strides.
    scratch : sequence of array
        Made by `block_spec`.

    Yields
    ------
    parts, temporaries : list of array
        Views of one block of each array, and of each scratch array in the same shape.
    """
    if xp is not np:
        yield list(arrays), [xp.empty(arrays[0].shape, s.dtype) for s in scratch]
        return
    if all(a.flags.c_contiguous for a in arrays):
        arrays = [a.reshape(-1) for a in arrays]
    for key in _keys(arrays[0].shape):
        parts = [a[key] for a in arrays]
        size, shape = parts[0].size, parts[0].shape
        yield parts, [s[:size].reshape(shape) for s in scratch]


def _keys(shape: tuple[int, ...]) -> Iterator[tuple[Any, ...]]:
    """Index blocks of at most `BLOCK` elements, whole along the last axes."""
    size = math.prod(shape)
    if size <= BLOCK:
        if size:
            yield (...,)
        return
    inner = math.prod(shape[1:])
    if inner <= BLOCK:
        for span in spans(shape[0], rows_per_block(inner)):
            yield (span,)
        return
    for i in range(shape[0]):
        for rest in _keys(shape[1:]):
            yield (i, *rest)


def row_blocks(xp: Any, *arrays: Any) -> Iterator[list[Any]]:
    """Cut arrays of equally many rows, the first axis, into blocks of about 2 `BLOCK`.

    The first array, of shape (rows, width) or (rows, ...), says how wide a row is.
    """
    rows, width = arrays[0].shape[0], math.prod(arrays[0].shape[1:])
    step = rows_per_block(width, 2 * BLOCK) if xp is np else max(rows, 1)
    return ([a[span] for a in arrays] for span in spans(rows, step))


def room(xp: Any, x: Any, scratch: Any) -> Any:
    """Return room for the elements of the block ``x``: scratch, or on a GPU a new array."""
    if xp is not np:
        return xp.empty(x.shape, scratch.dtype)
    return scratch[: x.size].reshape(x.shape)


def fold(x: Any, width: int) -> tuple[Any, Any]:
    """Lay rows side by side.

    Parameters
    ----------
    x : array, C-contiguous, its last axis (or axes) ``width`` long
    width : int

    Returns
    -------
    bulk : array, shape (q, k * width)
        A view of the first ``q * k`` rows, with ``k * width`` about `WIDE`.
    rest : array, shape (r, width), r < k
        A view of the other rows.
    """
    k = max(1, WIDE // width)
    flat = x.reshape(-1)
    cut = flat.size // (k * width) * (k * width)
    return flat[:cut].reshape(-1, k * width), flat[cut:].reshape(-1, width)


def row_spec(spec: Spec, width: int) -> Spec:
    """Return the spec of the scratch array that `tile` fills for rows of ``width``."""
    return spec.with_shape((max(1, WIDE // max(width, 1)) * width,))


def tile(row: Any, scratch: Any) -> Any:
    """Repeat ``row`` over ``scratch`` and return it."""
    scratch.reshape(-1, row.size)[...] = row.reshape(-1)
    return scratch


def with_row(function: Any, x: Any, row: Any, out: Any, scratch: Any) -> None:
    """Compute ``out = function(x, row)`` for ``row`` along the last axis of ``x``, folded.

    Parameters
    ----------
    function : ufunc of two arguments
    x, out : array, shape (..., width)
        ``out`` C-contiguous, maybe ``x`` itself.
    row : array, shape (width,)
    scratch : array, spec `row_spec`
    """
    width = row.size
    if width >= WIDE or x.size <= WIDE or not x.flags.c_contiguous:
        function(x, row, out=out)
        return
    bulk, rest = fold(x, width)
    to, last = fold(out, width)
    function(bulk, tile(row, scratch), out=to)
    function(rest, row, out=last)


def add_row(xp: Any, out: Any, row: Any, scratch: Any) -> None:
    """Add ``row`` to every row of ``out``; see `with_row`."""
    with_row(xp.add, out, row, out, scratch)


def sum_rows(xp: Any, x: Any, out: Any, scratch: Any) -> None:
    """Sum a C-contiguous ``x``, shape (..., width), over all axes but the last.

    ``out``: shape (width,); ``scratch``: spec `row_spec`.
    """
    width = out.size
    if width >= WIDE or x.size <= WIDE:
        xp.add.reduce(x.reshape(-1, width), axis=0, out=out)
        return
    bulk, rest = fold(x, width)
    xp.add.reduce(bulk, axis=0, out=scratch)
    xp.add.reduce(scratch.reshape(-1, width), axis=0, out=out)
    for row in rest:
        out += row


def clear(xp: Any, out: Any) -> None:
    """Set a C-contiguous array to zero; by bytes that is twice as fast as by elements."""
    if xp is np and out.size:
        out.reshape(-1).view(np.uint8).fill(0)
    else:
        out[...] = 0


def as_bits(x: Any) -> Any:
    """Return a view of ``x`` as signed integers of the same size.

    To choose elements by their bits takes a third of the time of NumPy's own ways to choose
    by a mask, which go element by element, and lets no infinity turn into a NaN.
    """
    return x.view(f"i{x.itemsize}")


def mask_bits(xp: Any, mask: Any, out: Any) -> None:
    """Set all bits of the integers ``out`` where ``mask`` is true, and none elsewhere."""
    xp.copyto(out, mask.view(np.int8))
    xp.negative(out, out=out)
