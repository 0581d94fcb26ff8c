"""Pooling as programs of oneDNN.

The library keeps the place of each maximum as our rows do: its number inside the window. But
it takes no notice of NaN, and to it no number is below the least finite one.
"""

from typing import Any

import numpy as np

from hpctrain.autograd import Spec
from hpctrain.ops.dnnl import Library
from hpctrain.ops.dnnl_program import Builder

__all__ = ["all_finite", "avg_grad_program", "avg_program", "max_grad_program", "max_program"]

_TRAINING = 64
_MAX, _MEAN_OF_ALL, _MEAN_OF_INSIDE = 0x1FF, 0x2FF, 0x3FF
_SRC, _DST, _WORKSPACE, _DIFF_SRC, _DIFF_DST = 1, 17, 64, 129, 145
_WORKSPACE_LAYOUT = 135


class _Pooling:
    """Layouts and arguments of the kernels of one pooling."""

    def __init__(self, library: Library, x: Spec, y: Spec, attrs: Any) -> None:
        self.library = library
        self.x, self.y = library.images(x), library.images(y)
        include = attrs.get("include")
        self.algorithm = (
            _MAX if include is None else _MEAN_OF_ALL if include else _MEAN_OF_INSIDE
        )
        padding, kernel = attrs["padding"], attrs["kernel"]
        self.geometry = [
            library.numbers(values)
            for values in (
                attrs["stride"],
                kernel,
                [0] * len(kernel),
                [before for before, _ in padding],
                [after for _, after in padding],
            )
        ]

    def forward(self) -> Any:
        """Describe the kernel of the forward pass."""
        library = self.library
        return library.kernel(
            library.lib.dnnl_pooling_forward_primitive_desc_create,
            *(library.engine, _TRAINING, self.algorithm, self.x, self.y),
            *self.geometry,
        )

    def backward(self) -> Any:
        """Describe the kernel of the backward pass."""
        library = self.library
        return library.kernel(
            library.lib.dnnl_pooling_backward_primitive_desc_create,
            *(library.engine, self.algorithm, self.x, self.y),
            *self.geometry,
            self.forward(),
        )

    def index(self, made: Any, spec: Spec) -> Any:
        """Describe the places of maxima; the kernel must want them as our row has them."""
        mine = self.library.images(spec)
        if not self.library.same(mine, self.library.chosen(made, _WORKSPACE_LAYOUT)):
            raise NotImplementedError("oneDNN keeps places of maxima in another way")
        return mine


def all_finite(ins: Any) -> bool:
    """Return whether squares of all elements add up to a finite number: one pass of BLAS."""
    flat = ins[0].reshape(-1)
    return bool(np.isfinite(np.dot(flat, flat)))


def max_program(library: Library, specs: Any, outs: Any, attrs: Any) -> Builder:
    """Return ``max_pool``: x to (y, index)."""
    pool = _Pooling(library, specs[0], outs[0], attrs)
    made = pool.forward()
    build = Builder(library, [pool.x, pool.y, pool.index(made, outs[1])])
    build.call(made, [(_SRC, 0), (_DST, 1), (_WORKSPACE, 2)])
    return build


def max_grad_program(library: Library, specs: Any, outs: Any, attrs: Any) -> Builder:
    """Return ``max_pool_grad``: (dy, index) to dx."""
    pool = _Pooling(library, outs[0], specs[0], attrs)
    made = pool.backward()
    build = Builder(library, [pool.y, pool.index(made, specs[1]), pool.x])
    build.call(made, [(_DIFF_DST, 0), (_WORKSPACE, 1), (_DIFF_SRC, 2)])
    return build


def avg_program(library: Library, specs: Any, outs: Any, attrs: Any) -> Builder:
    """Return ``avg_pool``: x to y."""
    pool = _Pooling(library, specs[0], outs[0], attrs)
    build = Builder(library, [pool.x, pool.y])
    build.call(pool.forward(), [(_SRC, 0), (_DST, 1)])
    return build


def avg_grad_program(library: Library, specs: Any, outs: Any, attrs: Any) -> Builder:
    """Return ``avg_pool_grad``: dy to dx."""
    pool = _Pooling(library, outs[0], specs[0], attrs)
    build = Builder(library, [pool.y, pool.x])
    build.call(pool.backward(), [(_DIFF_DST, 0), (_DIFF_SRC, 1)])
    return build
