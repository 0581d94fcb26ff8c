"""Products of matrices by oneDNN: ``matmul`` and ``dense``.

The library has three ways, none of which is the best for all shapes, and a fourth is to turn a
product of few rows around (`hpctrain.ops.dnnl_turned`). Its ``matmul`` takes the second factor
as it lies, or packed: in the call that pays from many rows on. Its ``inner product``, of which
forward, gradient of the data and gradient of the weight are the products with the second, no
and the first factor transposed, goes by its classic ``gemm`` where all matrices lie plainly.
`_way` says which is the best.

With operands that are not in the cache, 128 x 2048 x 2048 T runs at 95 GFLOP/s plain and at 108
turned, 128 x 784 x 2048 T at 120 and 137.

Measured on an Emerald Rapids core of 2.65 GHz, GFLOP/s of OpenBLAS, ``matmul`` plain, packed
in the call, and ``gemm``; rows x depth x columns, T: transposed in memory:

===================  ====  =====  ======  ====
product              BLAS  plain  packed  gemm
===================  ====  =====  ======  ====
1024 x 256 x 1024 T   146    156     157   163
1024 x 1024 x 256 T   149    156     160   150
1120 x 512 x 10000 T  150    137     132   148
128 x 2048 x 2048 T   115    143     110   137
1120 x 10000 x 512    147    143     143   159
128 x 2048 x 2048     126    134     105   143
T 256 x 1024 x 256    144    154     138   157
T 1024 x 1024 x 256   146    145     148   122
T 2048 x 1120 x 512   145    141     145    91
T 2048 x 128 x 784    145    150     161   163
===================  ====  =====  ======  ====
"""

import math
from collections.abc import Sequence
from typing import Any

from hpctrain.autograd import Spec
from hpctrain.autograd.narrow import is_narrow
from hpctrain.ops.dnnl import Library
from hpctrain.ops.dnnl_program import Builder
from hpctrain.ops.dnnl_turned import turned_program

__all__ = ["WAYS", "dense_program", "matmul_program", "product_program"]

WAYS = ("plain", "packed", "gemm", "turned")
_SRC, _WEIGHTS = 1, 33
_DIFF_SRC, _DIFF_DST, _DIFF_WEIGHTS, _TRAINING = 129, 145, 161, 64
_SMALL = 1 << 18  # multiplications; below it the call costs more than it saves
_MANY = 512  # rows from which it pays to pack the second factor
_FEW = 6  # rows up to which a product is but one reading of the second factor
_WIDE = 4096  # columns from which packing takes megabytes, for ``gemm`` of nobody's planning

Shape = tuple[int, int, int]  # rows, depth, columns
Flips = tuple[bool, bool]  # which factors lie transposed in memory


def product_program(
    library: Library, specs: Sequence[Spec], shape: Shape, transposed: Flips, way: str
) -> Builder:
    """Return a product by one of the `WAYS`.

    Parameters
    ----------
    library : Library
    specs : sequence of Spec
        Of both factors, and of a row that is added if there is one.
    shape : (int, int, int)
        Rows and columns of the result, and between them the length of the sums.
    transposed : (bool, bool)
        Which factors lie transposed in memory.
    way : {"plain", "packed", "gemm", "turned"}

    Raises
    ------
    NotImplementedError
        If this way leads nowhere for these.
    """
    if way == "gemm":
        return _inner_product(library, specs, shape, transposed)
    if way == "turned":
        if transposed != (False, True):
            raise NotImplementedError("pays only where the second factor lies transposed")
        return turned_program(library, specs, shape)
    return _matmul(library, specs, shape, transposed, way == "packed")


def _product(
    library: Library, specs: Sequence[Spec], shape: Shape, transposed: Flips
) -> Builder:
    if math.prod(shape) < _SMALL:
        raise NotImplementedError("too small to pay")
    way = _way(shape, transposed, is_narrow(specs[0]))
    return product_program(library, specs, shape, transposed, way)


def _way(shape: Shape, transposed: Flips, narrow: bool) -> str:
    """Return the best way.

    Fitted to 2120 products of 2^18 to 2^31 multiplications, whose factors and results were not
    in the cache: they take 1.016 times the least of all ways (1.11 without ``gemm``, 1.05
    without ``turned``). The classic kernel falls behind where columns are few beside the rows.
    """
    rows, depth, columns = shape
    if transposed == (False, True) and not narrow and _turns(*shape):
        return "turned"
    good = {
        (True, False): depth <= 300 or columns > 600 or rows < 2 * columns + 300,
        (False, True): rows < _FEW or (rows >= 300 and columns >= 350),
        (False, False): columns >= 80,
        (True, True): False,
    }
    if columns > _WIDE:
        return "plain"
    if good[transposed] and not narrow:
        return "gemm"
    pays = not transposed[1] if narrow else transposed[1] or columns % 16 != 0
    return "packed" if rows >= _MANY and pays else "plain"


def _turns(rows: int, depth: int, columns: int) -> bool:
    """Return whether `turned_program` is the best: for a batch that fills registers, mostly."""
    fills = rows % 16 == 0 or rows < 16
    large = depth >= 6 * rows and columns >= max(128, 4 * rows)
    return _FEW <= rows <= 160 and fills and large


def _matmul(
    library: Library, specs: Sequence[Spec], shape: Shape, transposed: Flips, packs: bool
) -> Builder:
    """Return the product by ``matmul``."""
    rows, depth, columns = shape
    lies = {False: (0, 1), True: (1, 0)}
    source = library.layout((rows, depth), lies[transposed[0]], specs[0].dtype)
    weight = library.layout((depth, columns), lies[transposed[1]], specs[1].dtype)
    result = library.layout((rows, columns), (0, 1))
    bias = [library.layout((1, columns), (0, 1)) for _ in specs[2:]]
    build = Builder(library, [source, weight, *bias, result])
    taken = library.free_layout((depth, columns), specs[1].dtype) if packs else weight
    made = library.kernel(
        library.lib.dnnl_matmul_primitive_desc_create,
        *(library.engine, source, taken, bias[0] if bias else library.ffi.NULL, result),
    )
    if not library.implementation(made).startswith("brg"):
        raise NotImplementedError("no better than BLAS")
    build.layer(made)
    return build


def _inner_product(
    library: Library, specs: Sequence[Spec], shape: Shape, transposed: Flips
) -> Builder:
    """Return the product as one of the three of a dense layer, (N, I) by (O, I) to (N, O)."""
    if transposed == (True, True):
        raise NotImplementedError("a dense layer has no such product")
    rows, depth, columns = shape
    lib, engine, null = library.lib, library.engine, library.ffi.NULL
    bias = [library.layout(s.shape, (0,)) for s in specs[2:]]
    n, o, i = {
        (False, True): (rows, columns, depth),
        (False, False): (rows, depth, columns),
        (True, False): (depth, rows, columns),
    }[transposed]
    x, weight, y = (library.layout(s, (0, 1)) for s in ((n, i), (o, i), (n, o)))
    made = library.kernel(
        lib.dnnl_inner_product_forward_primitive_desc_create,
        *(engine, _TRAINING, x, weight, bias[0] if bias else null, y),
    )
    if transposed == (False, True):
        build = Builder(library, [x, weight, *bias, y])
        build.layer(made)
        return build
    if transposed == (False, False):
        create = lib.dnnl_inner_product_backward_data_primitive_desc_create
        made = library.kernel(create, engine, x, weight, y, made)
        layouts, args = [y, weight, x], [(_DIFF_DST, 0), (_WEIGHTS, 1), (_DIFF_SRC, 2)]
    else:
        create = lib.dnnl_inner_product_backward_weights_primitive_desc_create
        made = library.kernel(create, engine, x, weight, null, y, made)
        layouts, args = [y, x, weight], [(_DIFF_DST, 0), (_SRC, 1), (_DIFF_WEIGHTS, 2)]
    build = Builder(library, layouts)
    build.call(made, args)
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
