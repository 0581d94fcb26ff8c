"""Convolutions that go on: what follows them element by element, done on results in cache.

oneDNN calls it post-ops. A sum with an array or with one number for each channel and the leaky
rectifier give the bits that separate kernels give: the convolution is the same kernel, and the
sums of its products end before. A rectifier of slope 0 is not among them: the library makes 0
of what is not a number. The transposed kind is the library's ``deconvolution``, where that runs
the kernel of the gradient; with strides it takes another one mostly, whose bits are others.

Measured on an Emerald Rapids core, ms: 7.46 for 8 volumes of 32^3 from 4 to 16 channels, 7.60
with the rectifier, which alone takes 0.9; 2.10 for 8 images of 64 x 64 from 32 to 16 channels
by the transposed kind and then a bias, 1.86 together.
"""

from collections.abc import Sequence
from typing import Any

from hpctrain.autograd import Spec
from hpctrain.ops.dnnl import Library
from hpctrain.ops.dnnl_conv import Convolution, data_program
from hpctrain.ops.dnnl_program import Builder

__all__ = ["After", "addends", "data_then_program", "forward_then_program", "possible"]

After = tuple[tuple[str, tuple[tuple[str, Any], ...]], ...]  # rows with their attributes

_TRAINING, _DECONVOLUTION = 64, 10
_SRC, _DST, _WEIGHTS, _BIAS, _WEIGHTS_LAYOUT = 1, 17, 33, 41, 131
_ADD, _RECTIFIER, _USER_SCRATCHPAD = 0x1FFF0, 0x20, 1
_PLAIN = "conv:any"  # what the library calls a gradient with plain loops behind it
_AFTER, _OTHER = 32768, 2  # argument of the first step's other array; the second has twice that


def addends(after: After) -> int:
    """Return how many steps take an input."""
    return sum(name == "add" for name, _ in after)


def possible(after: After) -> bool:
    """Return whether the library does all of these steps as NumPy does."""
    return all(
        name == "add" or (name == "leaky_relu" and dict(attrs)["slope"] != 0)
        for name, attrs in after
    )


def _attributes(library: Library, after: After, others: Sequence[Any]) -> Any:
    """Return the attributes of a kernel with these steps, on layouts of other arrays."""
    lib, others = library.lib, list(others)
    chain = library.make(lib.dnnl_post_ops_create, destroy=lib.dnnl_post_ops_destroy)
    for name, attrs in after:
        if name == "add":
            lib.dnnl_post_ops_append_binary(chain, _ADD, others.pop(0))
        else:
            lib.dnnl_post_ops_append_eltwise(chain, _RECTIFIER, dict(attrs)["slope"], 0.0)
    attr = library.make(lib.dnnl_primitive_attr_create, destroy=lib.dnnl_primitive_attr_destroy)
    lib.dnnl_primitive_attr_set_scratchpad_mode(attr, _USER_SCRATCHPAD)
    lib.dnnl_primitive_attr_set_post_ops(attr, chain)
    return attr


def _like(library: Library, spec: Spec, images: Spec) -> Any:
    """Describe what is added to images: as many elements, or one for each channel."""
    channels = images.shape[-1:]
    ones = (1,) * (images.ndim - 1)
    return library.images(
        spec if spec.ndim == images.ndim else spec.with_shape(ones + channels)
    )


def _others(after: After, first: int) -> list[tuple[int, int]]:
    """Return the arguments of steps that take arrays, from slot ``first`` on."""
    places = [i for i, (name, _) in enumerate(after) if name == "add"]
    return [(_AFTER * (i + 1) | _OTHER, first + n) for n, i in enumerate(places)]


def forward_then_program(library: Library, specs: Any, outs: Any, attrs: Any) -> Builder:
    """Return ``conv_then``: x, weight, maybe a bias, and what is added, to y."""
    after = attrs["after"]
    first = len(specs) - addends(after)
    conv = Convolution(library, specs[0], specs[1], outs[0], attrs)
    bias = [conv.bias for _ in specs[2:first]]
    others = [_like(library, s, outs[0]) for s in specs[first:]]
    given = bias[0] if bias else library.ffi.NULL
    made = conv.forward(given, _attributes(library, after, others))
    if library.implementation(made) != library.implementation(conv.forward(given)):
        raise NotImplementedError("the best kernel does not go on")
    build = Builder(library, [conv.x, conv.weight, *bias, *others, conv.y])
    weight = build.taken(1, library.chosen(made, _WEIGHTS_LAYOUT))
    args = [(_SRC, 0), (_WEIGHTS, weight), (_DST, build.outer - 1), *_others(after, first)]
    build.call(made, [*args, (_BIAS, 2)] if bias else args)
    return build


def data_then_program(library: Library, specs: Any, outs: Any, attrs: Any) -> Builder:
    """Return ``conv_grad_data_then``: dy, weight, and what is added, to dx."""
    dy, weight, *rest = specs
    padding = _exact(dy, weight, attrs)
    conv = Convolution(library, outs[0], weight, dy, {**attrs, "padding": padding})
    others = [_like(library, s, outs[0]) for s in rest]
    layouts = _transposed(library, weight, attrs["groups"])
    made = library.kernel(
        library.lib.dnnl_deconvolution_forward_primitive_desc_create,
        *(library.engine, _TRAINING, _DECONVOLUTION, conv.y, layouts[1], library.ffi.NULL),
        *(conv.x, *conv.geometry),
        attr=_attributes(library, attrs["after"], others),
    )
    alone = data_program(library, specs[:2], outs, attrs).names[-1]
    lead, _, kernel = library.implementation(made).partition("+")
    if lead.startswith(_PLAIN) or kernel != alone.rpartition("+")[2]:
        raise NotImplementedError("the best kernel does not go on")
    build = Builder(library, [conv.y, layouts[0], *others, conv.x])
    place = build.taken(1, library.chosen(made, _WEIGHTS_LAYOUT))
    args = [(_SRC, 0), (_WEIGHTS, place), (_DST, build.outer - 1)]
    build.call(made, [*args, *_others(attrs["after"], 2)])
    return build


def _transposed(library: Library, weight: Spec, groups: int) -> tuple[Any, Any]:
    """Describe a weight as that of the transposed kind, as it lies and freely."""
    outputs, *kernel, channels = weight.shape
    lead = () if groups == 1 else (groups,)
    dims = (*lead, channels, outputs // groups, *kernel)
    at = len(lead)
    order = (*range(at), *range(at + 1, len(dims)), at)
    return library.layout(dims, order, weight.dtype), library.free_layout(dims, weight.dtype)


def _exact(dy: Spec, weight: Spec, attrs: Any) -> list[tuple[int, int]]:
    """Return the padding for which ``dy`` gives just as long axes as are wanted."""
    names = "size", "stride", "dilation", "padding"
    axes = zip(dy.shape[1:-1], weight.shape[1:-1], *(attrs[n] for n in names), strict=True)
    return [
        (before, (count - 1) * stride + dilation * (kernel - 1) + 1 - before - size)
        for count, kernel, size, stride, dilation, (before, _) in axes
    ]
