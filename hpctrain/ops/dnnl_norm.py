"""Batch and layer normalisation as programs of oneDNN.

Mean and variance are taken in two passes, as in `hpctrain.ops.moments`; for batches the library
has kernels for whole vectors of channels only.
"""

import math
from typing import Any

from hpctrain.autograd import Spec
from hpctrain.ops.dnnl import Library
from hpctrain.ops.dnnl_program import Builder

__all__ = ["batch_grad_program", "layer_grad_program", "layer_program"]

_TRAINING, _INFERENCE, _BACKWARD = 64, 96, 128
_LINEAR, _POWER = 0x26, 0x30
_NARROW = 16  # channels; a vector of float32 has as many
_SCALE_AND_SHIFT = 2 | 4
_SRC, _DST, _MEAN, _VARIANCE, _SCALE, _SHIFT = 1, 17, 49, 50, 51, 52
_DIFF_SRC, _DIFF_DST, _DIFF_SCALE, _DIFF_SHIFT = 129, 145, 255, 256


def _layouts(library: Library, x: Spec) -> tuple[Any, Any]:
    """Describe x as a row of pixels, and a vector of channels."""
    rows, channels = math.prod(x.shape[:-1]), x.shape[-1]
    pixels = library.images(x.with_shape((1, 1, rows, channels)))
    return pixels, library.layout((channels,), (0,))


def _forward(library: Library, pixels: Any, eps: float) -> Any:
    create = library.lib.dnnl_batch_normalization_forward_primitive_desc_create
    given = (_TRAINING, pixels, pixels, eps, _SCALE_AND_SHIFT)
    return library.kernel(create, library.engine, *given)


def batch_grad_program(library: Library, specs: Any, outs: Any, attrs: Any) -> Builder:
    """Return ``batch_norm_grad``: (dy, x, gamma, mean, var) to (dx, dgamma, dbeta)."""
    pixels, vector = _layouts(library, specs[1])
    build = Builder(library, [pixels, pixels, *[vector] * 3, pixels, vector, vector])
    slots = (_DIFF_DST, _SRC, _SCALE, _MEAN, _VARIANCE, _DIFF_SRC, _DIFF_SCALE, _DIFF_SHIFT)
    made = library.kernel(
        library.lib.dnnl_batch_normalization_backward_primitive_desc_create,
        *(library.engine, _BACKWARD, pixels, pixels, pixels, attrs["eps"], _SCALE_AND_SHIFT),
        _forward(library, pixels, attrs["eps"]),
    )
    build.call(made, [(argument, slot) for slot, argument in enumerate(slots)])
    return build


def _rows(library: Library, x: Spec) -> tuple[Any, Any, Any]:
    """Describe x as rows, one number for each of them, and a vector of channels."""
    count, channels = math.prod(x.shape[:-1]), x.shape[-1]
    if channels < _NARROW:
        raise NotImplementedError("rows too short for vectors")
    return (library.layout((count, channels), (0, 1)), library.layout((count,), (0,)),
            library.layout((channels,), (0,)))  # fmt: skip


def _layer_forward(library: Library, rows: Any, column: Any, eps: float) -> Any:
    create = library.lib.dnnl_layer_normalization_forward_primitive_desc_create
    given = (_TRAINING, rows, rows, column, eps, _SCALE_AND_SHIFT)
    return library.kernel(create, library.engine, *given)


def _function(library: Library, column: Any, which: int, alpha: float, beta: float) -> Any:
    create = library.lib.dnnl_eltwise_forward_primitive_desc_create
    return library.kernel(
        create, library.engine, _INFERENCE, which, column, column, alpha, beta
    )


def layer_program(library: Library, specs: Any, outs: Any, attrs: Any) -> Builder:
    """Return ``layer_norm``: (x, gamma, beta) to (y, mean, rstd)."""
    rows, column, vector = _rows(library, specs[0])
    build = Builder(library, [rows, vector, vector, rows, column, column])
    slots = (_SRC, _SCALE, _SHIFT, _DST, _MEAN, _VARIANCE)
    made = _layer_forward(library, rows, column, attrs["eps"])
    build.call(made, [(argument, slot) for slot, argument in enumerate(slots)])
    here = [(_SRC, 5), (_DST, 5)]  # from the variance to one over the root of it, in place
    build.call(_function(library, column, _LINEAR, 1.0, attrs["eps"]), here)
    build.call(_function(library, column, _POWER, 1.0, -0.5), here)
    return build


def layer_grad_program(library: Library, specs: Any, outs: Any, attrs: Any) -> Builder:
    """Return ``layer_norm_grad``: (dy, x, gamma, mean, rstd) to (dx, dgamma, dbeta)."""
    rows, column, vector = _rows(library, specs[1])
    build = Builder(library, [rows, rows, vector, column, column, rows, vector, vector])
    variance = build.slot(column)
    back = _function(library, column, _POWER, 1.0, -2.0)
    build.call(back, [(_SRC, 4), (_DST, variance)])
    made = library.kernel(
        library.lib.dnnl_layer_normalization_backward_primitive_desc_create,
        *(library.engine, _BACKWARD, rows, rows, rows, column, 0.0, _SCALE_AND_SHIFT),
        _layer_forward(library, rows, column, 0.0),
    )
    arguments = (_DIFF_DST, _SRC, _SCALE, _MEAN, None, _DIFF_SRC, _DIFF_SCALE, _DIFF_SHIFT)
    args = [(a, slot) for slot, a in enumerate(arguments) if a is not None]
    # It asks for the shift, too, but has no use for it.
    build.call(made, [*args, (_VARIANCE, variance), (_SHIFT, 2)])
    return build
