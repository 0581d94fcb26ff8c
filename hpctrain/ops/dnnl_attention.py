"""Attention of a sequence to itself as programs of oneDNN.

All heads of one sequence at a time, a block of queries at a time, which see only keys that
causality leaves; no more scores are there at once than those of a block of all heads. What a
block does is bound with all addresses, so a call costs a few tenths of a microsecond. What
happens to the scores between the products, `hpctrain.ops.dnnl_scores` says.

Measured on an Emerald Rapids core, 8 sequences of 128, 4 heads of 64, causal, ms, forward and
gradient: NumPy's kernels 3.1 and 5.4; this 1.7 and 2.9; with a call for each head 1.8 and
3.4. The mask cannot be a function after the product: version 3.2 refuses to run that.

Dimension key: B sequences, H heads, T steps, D width of a head.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from hpctrain.autograd import Spec
from hpctrain.ops.dnnl import Library
from hpctrain.ops.dnnl_program import Builder

__all__ = ["Attention", "Block", "Softmax", "attention_grad_program", "attention_program"]

_SRC, _DST, _WEIGHTS, _FACTOR = 1, 17, 33, 4096
_ROWS = 64  # queries of a block
_BLOCKS = 2048  # most blocks of all heads and sequences; each has handles of its own
_SMALL = 16  # steps or width below which a product is not worth a call
_SIZE = 4


class Block(NamedTuple):
    """Queries ``start`` to ``stop`` of every sequence, and how many keys they see."""

    start: int
    stop: int
    seen: int

    @property
    def rows(self) -> int:
        """How many queries."""
        return self.stop - self.start


class _Place(NamedTuple):
    """Where an array (B, T, parts H D) lies: its slot, and the row's length."""

    slot: int
    steps: int
    width: int
    first: int = 0  # column at which the part begins

    def at(self, b: int, t: int = 0) -> int:
        """Return the byte at which a step of the first head begins."""
        return _SIZE * ((b * self.steps + t) * self.width + self.first)


class Attention:
    """Sizes, layouts and kernels that both directions share."""

    def __init__(self, library: Library, qkv: Spec, attrs: Any) -> None:
        self.library, self.batch, self.steps = library, qkv.shape[0], qkv.shape[1]
        self.heads, self.scale = attrs["heads"], attrs["scale"]
        self.head = qkv.shape[2] // 3 // self.heads
        causal = attrs["causal"]
        stops = [*range(_ROWS, self.steps, _ROWS), self.steps]
        starts = [0, *stops[:-1]]
        self.blocks = [
            Block(a, b, b if causal else self.steps) for a, b in zip(starts, stops, strict=True)
        ]
        if min(self.steps, self.head) < _SMALL:
            raise NotImplementedError("too small to pay")
        if len(self.blocks) * self.batch * self.heads > _BLOCKS:
            raise NotImplementedError("too many blocks")
        self.causal = causal
        self.dense = library.layout(qkv.shape, (0, 1, 2))
        self.narrow = library.layout((*qkv.shape[:2], qkv.shape[2] // 3), (0, 1, 2))
        self.saved = library.layout((self.batch, self.heads, self.steps), (0, 1, 2))

    def parts(self, slot: int) -> list[_Place]:
        """Return where queries, keys and values of ``qkv`` lie."""
        width = self.heads * self.head
        return [_Place(slot, self.steps, 3 * width, i * width) for i in range(3)]

    def whole(self, slot: int) -> _Place:
        """Return where the heads of an output or its cotangent lie."""
        return _Place(slot, self.steps, self.heads * self.head)

    def form(self, steps: int, width: int, flipped: bool = False) -> Any:
        """Describe steps of all heads, (H, steps, D) or (H, D, steps), in rows of ``width``."""
        shape, strides = (self.heads, steps, self.head), (self.head, width, 1)
        return self.library.matrix(*_turned(shape, strides) if flipped else (shape, strides))

    def view(
        self,
        build: Builder,
        place: _Place,
        b: int,
        span: tuple[int, int],
        flipped: bool = False,
    ) -> int:
        """Add steps of all heads of a sequence."""
        layout = self.form(span[1] - span[0], place.width, flipped)
        return build.part(place.slot, layout, place.at(b, span[0]))

    def scores(self, block: Block, flipped: bool = False) -> Any:
        """Describe the scores of a block, (H, rows, seen), or their transposes."""
        shape = self.heads, block.rows, block.seen
        strides = block.rows * block.seen, block.seen, 1
        return self.library.matrix(*_turned(shape, strides) if flipped else (shape, strides))

    def product(self, a: Any, b: Any, out: Any, attr: Any = None) -> Any:
        """Describe a product for each head."""
        library = self.library
        create = library.lib.dnnl_matmul_primitive_desc_create
        return library.kernel(create, library.engine, a, b, library.ffi.NULL, out, attr=attr)

    def scaled(self, adds: bool = False) -> Any:
        """Return attributes of a product that is multiplied by the scale, at no cost."""
        attr = self.library.attributes(adds, None)
        self.library.lib.dnnl_primitive_attr_set_scales_mask(attr, _SRC, 0)
        return attr

    def factor(self, build: Builder) -> tuple[int, int]:
        """Add the scale; return it as an argument of such a product."""
        one = self.library.layout((1,), (0,))
        return _FACTOR | _SRC, build.constant(one, np.array([self.scale], np.float32))

    def rows_of_all(self, block: Block) -> Any:
        """Describe the scores of a block of all heads as rows."""
        return self.library.layout((self.heads * block.rows, block.seen), (0, 1))

    def averaging(self, block: Block) -> Any:
        """Describe the product of probabilities and values."""
        width = self.heads * self.head
        values, out = self.form(block.seen, 3 * width), self.form(block.rows, width)
        return self.product(self.scores(block), values, out)

    def scoring(self, build: Builder, block: Block, scores: int) -> Callable[[int, int], None]:
        """Add what makes the scores of a block; return what calls it."""
        width = 3 * self.heads * self.head
        q, k = self.form(block.rows, width), self.form(block.seen, width, flipped=True)
        run = build.kernel(self.product(q, k, self.scores(block), self.scaled()))
        factor = self.factor(build)
        return lambda q, k: run([(_SRC, q), (_WEIGHTS, k), (_DST, scores), factor])


def _turned(shape: Sequence[int], strides: Sequence[int]) -> tuple[Any, Any]:
    """Exchange the last two axes."""
    return (shape[0], *shape[:0:-1]), (strides[0], *strides[:0:-1])


class Softmax(Protocol):
    """What happens to scores between the products; its constructor adds its own scratch.

    Arrays in slot 2 of both programs are the saved logs of the sums of exponentials.
    """

    def __init__(self, it: Attention, build: Builder) -> None:
        """Stand between the products of a program."""

    def forward(self, block: Block, room: int) -> Callable[[int], None]:
        """Return what adds, for a sequence, that scores in ``room`` become probabilities."""

    def finish(self) -> None:
        """Add what makes the saved logs of all sequences."""

    def backward(self, block: Block, rooms: tuple[int, int]) -> Callable[[int], None]:
        """Return what adds, for a sequence, the gradient of scores.

        Scores in the first room become probabilities, and the cotangents of these, which are
        in the second, those of the scores.
        """


def attention_program(
    library: Library, specs: Any, outs: Any, attrs: Any, softmax: type[Softmax]
) -> Builder:
    """Return ``self_attention``: qkv to (y, saved)."""
    it = Attention(library, specs[0], attrs)
    build = Builder(library, [it.dense, it.narrow, it.saved])
    room = build.slot(it.rows_of_all(max(it.blocks, key=lambda b: b.rows * b.seen)))
    between = softmax(it, build)
    for block in it.blocks:
        _average_block(it, build, block, room, between)
    between.finish()
    return build


def _average_block(
    it: Attention, build: Builder, block: Block, room: int, between: Softmax
) -> None:
    """Add what one block of queries needs: scores, softmax, the average of the values."""
    (q, k, v), y = it.parts(0), it.whole(1)
    scores = build.part(room, it.scores(block), 0)
    score, turn = it.scoring(build, block, scores), between.forward(block, room)
    average = build.kernel(it.averaging(block))
    mine, seen = (block.start, block.stop), (0, block.seen)
    for b in range(it.batch):
        score(it.view(build, q, b, mine), it.view(build, k, b, seen, flipped=True))
        turn(b)
        values, out = it.view(build, v, b, seen), it.view(build, y, b, mine)
        average([(_SRC, scores), (_WEIGHTS, values), (_DST, out)])


def attention_grad_program(
    library: Library, specs: Any, outs: Any, attrs: Any, softmax: type[Softmax]
) -> Builder:
    """Return ``self_attention_grad``: (dy, qkv, saved) to the gradient of qkv.

    Blocks go backwards: the last one sees all keys and sets their gradients, the others add.
    """
    it = Attention(library, specs[1], attrs)
    build = Builder(library, [it.narrow, it.dense, it.saved, it.dense])
    largest = it.rows_of_all(max(it.blocks, key=lambda b: b.rows * b.seen))
    rooms = build.slot(largest), build.slot(largest)
    between = softmax(it, build)
    for block in reversed(it.blocks):
        _pull_block(it, build, block, rooms, between)
    return build


def _pull_block(
    it: Attention, build: Builder, block: Block, rooms: tuple[int, int], between: Softmax
) -> None:
    """Add what one block of queries gives to the gradients."""
    dy, (q, k, v), (dq, dk, dv) = it.whole(0), it.parts(1), it.parts(3)
    p, ds = (build.part(room, it.scores(block), 0) for room in rooms)
    p_flipped, ds_flipped = (build.part(room, it.scores(block, True), 0) for room in rooms)
    score, kernels = it.scoring(build, block, p), _pulling(it, build, block)
    turn = between.backward(block, rooms)
    mine, seen, factor = (block.start, block.stop), (0, block.seen), it.factor(build)
    for b in range(it.batch):
        score(it.view(build, q, b, mine), it.view(build, k, b, seen, flipped=True))
        given, values = it.view(build, dy, b, mine), it.view(build, v, b, seen, flipped=True)
        kernels["dp"]([(_SRC, given), (_WEIGHTS, values), (_DST, ds)])
        turn(b)
        to = it.view(build, dv, b, seen)
        kernels["dv"]([(_SRC, p_flipped), (_WEIGHTS, given), (_DST, to)])
        to = it.view(build, dq, b, mine)
        kernels["dq"]([(_SRC, ds), (_WEIGHTS, it.view(build, k, b, seen)), (_DST, to), factor])
        queries, to = it.view(build, q, b, mine), it.view(build, dk, b, seen)
        kernels["dk"]([(_SRC, ds_flipped), (_WEIGHTS, queries), (_DST, to), factor])


def _pulling(it: Attention, build: Builder, block: Block) -> dict[str, Any]:
    """Add the products of the gradient of a block; return what calls them."""
    library, width = it.library, it.heads * it.head
    scores, flipped = it.scores(block), it.scores(block, True)
    dy, wide = it.form(block.rows, width), it.form(block.rows, 3 * width)
    keys = it.form(block.seen, 3 * width)
    values = it.form(block.seen, 3 * width, flipped=True)
    last = block.stop == it.steps
    made = {
        "dp": it.product(dy, values, scores),
        "dv": it.product(flipped, dy, keys, library.attributes(not last, None)),
        "dq": it.product(scores, keys, wide, it.scaled()),
        "dk": it.product(flipped, wide, keys, it.scaled(not last)),
    }
    return {name: build.kernel(one) for name, one in made.items()}
