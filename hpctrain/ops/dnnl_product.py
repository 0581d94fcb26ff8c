"""Products of matrices by oneDNN: ``matmul`` and ``dense``.

Measured on a Sapphire Rapids core, least of 12, GFLOP/s of OpenBLAS, of this, and of MKL:
(128, 784) by (784, 2048) 70, 97, 100; (128, 2048) by (2048, 2048) 69, 101, 95; (1024, 256) by
(256, 1024) 88, 98, 113; (1024, 1024) by (1024, 256) with the first transposed 79, 95, 105.
Where a second matrix that is not transposed meets many rows, packing it first is worth its
time: 87 without, 108 with it.
"""

import math
from collections.abc import Sequence
from typing import Any

from hpctrain.autograd import Spec
from hpctrain.ops.dnnl import Library
from hpctrain.ops.dnnl_program import Builder

__all__ = ["dense_program", "matmul_program"]

_SRC, _DST, _WEIGHTS, _BIAS, _WEIGHTS_LAYOUT = 1, 17, 33, 41, 131
_SMALL = 1 << 18  # multiplications; below it the call costs more than it saves
_PACKED = 512  # rows from which a matrix that is not transposed is packed first


def _matrix(library: Library, shape: tuple[int, int], spec: Spec, transposed: bool) -> Any:
    """Describe a matrix of this shape, or one whose transpose lies in memory."""
    rows, columns = shape
    return library.matrix(shape, (1, rows) if transposed else (columns, 1), spec.dtype)


def _product(
    library: Library,
    specs: Sequence[Spec],
    shape: tuple[int, int, int],
    transposed: tuple[bool, bool],
) -> Builder:
    """Return the product (rows, depth) by (depth, columns), plus one row if it is given."""
    rows, depth, columns = shape
    if rows * depth * columns < _SMALL:
        raise NotImplementedError("too small to pay")
    biased = len(specs) > 2
    source = _matrix(library, (rows, depth), specs[0], transposed[0])
    weight = _matrix(library, (depth, columns), specs[1], transposed[1])
    result = library.matrix((rows, columns), (columns, 1))
    bias = [library.matrix((1, columns), (columns, 1))] if biased else []
    build = Builder(library, [source, weight, *bias, result])
    packs = not transposed[1] and rows >= _PACKED
    taken = library.free_layout((depth, columns), specs[1].dtype) if packs else weight
    made = library.kernel(
        library.lib.dnnl_matmul_primitive_desc_create,
        *(library.engine, source, taken, bias[0] if biased else library.ffi.NULL, result),
    )
    if not library.implementation(made).startswith("brg"):
        raise NotImplementedError("no better than BLAS")
    place = build.taken(1, library.chosen(made, _WEIGHTS_LAYOUT))
    args = [(_SRC, 0), (_WEIGHTS, place), (_DST, build.outer - 1)]
    build.call(made, [*args, (_BIAS, 2)] if biased else args)
    return build


def matmul_program(library: Library, specs: Any, outs: Any, attrs: Any) -> Builder:
    """Return ``matmul`` of one matrix, or of rows of any shape, by one matrix."""
    a, b = specs
    flipped = bool(attrs.get("transpose_a")), bool(attrs.get("transpose_b"))
    if b.ndim != 2 or (a.ndim > 2 and flipped[0]):
        raise NotImplementedError("a stack of products")
    rows, columns = _rows(outs[0]), outs[0].shape[-1]
    shape = rows, b.shape[1 if flipped[1] else 0], columns
    return _product(library, specs, shape, flipped)


def dense_program(library: Library, specs: Any, outs: Any, attrs: Any) -> Builder:
    """Return ``dense``: (x, weight) or (x, weight, bias) to y."""
    columns, depth = specs[1].shape
    shape = _rows(outs[0]), depth, columns
    return _product(library, specs, shape, (False, True))


def _rows(spec: Spec) -> int:
    return math.prod(spec.shape[:-1])
