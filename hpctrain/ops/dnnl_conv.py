"""The three convolution rows as programs of oneDNN.

Images stay as they are, channels last. The library chooses the layout of the weight; it is
copied into that layout within the call, which takes some microseconds for weights as large as
those of image models, against milliseconds of the convolution.

For the gradient of a strided input the library takes a kernel first that the next one beats:
1.75 against 1.08 ms for 64 images of 32 x 32 x 16 and 32 outputs, 0.63 against 0.27 where the
kernel is 1 x 1, 3.25 against 2.83 for 256 channels (Sapphire Rapids, one core).

Dimension key: N images, S space (one to three axes), C channels, O outputs, K kernel,
G groups.
"""

from collections.abc import Sequence
from typing import Any

from hpctrain.autograd import Spec
from hpctrain.autograd.narrow import is_narrow
from hpctrain.ops.dnnl import Library
from hpctrain.ops.dnnl_program import Builder

__all__ = ["Convolution", "data_program", "forward_program", "weight_program"]

_TRAINING, _DIRECT = 64, 1
_SRC, _WEIGHTS = 1, 33
_DIFF_SRC, _DIFF_DST, _DIFF_WEIGHTS = 129, 145, 161
_WEIGHTS_LAYOUT, _DIFF_WEIGHTS_LAYOUT = 131, 132
_STRIDED = "brgconv_strided"


class Convolution:
    """Layouts of the arrays of a convolution, and the arguments of all its kernels.

    Two of input, weight and output are factors, which may be bfloat16; the third never is.
    """

    def __init__(self, library: Library, x: Spec, weight: Spec, y: Spec, attrs: Any) -> None:
        padding, groups = attrs["padding"], attrs["groups"]
        if min(min(pair) for pair in padding) < 0:
            raise NotImplementedError("oneDNN has no negative padding")
        outputs, *kernel, channels = weight.shape
        lead = (outputs,) if groups == 1 else (groups, outputs // groups)
        dims, axes = (*lead, channels, *kernel), len(lead)
        order = (*range(axes), *range(axes + 1, len(dims)), axes)
        self.library, self.specs, self.attrs = library, (x, weight, y), attrs
        self.x, self.y = library.images(x), library.images(y)
        self.weight = library.layout(dims, order, weight.dtype)
        self.free = library.free_layout(dims, weight.dtype)
        self.bias = library.layout((outputs,), (0,))
        self.geometry = [
            library.numbers(values)
            for values in (
                attrs["stride"],
                [d - 1 for d in attrs["dilation"]],
                [before for before, _ in padding],
                [after for _, after in padding],
            )
        ]

    def forward(self, bias: Any, attr: Any = None) -> Any:
        """Describe the kernel of the forward pass."""
        library = self.library
        return library.kernel(
            library.lib.dnnl_convolution_forward_primitive_desc_create,
            *(library.engine, _TRAINING, _DIRECT, self.x, self.free, bias, self.y),
            *self.geometry,
            attr=attr,
        )

    def backward(self, create: Any, dtype: Any, *layouts: Any) -> Any:
        """Describe the kernel of a backward pass whose factors are of ``dtype``."""
        library = self.library
        x, weight, y = (Spec(s.shape, dtype) for s in self.specs)
        hint = Convolution(library, x, weight, y, self.attrs).forward(library.ffi.NULL)
        given = create, library.engine, _DIRECT, *layouts, *self.geometry, hint
        return library.after(library.kernel(*given), _STRIDED) or library.kernel(*given)


def forward_program(library: Library, specs: Any, outs: Any, attrs: Any) -> Builder:
    """Return ``conv``: (x, weight) or (x, weight, bias) to y."""
    conv = Convolution(library, specs[0], specs[1], outs[0], attrs)
    bias = [conv.bias for _ in specs[2:]]
    build = Builder(library, [conv.x, conv.weight, *bias, conv.y])
    build.layer(conv.forward(bias[0] if bias else library.ffi.NULL))
    return build


def data_program(library: Library, specs: Any, outs: Any, attrs: Any) -> Builder:
    """Return ``conv_grad_data``: (dy, weight) to dx."""
    dy, weight = specs
    conv = Convolution(library, outs[0], weight, dy, attrs)
    build = Builder(library, [conv.y, conv.weight, conv.x])
    create = library.lib.dnnl_convolution_backward_data_primitive_desc_create
    made = conv.backward(create, weight.dtype, conv.x, conv.free, conv.y)
    place = build.taken(1, library.chosen(made, _WEIGHTS_LAYOUT))
    build.call(made, [(_DIFF_DST, 0), (_WEIGHTS, place), (_DIFF_SRC, 2)])
    return build


def weight_program(library: Library, specs: Any, outs: Any, attrs: Any) -> Builder:
    """Return ``conv_grad_weight``: (x, dy) to the gradient of the weight."""
    x, dy = specs
    if is_narrow(x) and not _all_meet(x.shape[1:-1], dy.shape[1:-1], attrs):
        raise NotImplementedError(
            "version 3.2 leaves out weights that meet nothing but padding"
        )
    conv = Convolution(library, x, outs[0], dy, attrs)
    build = Builder(library, [conv.x, conv.y, conv.weight])
    create = library.lib.dnnl_convolution_backward_weights_primitive_desc_create
    made = conv.backward(create, x.dtype, conv.x, conv.free, library.ffi.NULL, conv.y)
    place, finish = build.given(2, library.chosen(made, _DIFF_WEIGHTS_LAYOUT))
    build.call(made, [(_SRC, 0), (_DIFF_DST, 1), (_DIFF_WEIGHTS, place)])
    finish()
    return build


def _all_meet(size: Sequence[int], out: Sequence[int], attrs: Any) -> bool:
    """Return whether each place of the kernel meets the input somewhere, not padding only."""
    axes = zip(size, out, *(attrs[k] for k in ("kernel", "stride", "dilation")), strict=True)
    for (length, count, kernel, stride, dilation), pads in zip(
        axes, attrs["padding"], strict=True
    ):
        for start in range(-pads[0], kernel * dilation - pads[0], dilation):
            if not any(0 <= start + o * stride < length for o in range(count)):
                return False
    return True
