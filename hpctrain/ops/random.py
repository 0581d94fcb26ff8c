"""Dropout, with masks that do not depend on how a batch is divided over ranks.

A *stream* is a tensor of three uint64: (key, counter, row). The key is a layer's own, the
counter counts its calls, and row is the number of this rank's first sample in the batch of
all ranks. The bits of a sample are a function of (key, counter, number of the sample) alone,
so p ranks draw what one rank would draw, and a step that is run again draws the same again.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from hpctrain.autograd import Primitive, Spec, apply, register
from hpctrain.backend import to_host
from hpctrain.ops.blocks import (
    BLOCK,
    as_bits,
    block_spec,
    chunks,
    mask_bits,
    rows_per_block,
    spans,
)
from hpctrain.ops.cut import Cut, Team
from hpctrain.ops.rules import axis_of, floating, need, tensors

__all__ = ["advance", "dropout", "dropout_part"]

PER_BLOCK = 8  # uint32 numbers in one block of Philox 4x64, the unit of its counter


def _keep(mask: Any, stream: Any, rate: float) -> None:
    """Fill ``mask``, shape (rows, ...), of any strides, with True at probability 1 - rate."""
    key, counter, first = (int(n) for n in stream)
    row = math.prod(mask.shape[1:])
    blocks = -(-row // PER_BLOCK)
    if not mask.size:
        return
    bits = np.random.Philox(key=np.array([key, counter], np.uint64), counter=first * blocks)
    threshold = np.uint32(min(round(rate * 2**32), 2**32 - 1))
    for span in spans(len(mask), rows_per_block(blocks * PER_BLOCK, 4 * BLOCK)):
        part = mask[span]
        raw = bits.random_raw(len(part) * blocks * PER_BLOCK // 2)
        drawn = raw.view(np.uint32).reshape(len(part), -1)[:, :row]
        np.greater_equal(drawn.reshape(part.shape), threshold, out=part)


def _scaled(xp: Any, arrays: Sequence[Any], scratch: Any, rate: float) -> None:
    """Write ``out = x * mask / (1 - rate)`` for the arrays x, mask, out."""
    for (x, mask, out), (t,) in chunks(xp, arrays, scratch):
        mask_bits(xp, mask, t)
        xp.bitwise_and(as_bits(x), t, out=t)
        xp.multiply(t.view(x.dtype), 1 / (1 - rate), out=out)


def _scratch(specs: Sequence[Spec], **_: Any) -> list[Spec]:
    x = specs[0]
    return block_spec(Spec(x.shape, np.dtype(f"i{x.dtype.itemsize}")))


def _infer(specs: Sequence[Spec], rate: float, batch_axis: int = 0) -> list[Spec]:
    x, stream = specs
    need(0 <= rate < 1, "dropout", specs, f"a rate from 0 to below 1, not {rate}")
    fits = stream.shape == (3,) and stream.dtype == np.uint64 and 0 <= batch_axis < x.ndim
    need(fits, "dropout", specs, "x with a batch axis and a stream uint64[3]")
    return [floating("dropout", x), Spec(x.shape, np.dtype(np.bool_))]


def _kernel(
    xp: Any, ins: Any, outs: Any, scratch: Any, rate: float, batch_axis: int = 0
) -> None:
    mask = xp.moveaxis(outs[1], batch_axis, 0)
    if xp is np:
        _keep(mask, ins[1], rate)
    else:
        drawn = np.empty(mask.shape, np.bool_)
        _keep(drawn, to_host(ins[1]), rate)
        mask[...] = xp.asarray(drawn)
    _scaled(xp, [ins[0], outs[1], outs[0]], scratch, rate)


def _grad_infer(specs: Sequence[Spec], rate: float) -> list[Spec]:
    fits = specs[0].shape == specs[1].shape and specs[1].dtype == np.bool_
    need(fits, "dropout_grad", specs, "a mask of the shape of the cotangent")
    return [specs[0]]


def _grad(xp: Any, ins: Any, outs: Any, scratch: Any, rate: float) -> None:
    _scaled(xp, [*ins, *outs], scratch, rate)


def _vjp(i: Any, o: Any, g: Any, rate: float, batch_axis: int = 0) -> list[Any]:
    return [lambda: apply("dropout_grad", g[0], o[1], rate=rate), None]


register(
    Primitive("dropout", "random", _infer, _kernel, _vjp, scratch=_scratch, inplace=((0, 0),))
)
register(
    Primitive(
        "dropout_grad", "elementwise", _grad_infer, _grad,
        lambda i, o, g, rate: [lambda: apply("dropout_grad", g[0], i[1], rate=rate), None],
        scratch=_scratch, inplace=((0, 0),),
    )
)  # fmt: skip


def dropout(x: Any, stream: Any, rate: float, batch_axis: int = 0) -> tuple[Any, Any]:
    """Set elements to 0 at random and scale the others up, so that the mean stays.

    Parameters
    ----------
    x : array_like, floating
    stream : Tensor, shape (3,), uint64
        (key, counter, number of the first row in the whole batch).
    rate : float
        Probability of 0, at least 0 and below 1.
    batch_axis : int
        The axis along which samples are numbered.

    Returns
    -------
    y : Tensor, of the shape and dtype of ``x``
    mask : Tensor, bool
        True where an element was kept.

    Notes
    -----
    Draws one 32-bit number for each element, in whole blocks of 8 for each sample.

    References
    ----------
    Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
    """
    (x,), (stream,) = tensors(x), tensors(stream)
    axis = axis_of("dropout", batch_axis, x.ndim)
    y, mask = apply("dropout", x, stream, rate=float(rate), batch_axis=axis)
    return y, mask


def dropout_part(  # noqa: PLR0913 (dropout, and which part)
    x: Any, stream: Any, rate: float, team: Team, cut: Cut, length: int, batch_axis: int = 0
) -> Any:
    """Drop what `hpctrain.ops.dropout` drops of the whole, of which ``x`` is this rank's part.

    Parameters
    ----------
    x, stream, rate, batch_axis
        As there; the axis that is cut is another one.
    team : Team
    cut : Cut
    length : int
        Of the axis that is cut.

    Returns
    -------
    y, mask : Tensor

    Notes
    -----
    Draws the numbers of the whole, some rows at a time.
    """
    attrs = {"team": team, "cut": cut, "length": int(length), "batch_axis": int(batch_axis)}
    return apply("dropout_part", x, stream, rate=float(rate), **attrs)


def _part_infer(
    specs: Sequence[Spec], *, rate: float, batch_axis: int, **more: Any
) -> list[Spec]:
    need(more["cut"].axis != batch_axis, "dropout_part", specs, "a cut of another axis")
    return _infer(specs, rate, batch_axis)


def _draw(
    xp: Any, ins: Any, outs: Any, scratch: Any, *, rate: float, batch_axis: int, **more: Any
) -> None:
    x, stream = ins
    team, cut, length = more["team"], more["cut"], more["length"]
    shape = list(x.shape)
    shape[cut.axis] = length
    count, shape[batch_axis] = shape[batch_axis], 1
    key, counter, first = (int(n) for n in to_host(stream))
    for sample in range(count):  # the mask of one whole sample at a time
        whole = np.empty(shape, np.bool_)
        _keep(np.moveaxis(whole, batch_axis, 0), (key, counter, first + sample), rate)
        part = cut.part(whole, team)
        place = (slice(None),) * batch_axis + (slice(sample, sample + 1),)
        outs[1][place] = xp.asarray(part)
    _scaled(xp, [x, outs[1], outs[0]], scratch, rate)


def _draw_vjp(i: Any, o: Any, g: Any, *, rate: float, **more: Any) -> list[Any]:
    return [lambda: apply("dropout_grad", g[0], o[1], rate=rate), None]


register(Primitive("dropout_part", "random", _part_infer, _draw, _draw_vjp,
                   scratch=_scratch, inplace=((0, 0),)))  # fmt: skip


def _advance(xp: Any, ins: Any, outs: Any, scratch: Any) -> None:
    outs[0][...] = ins[0]
    outs[0][1] += 1


def _advance_infer(specs: Sequence[Spec]) -> list[Spec]:
    fits = specs[0].shape == (3,) and specs[0].dtype == np.uint64
    need(fits, "advance", specs, "a stream uint64[3]")
    return [specs[0]]


register(Primitive("advance", "random", _advance_infer, _advance, inplace=((0, 0),)))


def advance(stream: Any) -> Any:
    """Return the stream of the next call: the counter is one more."""
    return apply("advance", *tensors(stream))
