"""Attention of a sequence to itself as programs of oneDNN.

One head of one sequence at a time, a block of queries at a time, which see only keys that
causality leaves; no more scores are there at once than those of a block of all heads. What a
block does is bound with all addresses, so a call costs a few tenths of a microsecond.

Measured on a Sapphire Rapids core, 8 sequences of 128, 4 heads of 64, causal, ms, forward and
gradient: NumPy's kernels {numpy}; this {mine}.

Dimension key: B sequences, H heads, T steps, D width of a head.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from hpctrain.autograd import Spec
from hpctrain.ops.dnnl import Library
from hpctrain.ops.dnnl_program import Builder

__all__ = ["attention_grad_program", "attention_program"]

_SRC, _DST, _WEIGHTS, _SECOND, _DIFF_SRC, _DIFF_DST = 1, 17, 33, 2, 129, 145
_TRAINING, _INFERENCE = 64, 96
_LINEAR, _EXP, _ADD, _SUBTRACT = 0x26, 0x2A, 0x1FFF0, 0x1FFF5
_SOFTMAX, _LOG_SOFTMAX = 0x30000, 0x30001
_ROWS = 64  # queries of a block
_MASKS = 1 << 21  # most elements of what hides keys
_BLOCKS = 2048  # most blocks of all heads and sequences; each has handles of its own
_SMALL = 16  # steps or width below which a product is not worth a call
_SIZE = 4


class _Block(NamedTuple):
    """Queries ``start`` to ``stop`` of every sequence, and how many keys they see."""

    start: int
    stop: int
    seen: int

    @property
    def rows(self) -> int:
        return self.stop - self.start


class _Place(NamedTuple):
    """Where the heads of an array (B, T, parts H D) lie: its slot, and the row's length."""

    slot: int
    steps: int
    width: int
    head: int
    first: int = 0  # column at which the part begins

    def at(self, b: int, h: int, t: int = 0) -> int:
        """Return the byte at which a head's step begins."""
        return _SIZE * ((b * self.steps + t) * self.width + self.first + h * self.head)


class _Attention:
    """Sizes, layouts and kernels that both directions share."""

    def __init__(self, library: Library, qkv: Spec, attrs: Any) -> None:
        self.library, self.batch, self.steps = library, qkv.shape[0], qkv.shape[1]
        self.heads, self.scale = attrs["heads"], attrs["scale"]
        self.head = qkv.shape[2] // 3 // self.heads
        causal = attrs["causal"]
        stops = [*range(_ROWS, self.steps, _ROWS), self.steps]
        starts = [0, *stops[:-1]]
        self.blocks = [
            _Block(a, b, b if causal else self.steps)
            for a, b in zip(starts, stops, strict=True)
        ]
        if min(self.steps, self.head) < _SMALL:
            raise NotImplementedError("too small to pay")
        if len(self.blocks) * self.batch * self.heads > _BLOCKS:
            raise NotImplementedError("too many blocks")
        if causal and self.heads * sum(b.rows * b.seen for b in self.blocks) > _MASKS:
            raise NotImplementedError("too much to hide")
        self.causal = causal
        self.dense = library.layout(qkv.shape, (0, 1, 2))
        self.narrow = library.layout((*qkv.shape[:2], qkv.shape[2] // 3), (0, 1, 2))
        self.saved = library.layout((self.batch, self.heads, self.steps), (0, 1, 2))

    def parts(self, slot: int) -> list[_Place]:
        """Return where queries, keys and values of ``qkv`` lie."""
        width = self.heads * self.head
        return [_Place(slot, self.steps, 3 * width, self.head, i * width) for i in range(3)]

    def whole(self, slot: int) -> _Place:
        """Return where the heads of an output or its cotangent lie."""
        return _Place(slot, self.steps, self.heads * self.head, self.head)

    def view(self, build: Builder, place: _Place, at: tuple[int, int], span: tuple[int, int],
             flipped: bool = False) -> int:  # fmt: skip
        """Add steps of a head as a matrix, (steps, D) or its transpose."""
        shape, strides = (span[1] - span[0], self.head), (place.width, 1)
        if flipped:
            shape, strides = shape[::-1], strides[::-1]
        layout = self.library.matrix(shape, strides)
        return build.part(place.slot, layout, place.at(*at, span[0]))

    def scores(self, block: _Block, flipped: bool = False) -> Any:
        """Describe the scores of a block, (rows, seen), or their transpose."""
        shape, strides = (block.rows, block.seen), (block.seen, 1)
        return self.library.matrix(
            *((shape[::-1], strides[::-1]) if flipped else (shape, strides))
        )

    def product(self, a: Any, b: Any, out: Any, attr: Any = None) -> Any:
        """Describe a product of matrices."""
        library = self.library
        create = library.lib.dnnl_matmul_primitive_desc_create
        return library.kernel(create, library.engine, a, b, library.ffi.NULL, out, attr=attr)

    def scaled(self) -> Any:
        """Return attributes of the product that makes scores."""
        library, lib = self.library, self.library.lib
        attr = library.attributes(False, None)
        chain = library.make(lib.dnnl_post_ops_create, destroy=lib.dnnl_post_ops_destroy)
        lib.dnnl_post_ops_append_eltwise(chain, _LINEAR, self.scale, 0.0)
        lib.dnnl_primitive_attr_set_post_ops(attr, chain)
        return attr

    def rows_of_all(self, block: _Block) -> Any:
        """Describe the scores of a block of all heads as rows."""
        return self.library.layout((self.heads * block.rows, block.seen), (0, 1))

    def softmax(self, block: _Block, which: int) -> Any:
        """Describe softmax, or its logarithm, over the rows of a block of all heads."""
        library, rows = self.library, self.rows_of_all(block)
        create = library.lib.dnnl_softmax_forward_primitive_desc_create
        return library.kernel(create, library.engine, _TRAINING, which, rows, rows, 1)

    def function(self, layout: Any, which: int, alpha: float) -> Any:
        """Describe a function of each element."""
        library = self.library
        create = library.lib.dnnl_eltwise_forward_primitive_desc_create
        given = (_INFERENCE, which, layout, layout, alpha, 0.0)
        return library.kernel(create, library.engine, *given)

    def head_scores(self, build: Builder, room: int, block: _Block) -> list[tuple[int, int]]:
        """Add the scores of each head in ``room``, as they are and transposed."""
        each = block.rows * block.seen * _SIZE
        forms = self.scores(block), self.scores(block, flipped=True)
        return [
            (build.part(room, forms[0], h * each), build.part(room, forms[1], h * each))
            for h in range(self.heads)
        ]

    def averaging(self, block: _Block) -> Any:
        """Describe the product of probabilities and values."""
        matrix, width = self.library.matrix, self.heads * self.head
        values = matrix((block.seen, self.head), (3 * width, 1))
        out = matrix((block.rows, self.head), (width, 1))
        return self.product(self.scores(block), values, out)

    def hide(self, build: Builder, block: _Block, rows: int) -> Callable[[], None]:
        """Return what adds the call that hides keys from the queries of all heads."""
        if not self.causal:
            return lambda: None
        library, layout = self.library, self.rows_of_all(block)
        create = library.lib.dnnl_binary_primitive_desc_create
        add = build.kernel(library.kernel(create, library.engine, _ADD, *[layout] * 3))
        seen = np.tri(block.rows, block.seen, block.start, dtype=bool)
        hidden = np.where(seen, np.float32(0), np.float32(-np.inf))
        mask = build.constant(layout, np.tile(hidden, (self.heads, 1)))
        return lambda: add([(_SRC, rows), (_SECOND, mask), (_DST, rows)])

    def scoring(self, build: Builder, block: _Block) -> Callable[[int, int, int], None]:
        """Add the kernel that makes the scores of a head; return what calls it."""
        matrix = self.library.matrix
        q = matrix((block.rows, self.head), (3 * self.heads * self.head, 1))
        k = matrix((self.head, block.seen), (1, 3 * self.heads * self.head))
        run = build.kernel(self.product(q, k, self.scores(block), self.scaled()))
        return lambda q, k, out: run([(_SRC, q), (_WEIGHTS, k), (_DST, out)])


def attention_program(library: Library, specs: Any, outs: Any, attrs: Any) -> Builder:
    """Return ``self_attention``: qkv to (y, saved)."""
    it = _Attention(library, specs[0], attrs)
    build = Builder(library, [it.dense, it.narrow, it.saved])
    flat = library.layout((it.batch * it.heads * it.steps,), (0,))
    first = build.slot(flat)  # the first score of each row, less its logarithm of softmax
    room = build.slot(it.rows_of_all(max(it.blocks, key=lambda b: b.rows * b.seen)))
    for block in it.blocks:
        _average_block(it, build, block, (first, room))
    logs = build.part(2, flat, 0)
    create = library.lib.dnnl_binary_primitive_desc_create
    made = library.kernel(create, library.engine, _SUBTRACT, flat, flat, flat)
    build.call(made, [(_SRC, first), (_SECOND, logs), (_DST, logs)])
    return build


def _average_block(it: _Attention, build: Builder, block: _Block, own: tuple[int, int]) -> None:
    """Add what one block of queries needs: scores, softmax, the average of the values."""
    (first, room), (q, k, v), y = own, it.parts(0), it.whole(1)
    score, heads = it.scoring(build, block), it.head_scores(build, room, block)
    rows = build.part(room, it.rows_of_all(block), 0)
    hide = it.hide(build, block, rows)
    column, keep = _columns(it, block)
    corner = build.part(room, column, 0)
    take = build.kernel(it.library.reorder(column, keep))
    softmax = build.kernel(it.softmax(block, _LOG_SOFTMAX))
    exp = build.kernel(it.function(it.rows_of_all(block), _EXP, 0.0))
    average = build.kernel(it.averaging(block))
    for b in range(it.batch):
        at = _SIZE * (b * it.heads * it.steps + block.start)
        for h in range(it.heads):
            left = it.view(build, q, (b, h), (block.start, block.stop))
            right = it.view(build, k, (b, h), (0, block.seen), flipped=True)
            score(left, right, heads[h][0])
        hide()
        take([(_SRC, corner), (_DST, build.part(first, keep, at))])
        softmax([(_SRC, rows), (_DST, rows)])
        take([(_SRC, corner), (_DST, build.part(2, keep, at))])
        exp([(_SRC, rows), (_DST, rows)])
        for h in range(it.heads):
            values = it.view(build, v, (b, h), (0, block.seen))
            out = it.view(build, y, (b, h), (block.start, block.stop))
            average([(_SRC, heads[h][0]), (_WEIGHTS, values), (_DST, out)])


def _columns(it: _Attention, block: _Block) -> tuple[Any, Any]:
    """Describe the first score of each row of a block, and the place of such numbers."""
    shape = it.heads, block.rows
    matrix = it.library.matrix
    return matrix(shape, (block.rows * block.seen, block.seen)), matrix(shape, (it.steps, 1))


def attention_grad_program(library: Library, specs: Any, outs: Any, attrs: Any) -> Builder:
    """Return ``self_attention_grad``: (dy, qkv, saved) to the gradient of qkv.

    Blocks go backwards: the last one sees all keys and sets their gradients, the others add.
    """
    it = _Attention(library, specs[1], attrs)
    build = Builder(library, [it.narrow, it.dense, it.saved, it.dense])
    largest = it.rows_of_all(max(it.blocks, key=lambda b: b.rows * b.seen))
    rooms = build.slot(largest), build.slot(largest)
    for block in reversed(it.blocks):
        _pull_block(it, build, block, rooms)
    return build


def _pull_block(it: _Attention, build: Builder, block: _Block, rooms: tuple[int, int]) -> None:
    """Add what one block of queries gives to the gradients."""
    dy, (q, k, v), (dq, dk, dv) = it.whole(0), it.parts(1), it.parts(3)
    score, kernels = it.scoring(build, block), _pulling(it, build, block)
    p, ds = (it.head_scores(build, room, block) for room in rooms)
    rows, pulled = (build.part(room, it.rows_of_all(block), 0) for room in rooms)
    hide = it.hide(build, block, rows)
    mine, seen = (block.start, block.stop), (0, block.seen)
    for b in range(it.batch):
        each = [(b, h) for h in range(it.heads)]
        for h, at in enumerate(each):
            left, right = it.view(build, q, at, mine), it.view(build, k, at, seen, True)
            score(left, right, p[h][0])
        hide()
        kernels["softmax"]([(_SRC, rows), (_DST, rows)])
        for h, at in enumerate(each):
            cotangent, values = it.view(build, dy, at, mine), it.view(build, v, at, seen, True)
            kernels["dp"]([(_SRC, cotangent), (_WEIGHTS, values), (_DST, ds[h][0])])
            to = it.view(build, dv, at, seen)
            kernels["dv"]([(_SRC, p[h][1]), (_WEIGHTS, cotangent), (_DST, to)])
        kernels["back"]([(_DST, rows), (_DIFF_DST, pulled), (_DIFF_SRC, pulled)])
        kernels["scale"]([(_SRC, pulled), (_DST, pulled)])
        for h, at in enumerate(each):
            queries, keys = it.view(build, q, at, mine), it.view(build, k, at, seen)
            to_q, to_k = it.view(build, dq, at, mine), it.view(build, dk, at, seen)
            kernels["dq"]([(_SRC, ds[h][0]), (_WEIGHTS, keys), (_DST, to_q)])
            kernels["dk"]([(_SRC, ds[h][1]), (_WEIGHTS, queries), (_DST, to_k)])


def _pulling(it: _Attention, build: Builder, block: _Block) -> dict[str, Any]:
    """Add the kernels of the gradient of a block; return what calls them."""
    library, width = it.library, it.heads * it.head
    matrix, shape = library.matrix, (block.rows, it.head)
    scores, flipped, rows = it.scores(block), it.scores(block, True), it.rows_of_all(block)
    dy, wide = matrix(shape, (width, 1)), matrix(shape, (3 * width, 1))
    keys = matrix((block.seen, it.head), (3 * width, 1))
    values = matrix((it.head, block.seen), (1, 3 * width))
    last = block.stop == it.steps
    attr = library.attributes(not last, None)
    hint = it.softmax(block, _SOFTMAX)
    back = library.kernel(
        library.lib.dnnl_softmax_backward_primitive_desc_create,
        *(library.engine, _SOFTMAX, rows, rows, rows, 1, hint),
    )
    made = {
        "softmax": hint,
        "dp": it.product(dy, values, scores),
        "dv": it.product(flipped, dy, keys, attr),
        "back": back,
        "scale": it.function(rows, _LINEAR, it.scale),
        "dq": it.product(scores, keys, wide),
        "dk": it.product(flipped, wide, keys, attr),
    }
    return {name: build.kernel(one) for name, one in made.items()}
