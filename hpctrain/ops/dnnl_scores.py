"""What happens to the scores of attention between the products: the softmax and its gradient.

oneDNN has functions for a mask, a softmax, an exponential and their gradients, each of which
reads and writes all scores. In compiled passes the mask is part of what is done anyway, and
the gradient takes the exponentials from the saved logs of their sums, in the pass that makes
the sums which the rule of softmax needs (Dao et al., "FlashAttention", NeurIPS 35, 2022).

Measured on an Emerald Rapids core, 8 sequences of 128, 4 heads of 64, causal, ms, forward and
gradient: functions 1.5 and 2.8, passes 1.3 and 2.6.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hpctrain.autograd.element import Element, exp, largest, log, total, where
from hpctrain.ops.dnnl_attention import Attention, Block
from hpctrain.ops.dnnl_program import Builder, View

__all__ = ["CompiledSoftmax", "LibrarySoftmax"]

_SRC, _DST, _SECOND, _DIFF_SRC, _DIFF_DST, _SIZE = 1, 17, 2, 129, 145, 4
_TRAINING, _INFERENCE = 64, 96
_EXP, _ADD, _SUBTRACT, _SOFTMAX, _LOG_SOFTMAX = 0x2A, 0x1FFF0, 0x1FFF5, 0x30000, 0x30001
_MASKS = 1 << 21  # most elements of what hides keys


def _hiding(it: Attention, build: Builder, block: Block, rows: int) -> Callable[[], None]:
    """Return what adds the call that hides keys from the queries of all heads."""
    if not it.causal:
        return lambda: None
    if it.heads * sum(b.rows * b.seen for b in it.blocks) > _MASKS:
        raise NotImplementedError("too much to hide")
    library, layout = it.library, it.rows_of_all(block)
    create = library.lib.dnnl_binary_primitive_desc_create
    add = build.kernel(library.kernel(create, library.engine, _ADD, *[layout] * 3))
    seen = np.tri(block.rows, block.seen, block.start, dtype=bool)
    hidden = np.where(seen, np.float32(0), np.float32(-np.inf))
    mask = build.constant(layout, np.tile(hidden, (it.heads, 1)))
    return lambda: add([(_SRC, rows), (_SECOND, mask), (_DST, rows)])


def _softmax(it: Attention, block: Block, which: int) -> Any:
    """Describe softmax, or its logarithm, over the rows of a block of all heads."""
    library, rows = it.library, it.rows_of_all(block)
    create = library.lib.dnnl_softmax_forward_primitive_desc_create
    return library.kernel(create, library.engine, _TRAINING, which, rows, rows, 1)


def _exp(it: Attention, block: Block) -> Any:
    """Describe the exponentials of a block of all heads."""
    library, rows = it.library, it.rows_of_all(block)
    create = library.lib.dnnl_eltwise_forward_primitive_desc_create
    return library.kernel(create, library.engine, _INFERENCE, _EXP, rows, rows, 0.0, 0.0)


def _columns(it: Attention, block: Block) -> tuple[Any, Any]:
    """Describe the first score of each row of a block, and the place of such numbers."""
    shape, matrix = (it.heads, block.rows), it.library.matrix
    return matrix(shape, (block.rows * block.seen, block.seen)), matrix(shape, (it.steps, 1))


class LibrarySoftmax:
    """By functions of oneDNN; see `hpctrain.ops.dnnl_attention.Softmax`."""

    def __init__(self, it: Attention, build: Builder) -> None:
        self.it, self.build = it, build
        self.flat = it.library.layout((it.batch * it.heads * it.steps,), (0,))

    @functools.cached_property
    def first(self) -> int:
        """Where the first score of each row is kept, less its logarithm of softmax."""
        return self.build.slot(self.flat)

    def forward(self, block: Block, room: int) -> Callable[[int], None]:
        """Hide keys, take the logarithm of softmax, and its exponential."""
        it, build, first = self.it, self.build, self.first
        rows = build.part(room, it.rows_of_all(block), 0)
        hide = _hiding(it, build, block, rows)
        column, keep = _columns(it, block)
        corner = build.part(room, column, 0)
        take = build.kernel(it.library.reorder(column, keep))
        softmax, exp = (
            build.kernel(_softmax(it, block, _LOG_SOFTMAX)),
            build.kernel(_exp(it, block)),
        )

        def turn(b: int) -> None:
            at = _SIZE * (b * it.heads * it.steps + block.start)
            hide()
            take([(_SRC, corner), (_DST, build.part(first, keep, at))])
            softmax([(_SRC, rows), (_DST, rows)])
            take([(_SRC, corner), (_DST, build.part(2, keep, at))])
            exp([(_SRC, rows), (_DST, rows)])

        return turn

    def finish(self) -> None:
        """Subtract logarithms of softmax from the scores that they are of."""
        library, flat = self.it.library, self.flat
        logs = self.build.part(2, flat, 0)
        create = library.lib.dnnl_binary_primitive_desc_create
        made = library.kernel(create, library.engine, _SUBTRACT, flat, flat, flat)
        self.build.call(made, [(_SRC, self.first), (_SECOND, logs), (_DST, logs)])

    def backward(self, block: Block, rooms: tuple[int, int]) -> Callable[[int], None]:
        """Hide keys, take the softmax, and its gradient."""
        it, build, library = self.it, self.build, self.it.library
        layout, made = it.rows_of_all(block), _softmax(it, block, _SOFTMAX)
        rows, pulled = (build.part(room, layout, 0) for room in rooms)
        create = library.lib.dnnl_softmax_backward_primitive_desc_create
        given = library.engine, _SOFTMAX, layout, layout, layout, 1, made
        hide = _hiding(it, build, block, rows)
        softmax, back = build.kernel(made), build.kernel(library.kernel(create, *given))

        def turn(_: int) -> None:
            hide()
            softmax([(_SRC, rows), (_DST, rows)])
            back([(_DST, rows), (_DIFF_DST, pulled), (_DIFF_SRC, pulled)])

        return turn


def _top(s: Element, key: Element, last: Element) -> Sequence[Element]:
    """Return the largest score that a query sees."""
    return [largest(where(key <= last, s, -np.inf))]


def _raised(s: Element, key: Element, last: Element, top: Element) -> Sequence[Element]:
    """Return exponentials of scores, none of them above 1, and their sum."""
    e = where(key <= last, exp(s - top), 0.0)
    return [e, total(e)]


def _shares(e: Element, whole: Element) -> Sequence[Element]:
    """Return probabilities."""
    return [e * (1.0 / whole)]


def _logs(top: Element, whole: Element) -> Sequence[Element]:
    """Return the logs of the sums of exponentials of scores as they were."""
    return [top + log(whole)]


def _again(
    s: Element, key: Element, last: Element, saved: Element, dp: Element
) -> Sequence[Element]:
    """Return probabilities, and the sum of their products with what is pulled back."""
    p = where(key <= last, exp(s - saved), 0.0)
    return [p, total(p * dp)]


def _pulled(p: Element, dp: Element, inner: Element) -> Sequence[Element]:
    """Return the gradient of the scores."""
    return [p * (dp - inner)]


class _Rows:
    """Views of the scores of a block, (H, rows, seen), and of numbers of its queries."""

    def __init__(self, it: Attention, build: Builder, block: Block) -> None:
        self.it, self.block = it, block
        self.shape = it.heads, block.rows, block.seen
        keys = np.arange(block.seen if it.causal else 1, dtype=np.float32)
        last = np.arange(block.start, block.stop if it.causal else block.start + 1)
        self.keys, self.last = (
            build.constant(it.library.layout(a.shape, (0,)), a)
            for a in (keys, last.astype(np.float32))
        )

    def scores(self, slot: int) -> View:
        """See scores."""
        _, rows, seen = self.shape
        return View(slot, self.shape, (rows * seen, seen, 1))

    def numbers(self) -> list[View]:
        """See the number of each key, and of the last one that each query sees."""
        step = int(self.it.causal)
        each, last = (0, 0, step), (0, step, 0)
        return [View(self.keys, self.shape, each), View(self.last, self.shape, last)]

    def own(self, slot: int, b: int = 0, column: bool = False) -> View:
        """See one number for each query, of (B, H, T): for all keys, or as a column."""
        it, start = self.it, self.block.start
        shape = (*self.shape[:2], 1) if column else self.shape
        return View(slot, shape, (it.steps, 1, 0), _SIZE * (b * it.heads * it.steps + start))


class CompiledSoftmax:
    """By passes over memory; see `hpctrain.ops.dnnl_attention.Softmax`."""

    def __init__(self, it: Attention, build: Builder) -> None:
        self.it, self.build = it, build
        self.numbers = it.batch * it.heads * it.steps

    def _slot(self) -> int:
        return self.build.slot(self.it.library.layout((self.numbers,), (0,)))

    @functools.cached_property
    def tops(self) -> int:
        """Where the largest score of each row is kept."""
        return self._slot()

    @functools.cached_property
    def sums(self) -> int:
        """Where the sum of each row is kept: going back, for one sequence after the other."""
        return self._slot()

    def forward(self, block: Block, room: int) -> Callable[[int], None]:
        """Find the largest scores, then exponentials and their sums, then divide."""
        build, rows = self.build, _Rows(self.it, self.build, block)
        s, numbers = rows.scores(room), rows.numbers()

        def turn(b: int) -> None:
            top, whole = rows.own(self.tops, b), rows.own(self.sums, b)
            columns_ = [rows.own(slot, b, column=True) for slot in (self.tops, self.sums)]
            build.over(_top, [s, *numbers], columns_[:1])
            build.over(_raised, [s, *numbers, top], [s, columns_[1]])
            build.over(_shares, [s, whole], [s])

        return turn

    def finish(self) -> None:
        """Take logarithms of the sums."""
        each = [View(slot, (self.numbers,), (1,)) for slot in (self.tops, self.sums, 2)]
        self.build.over(_logs, each[:2], each[2:])

    def backward(self, block: Block, rooms: tuple[int, int]) -> Callable[[int], None]:
        """Make probabilities and the sums that the rule needs, then follow it."""
        build, rows = self.build, _Rows(self.it, self.build, block)
        p, ds = map(rows.scores, rooms)
        column, inner = rows.own(self.sums, column=True), rows.own(self.sums)

        def turn(b: int) -> None:
            build.over(_again, [p, *rows.numbers(), rows.own(2, b), ds], [p, column])
            build.over(_pulled, [p, ds, inner], [ds])

        return turn
