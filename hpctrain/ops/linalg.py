"""Products: matmul, batched and broadcasting as in NumPy, and the dense layer."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from hpctrain.autograd import Primitive, Spec, apply, register
from hpctrain.autograd.narrow import wide
from hpctrain.ops.blocks import WIDE, add_row, row_spec
from hpctrain.ops.dnnl_product import dense_program, matmul_program
from hpctrain.ops.dnnl_row import Products
from hpctrain.ops.rules import broadcast_shapes, fit, need, tensors

__all__ = ["bound_product", "dense", "matmul", "rows_by_weight", "rows_by_weight_scratch"]


def _infer(
    specs: Sequence[Spec], transpose_a: bool = False, transpose_b: bool = False
) -> list[Spec]:
    a, b = specs
    need(a.ndim >= 2 and b.ndim >= 2, "matmul", specs, "two axes or more each")
    m, k = a.shape[-2:][::-1] if transpose_a else a.shape[-2:]
    n, l = b.shape[-2:] if transpose_b else b.shape[-2:][::-1]  # noqa: E741
    need(k == l, "matmul", specs, f"equal lengths of the summed axes, not {k} and {l}")
    batch = broadcast_shapes("matmul", [a.with_shape(a.shape[:-2]), b.with_shape(b.shape[:-2])])
    return [wide(Spec((*batch, m, n), np.result_type(a.dtype, b.dtype)))]


def _suits_blas(x: Any) -> bool:
    """Return whether BLAS takes such strides; NumPy's own loop is 50 times slower."""
    rows, columns = x.strides[-2] // x.itemsize, x.strides[-1] // x.itemsize
    m, n = x.shape[-2:]
    fits = (columns == 1 and rows >= n) or (rows == 1 and columns >= m)
    return fits or m == 1 or n == 1


def bound_product(xp: Any, a: Any, b: Any, out: Any) -> Callable[[], None]:
    """Return the call that writes ``a @ b``; for small ones all but that call is overhead."""
    if _suits_blas(a) and _suits_blas(b):
        return _multiplying(xp, a, b, out)

    def copied() -> None:
        fit = [x if _suits_blas(x) else xp.ascontiguousarray(x) for x in (a, b)]
        _multiplying(xp, fit[0], fit[1], out)()

    return copied


def _multiplying(xp: Any, a: Any, b: Any, out: Any) -> Callable[[], None]:
    """Make one product of matrices of it where ``b`` is one matrix."""
    if b.ndim == 2 and a.ndim > 2 and a.flags.c_contiguous:
        a, out = a.reshape(-1, a.shape[-1]), out.reshape(-1, out.shape[-1])
    return partial(xp.matmul, a, b, out)


def _matmul_ready(
    xp: Any,
    ins: Any,
    outs: Any,
    scratch: Any,
    transpose_a: bool = False,
    transpose_b: bool = False,
) -> Callable[[], None]:
    a, b = ins
    a = a.swapaxes(-1, -2) if transpose_a else a
    return bound_product(xp, a, b.swapaxes(-1, -2) if transpose_b else b, outs[0])


def _matmul(xp: Any, ins: Any, outs: Any, scratch: Any, **attrs: Any) -> None:
    _matmul_ready(xp, ins, outs, scratch, **attrs)()


def _vjp(
    inputs: Any, outputs: Any, given: Any, transpose_a: bool = False, transpose_b: bool = False
) -> list[Any]:
    (a, b), g = inputs, given[0]
    flat = b.ndim == 2 and a.ndim > 2 and not transpose_a
    rows = _rows if flat else (lambda x: x)
    return [
        lambda: fit(_grad_a(b, g, transpose_a, transpose_b), a),
        lambda: fit(_grad_b(rows(a), rows(g), transpose_a, transpose_b), b),
    ]


def _rows(x: Any) -> Any:
    """Make all axes but the last one axis."""
    return apply("reshape", x, shape=(math.prod(x.shape[:-1]), x.shape[-1]))


def _grad_a(b: Any, g: Any, transpose_a: bool, transpose_b: bool) -> Any:
    if transpose_a:
        return matmul(b, g, transpose_b, True)
    return matmul(g, b, False, not transpose_b)


def _grad_b(a: Any, g: Any, transpose_a: bool, transpose_b: bool) -> Any:
    if transpose_b:
        return matmul(g, a, True, transpose_a)
    return matmul(a, g, not transpose_a, False)


def _part(
    ins: Any, start: int, stop: int, transpose_a: bool = False, transpose_b: bool = False
) -> list[Any] | None:
    """Return the factors of some rows of a product of two matrices."""
    a, b = ins
    if a.ndim > 2 or b.ndim > 2:
        return None
    return [a[:, start:stop] if transpose_a else a[start:stop], b]


_MATMUL = Products(_infer, matmul_program, _matmul, lambda specs, **_: [],
                     ready=_matmul_ready)  # fmt: skip

register(Primitive("matmul", "contract", _infer, _MATMUL.kernel, _vjp, part=_part,
                   **_MATMUL.columns))  # fmt: skip


def matmul(a: Any, b: Any, transpose_a: bool = False, transpose_b: bool = False) -> Any:
    """Return the matrix product over the last two axes.

    Parameters
    ----------
    a : array_like, shape (..., m, k), or (..., k, m) with ``transpose_a``, or (k,)
    b : array_like, shape (..., k, n), or (..., n, k) with ``transpose_b``, or (k,)

    Returns
    -------
    Tensor, shape (..., m, n)
        The axes in front broadcast; a vector's own axis is left out.

    Notes
    -----
    Cost: ``2 m k n`` operations for each matrix, at the speed of BLAS.
    """
    a, b = tensors(a, b)
    vectors = a.ndim == 1, b.ndim == 1
    if vectors[0]:
        a, transpose_a = a.reshape(1, -1), False
    if vectors[1]:
        b, transpose_b = b.reshape(-1, 1), False
    y = apply("matmul", a, b, transpose_a=bool(transpose_a), transpose_b=bool(transpose_b))
    if not any(vectors):
        return y
    rows = () if vectors[0] else (y.shape[-2],)
    return y.reshape(*y.shape[:-2], *rows, *(() if vectors[1] else (y.shape[-1],)))


# Dense layer: x (..., in), weight (out, in), bias (out,)


def _dense_infer(specs: Sequence[Spec]) -> list[Spec]:
    x, weight = specs[:2]
    fits = x.ndim >= 1 and weight.ndim == 2 and x.shape[-1] == weight.shape[1]
    need(fits, "dense", specs, "x of shape (..., in) and weight of shape (out, in)")
    for bias in specs[2:]:
        need(bias.shape == weight.shape[:1], "dense", specs, "bias of shape (out,)")
    dtype = np.result_type(*(s.dtype for s in specs))
    return [wide(Spec((*x.shape[:-1], weight.shape[0]), dtype))]


def _dense_scratch(specs: Sequence[Spec]) -> list[Spec]:
    return [row_spec(bias, bias.size) for bias in specs[2:]]


def _dense(xp: Any, ins: Any, outs: Any, scratch: Any) -> None:
    _dense_ready(xp, ins, outs, scratch)()


def _dense_vjp(inputs: Any, outputs: Any, given: Any) -> list[Any]:
    x, weight, *bias = inputs
    g = given[0]

    lead = tuple(range(g.ndim - 1))
    return [
        lambda: fit(matmul(_rows(g), weight).reshape(x.shape), x),
        lambda: fit(matmul(_rows(g), _rows(x), transpose_a=True), weight),
        *((lambda b=b: fit(apply("sum", g, axis=lead, keepdims=False), b)) for b in bias),
    ]


def _dense_ready(xp: Any, ins: Any, outs: Any, scratch: Any) -> Callable[[], None]:
    x, out = (a[None] if a.ndim == 1 else a for a in (ins[0], outs[0]))
    run = bound_product(xp, x, ins[1].T, out)
    if len(ins) == 2:
        return run
    if out.size > WIDE:
        add: Any = partial(add_row, xp, out, ins[2], scratch[0])
    else:
        add = partial(xp.add, out, ins[2], out)

    def both() -> None:
        run()
        add()

    return both


_DENSE = Products(_dense_infer, dense_program, _dense, _dense_scratch, ready=_dense_ready)

register(Primitive("dense", "contract", _dense_infer, _DENSE.kernel, _dense_vjp,
                   **_DENSE.columns))  # fmt: skip


def rows_by_weight_scratch(rows: Spec, weight: Spec) -> Sequence[Spec]:
    """Return the scratch of `rows_by_weight`."""
    return _DENSE.scratch([rows, weight])


def rows_by_weight(xp: Any, rows: Any, weight: Any, out: Any, scratch: Any) -> None:
    """Write ``rows @ weight.T`` of two matrices, for kernels of which that is a part."""
    _DENSE.kernel(xp, [rows, weight], [out], scratch)


def dense(x: Any, weight: Any, bias: Any = None) -> Any:
    """Return ``x @ weight.T + bias``.

    Parameters
    ----------
    x : array_like, shape (..., in)
    weight : array_like, shape (out, in)
    bias : array_like, shape (out,), or None

    Returns
    -------
    Tensor, shape (..., out)

    Raises
    ------
    ShapeError
        If the lengths do not fit.
    """
    given = (x, weight) if bias is None else (x, weight, bias)
    return apply("dense", *tensors(*given))
