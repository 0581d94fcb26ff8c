"""Softmax along the last axis, its logarithm, and both gradients, as programs of oneDNN.

Measured on a Sapphire Rapids core, ms, NumPy's blocks against this, forward and backward:
2048 x 65 0.42, 0.25 against 0.12, 0.05; 512 x 1024 1.09, 0.80 against 0.33, 0.27.

In a row with NaN the library leaves other elements finite: such arrays stay with NumPy.
"""

import functools
import math
from typing import Any

import numpy as np

from hpctrain.autograd import Spec
from hpctrain.ops.dnnl import Library
from hpctrain.ops.dnnl_program import Builder

__all__ = ["no_nan", "softmax_grad_program", "softmax_program"]

_TRAINING, _ACCURATE, _LOGARITHM = 64, 0x30000, 0x30001
_SRC, _DST, _DIFF_SRC, _DIFF_DST = 1, 17, 129, 145


def no_nan(ins: Any) -> bool:
    """Return whether no element is NaN."""
    return not np.isnan(ins[0].max(initial=0.0))


def _rows(library: Library, x: Spec, axis: int) -> Any:
    if axis != x.ndim - 1:
        raise NotImplementedError("an axis with others behind it")
    return library.layout((math.prod(x.shape[:-1]), x.shape[-1]), (0, 1))


def _forward(library: Library, rows: Any, algorithm: int) -> Any:
    create = library.lib.dnnl_softmax_forward_primitive_desc_create
    return library.kernel(create, library.engine, _TRAINING, algorithm, rows, rows, 1)


def _program(library: Library, specs: Any, outs: Any, attrs: Any, algorithm: int) -> Builder:
    rows = _rows(library, specs[0], attrs["axis"])
    build = Builder(library, [rows, rows])
    build.call(_forward(library, rows, algorithm), [(_SRC, 0), (_DST, 1)])
    return build


def _grad(library: Library, specs: Any, outs: Any, attrs: Any, algorithm: int) -> Builder:
    rows = _rows(library, specs[0], attrs["axis"])
    build = Builder(library, [rows, rows, rows])
    forward = _forward(library, rows, algorithm)
    made = library.kernel(
        library.lib.dnnl_softmax_backward_primitive_desc_create,
        *(library.engine, algorithm, rows, rows, rows, 1, forward),
    )
    build.call(made, [(_DST, 0), (_DIFF_DST, 1), (_DIFF_SRC, 2)])
    return build


def softmax_program(logarithm: bool) -> Any:
    """Return what makes ``softmax`` or ``log_softmax``: x to y."""
    return functools.partial(_program, algorithm=_LOGARITHM if logarithm else _ACCURATE)


def softmax_grad_program(logarithm: bool) -> Any:
    """Return what makes their gradients: (y, dy) to dx."""
    return functools.partial(_grad, algorithm=_LOGARITHM if logarithm else _ACCURATE)
