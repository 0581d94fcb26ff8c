"""Batch normalisation as programs of oneDNN.

Mean and variance are taken in two passes, as in `hpctrain.ops.moments`; the library has
kernels for whole vectors of channels only.
"""

import math
from typing import Any

from hpctrain.autograd import Spec
from hpctrain.ops.dnnl import Library
from hpctrain.ops.dnnl_program import Builder

__all__ = ["batch_grad_program", "batch_program"]

_TRAINING, _BACKWARD = 64, 128
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


def batch_program(library: Library, specs: Any, outs: Any, attrs: Any) -> Builder:
    """Return ``batch_norm``: (x, gamma, beta) to (y, mean, var)."""
    pixels, vector = _layouts(library, specs[0])
    build = Builder(library, [pixels, vector, vector, pixels, vector, vector])
    slots = (_SRC, _SCALE, _SHIFT, _DST, _MEAN, _VARIANCE)
    made = _forward(library, pixels, attrs["eps"])
    build.call(made, [(argument, slot) for slot, argument in enumerate(slots)])
    return build


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
