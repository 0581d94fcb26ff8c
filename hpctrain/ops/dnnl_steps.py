"""Products of a recurrence by oneDNN: a weight packed once in a call, then step after step.

A step multiplies few rows by a weight that does not fit into the level-2 cache. Measured on
a Sapphire Rapids core, 32 x 512 by 512 x 2048, least of 40 alternating runs, ms, when a large
product of as many operations took 0.52:

- OpenBLAS: 1.47 with the weight as it is, 1.05 with it transposed before, 0.82 with the
  result transposed (which must be turned back), 0.99 in pieces that it does not pack;
- this way: 0.69 for a gate at a time with its function, on results that are in cache still;
  0.62 for all at once, after which NumPy's functions take longer than the difference;
- 0.64 if every other step goes through the gates backwards: a part of the weight is in the
  level-2 cache from the step before. All of it there would give 0.55.

To pack the weight takes 0.9 in a call. No gain: rows of weight and results padded against
aliasing, the bias added by NumPy, eight pieces or sixteen. The library's own LSTM for whole
sequences takes 0.85 of the time of these kernels forward, but what it keeps for the gradient
has a layout of its own, and its gradient gives all results at once, so none early.
"""

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpctrain.autograd import Spec
from hpctrain.autograd.narrow import is_narrow, narrowed
from hpctrain.ops.dnnl import Library, library
from hpctrain.ops.dnnl_program import Bound, Builder, Program

__all__ = ["Piece", "StepProduct", "half_angles", "plain_factors", "whole"]

_SRC, _DST, _WEIGHTS, _BIAS, _WEIGHTS_LAYOUT = 1, 17, 33, 41, 131
_FUNCTIONS = {"": None, "tanh": 0x21, "sigmoid": 0x29}
_ADD, _MULTIPLY, _OTHER = 0x1FFF0, 0x1FFF1, 2
_AFTER = 32768  # argument of the first function after a product; the second has twice as much
_SMALL = 1 << 16  # multiplications in a step; below it calls cost more than they save
_ITEM = np.dtype(np.float32).itemsize  # of results


@dataclass(frozen=True, slots=True)
class Piece:
    """Neighbouring columns of a product, made by one kernel.

    Attributes
    ----------
    start, width : int
        Which columns.
    stride : int
        Elements from a row of the result to the next.
    offset : int
        Elements from the start of the result to these columns.
    target : int
        Which of the results of a step.
    adds : bool
        Whether the product is added to what is there.
    function : {"", "sigmoid", "tanh", "gates"}
        Applied to the sum; ``gates``: those of an LSTM, side by side.
    """

    start: int
    width: int
    stride: int
    offset: int = 0
    target: int = 0
    adds: bool = False
    function: str = ""


@dataclass(frozen=True, slots=True)
class StepProduct:
    """``rows @ weight.T + bias``, or ``rows @ weight``, step after step with one weight.

    For a weight of bfloat16 the kernels round the rows as well. Those for AMX write whole rows
    only, so the product is in one piece.

    Attributes
    ----------
    transposed, biased : bool
    split : callable ``(columns) -> sequence of Piece``
        Which kernels make the columns of the product.
    dtype : {"float32", "bfloat16"}
        Of the weights that it is for.
    """

    transposed: bool
    biased: bool
    split: Callable[[int], Sequence[Piece]]
    dtype: str = "float32"

    def scratch(self, rows: int, weight: Spec) -> list[Spec]:
        """Return the spec of the bytes that oneDNN needs, if it is to do it."""
        made = self._program(rows, weight)
        return [] if made is None else [Spec((made[0].nbytes,), np.dtype(np.uint8))]

    def narrows(self, rows: int, weight: Spec) -> bool:
        """Return whether there are kernels for this weight in bfloat16."""
        rounded = narrowed(weight)
        return rounded is not None and self._program(rows, rounded) is not None

    def ready(
        self, xp: Any, rows: int, weight: Any, bias: Any, scratch: Any
    ) -> Callable[..., None] | None:
        """Pack the weight and return the step, or None where oneDNN is not to do it.

        The step takes an array of shape (rows, depth), then the arrays of its results, all
        C-contiguous.
        """
        made = self._program(rows, Spec.of(weight)) if xp is np else None
        if made is None:
            return None
        program, packs, lead = made
        pieces = self._pieces(Spec.of(weight))
        weight = np.ascontiguousarray(weight)
        columns = weight if self.transposed else weight.T
        parts = [columns[p.start : p.start + p.width] for p in pieces]
        if self.biased:
            bias = np.ascontiguousarray(bias)
            parts += [bias[p.start : p.start + p.width] for p in pieces]
        # The source and the results come with each step.
        bound = program.bound([*parts, *[scratch] * (1 + len(pieces))], scratch)
        bound.run(bound.calls[:packs])
        places = [(p.target, p.offset * _ITEM) for p in pieces]
        # What the last step has read last is in cache still: go back and forth.
        first, calls = bound.calls[packs:lead], bound.calls[lead:]
        turns = itertools.cycle(([*first, *calls], [*first, *calls[::-1]]))
        return functools.partial(_step, bound, turns, len(parts), places)

    def _pieces(self, weight: Spec) -> Sequence[Piece]:
        return self.split(weight.shape[0 if self.transposed else 1])

    def _program(self, rows: int, weight: Spec) -> tuple[Program, int, int] | None:
        found = library()
        if found is None or weight.dtype.name != self.dtype or rows * weight.size < _SMALL:
            return None
        if is_narrow(weight) and not found.narrow:
            return None
        return _made(found.threads(), rows, weight, self)


@functools.lru_cache(maxsize=256)
def _made(
    threads: int, rows: int, weight: Spec, product: StepProduct
) -> tuple[Program, int, int] | None:
    found = library()
    assert found is not None, "asked only where it is there"
    found.use_threads(threads)
    try:
        return _build(found, rows, weight, product, threads)
    except NotImplementedError:
        return None


def _build(
    found: Library, rows: int, weight: Spec, product: StepProduct, threads: int
) -> tuple[Program, int, int]:
    """Return a program, and how many of its calls pack weights, then also round rows."""
    dtype = weight.dtype
    columns, depth = weight.shape if product.transposed else weight.shape[::-1]
    strides = (1, depth) if product.transposed else (columns, 1)
    pieces = product.split(columns)
    count = len(pieces)
    source = found.matrix((rows, depth), (depth, 1))
    weights = [found.matrix((depth, p.width), strides, dtype) for p in pieces]
    biases = [found.matrix((1, p.width), (p.width, 1)) for p in pieces if product.biased]
    results = [found.matrix((rows, p.width), (p.stride, 1)) for p in pieces]
    build = Builder(found, [*weights, *biases, source, *results])
    rounded = found.matrix((rows, depth), (depth, 1), dtype)
    made = []
    for i, piece in enumerate(pieces):
        layouts = rounded, found.free_layout((depth, piece.width), dtype), results[i]
        made.append(_describe(found, layouts, biases[i] if biases else found.ffi.NULL, piece))
    packed = [build.taken(i, found.chosen(m, _WEIGHTS_LAYOUT)) for i, m in enumerate(made)]
    packs, first = len(build.calls), count + len(biases)
    taken = build.taken(first, rounded)
    lead = len(build.calls)
    for i, kernel in enumerate(made):
        args = [(_SRC, taken), (_WEIGHTS, packed[i]), (_DST, first + 1 + i)]
        args += [(_BIAS, count + i)] if biases else []
        if pieces[i].function == "gates":
            args += _gate_rows(build, columns, pieces[i].adds)
        build.call(kernel, args)
    return build.program(threads), packs, lead


def whole(columns: int, adds: bool = False, function: str = "") -> Sequence[Piece]:
    """Leave a product in one piece."""
    return [Piece(0, columns, columns, adds=adds, function=function)]


def half_angles(scale: Any, shift: Any) -> None:
    """Set the rows with which one tanh serves all: sigmoid(x) = tanh(x / 2) / 2 + 1 / 2."""
    width = scale.size // 4
    scale[...] = shift[...] = 0.5
    scale[2 * width : 3 * width] = 1
    shift[2 * width : 3 * width] = 0


def _gates(found: Library, columns: int, adds: bool) -> Any:
    """Return attributes of a product of which one kernel makes all gates of an LSTM."""
    lib, row = found.lib, found.matrix((1, columns), (columns, 1))
    attr = found.attributes(False, None)
    chain = found.make(lib.dnnl_post_ops_create, destroy=lib.dnnl_post_ops_destroy)
    if adds:
        lib.dnnl_post_ops_append_sum(chain, 1.0, 0, 0)
    lib.dnnl_post_ops_append_binary(chain, _MULTIPLY, row)
    lib.dnnl_post_ops_append_eltwise(chain, _FUNCTIONS["tanh"], 0.0, 0.0)
    lib.dnnl_post_ops_append_binary(chain, _MULTIPLY, row)
    lib.dnnl_post_ops_append_binary(chain, _ADD, row)
    lib.dnnl_primitive_attr_set_post_ops(attr, chain)
    return attr


def _gate_rows(build: Builder, columns: int, adds: bool) -> list[tuple[int, int]]:
    """Add the rows that the functions of `_gates` take; return them as arguments."""
    layout = build.library.matrix((1, columns), (columns, 1))
    scale, shift = (np.empty(columns, np.float32) for _ in range(2))
    half_angles(scale, shift)
    slots = {0: build.constant(layout, scale), 2: build.constant(layout, scale)}
    slots[3] = build.constant(layout, shift)
    return [(_AFTER * (place + adds + 1) | _OTHER, slot) for place, slot in slots.items()]


def plain_factors(weight: Any) -> tuple[Any, Callable[[Any], Any]]:
    """Return the weight in float32, and a function that rounds rows as the weight is rounded.

    For where oneDNN has no kernels and arrays are bfloat16 all the same: a rare case.
    """
    if not is_narrow(weight):
        return weight, lambda rows: rows
    wide, narrow = np.float32, weight.dtype
    return weight.astype(wide), lambda rows: rows.astype(narrow).astype(wide)


def _describe(found: Library, layouts: Sequence[Any], bias: Any, piece: Piece) -> Any:
    """Describe the kernel of a piece."""
    source, weight, result = layouts
    if piece.function == "gates":
        attr = _gates(found, piece.width, piece.adds)
    else:
        attr = found.attributes(piece.adds, _FUNCTIONS[piece.function])
    create = found.lib.dnnl_matmul_primitive_desc_create
    return found.kernel(create, found.engine, source, weight, bias, result, attr=attr)


def _step(
    bound: Bound, turns: Iterator[Any], first: int, places: Sequence[tuple[int, int]],
    rows: Any, *results: Any,
) -> None:  # fmt: skip
    """Let source and results be these arrays, and run the kernels."""
    bound.move(first, rows.ctypes.data)
    starts = [r.ctypes.data for r in results]
    for slot, (target, offset) in enumerate(places, first + 1):
        bound.move(slot, starts[target] + offset)
    bound.run(next(turns))
