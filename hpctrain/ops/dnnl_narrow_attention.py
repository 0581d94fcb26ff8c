"""Attention whose factors are bfloat16, as programs of oneDNN.

As in `hpctrain.ops.dnnl_attention`, but for where heads lie: kernels for AMX take dense
matrices only, so the heads of a block are brought together before its products, and apart
after them, which costs a fifth of what that saves. Scores, softmax and sums are float32;
probabilities and the gradients of scores are rounded once, as factors of what follows.

Measured on an Emerald Rapids core, 8 sequences of 128, 4 heads of 64, causal, ms, forward and
gradient: 1.4 and 2.6 where factors of float32 take 1.7 and 3.0.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from hpctrain.autograd import Spec
from hpctrain.autograd.narrow import NARROW, wide
from hpctrain.ops.dnnl import Library
from hpctrain.ops.dnnl_attention import Attention, Block, Softmax
from hpctrain.ops.dnnl_program import Builder

__all__ = ["narrow_attention_grad_program", "narrow_attention_program"]

_SRC, _DST, _WEIGHTS = 1, 17, 33
_LINEAR = 0x26
_FLOAT = "float32"
_BYTES = {NARROW: 2, _FLOAT: 4}


class _Lying(NamedTuple):
    """Where an array (B, T, parts H D) lies: its slot, row length, first column and dtype."""

    slot: int
    width: int
    first: int
    dtype: str


class _Narrow(Attention):
    """Adds dense matrices to the sizes and kernels of attention."""

    def __init__(self, library: Library, qkv: Spec, attrs: Any) -> None:
        super().__init__(library, wide(qkv), attrs)
        self.largest = max(self.blocks, key=lambda b: b.rows * b.seen)
        self.inner = self.heads * self.head

    def array(self, parts: int, dtype: str) -> Any:
        """Describe (B, T, parts H D)."""
        shape = self.batch, self.steps, parts * self.inner
        return self.library.layout(shape, (0, 1, 2), dtype)

    def lying(self, slot: int, parts: int, dtype: str) -> list[_Lying]:
        """Return where the parts of an array lie."""
        width = parts * self.inner
        return [_Lying(slot, width, i * self.inner, dtype) for i in range(parts)]

    def matrices(self, rows: int, across: int, dtype: str, flipped: bool = False) -> Any:
        """Describe a dense matrix for each head, (H, rows, across), or its transpose's."""
        shape, strides = (self.heads, rows, across), (rows * across, across, 1)
        if flipped:
            shape, strides = (self.heads, across, rows), (rows * across, 1, across)
        return self.library.matrix(shape, strides, dtype)

    def room(self, build: Builder, dtype: str, scores: bool = False) -> int:
        """Add scratch for the scores of a block, or for steps of all heads."""
        rows = self.largest.rows if scores else self.steps
        across = self.largest.seen if scores else self.head
        return build.slot(self.matrices(rows, across, dtype))

    def moving(
        self, build: Builder, span: tuple[int, int], place: _Lying, room: int, add: bool = False
    ) -> Callable[[int], None]:
        """Add what brings steps of a sequence together, or apart where they are float32.

        ``add``: to what is there.
        """
        library, steps = self.library, span[1] - span[0]
        apart = library.matrix(
            (self.heads, steps, self.head), (self.head, place.width, 1), place.dtype
        )
        dense = self.matrices(steps, self.head, place.dtype)
        there, back = build.part(room, dense, 0), place.dtype == _FLOAT
        attr = library.attributes(True, None) if add else library.attr
        ends = (dense, apart) if back else (apart, dense)
        run = build.kernel(library.reorder(*ends, attr=attr))

        def move(b: int) -> None:
            at = (b * self.steps + span[0]) * place.width + place.first
            here = build.part(place.slot, apart, at * _BYTES[place.dtype])
            run([(_SRC, there), (_DST, here)] if back else [(_SRC, here), (_DST, there)])

        return move

    def rounding(self, build: Builder, block: Block, rooms: tuple[int, int]) -> Any:
        """Add what rounds the scores of a block; return what calls it."""
        layouts = [self.matrices(block.rows, block.seen, dtype) for dtype in (_FLOAT, NARROW)]
        run = build.kernel(self.library.reorder(*layouts))
        source, target = (
            build.part(room, layout, 0) for room, layout in zip(rooms, layouts, strict=True)
        )
        return lambda: run([(_SRC, source), (_DST, target)])

    def linear(self) -> Any:
        """Return attributes of a product that is multiplied by the scale after it."""
        library, lib = self.library, self.library.lib
        attr = library.attributes(False, None)
        chain = library.make(lib.dnnl_post_ops_create, destroy=lib.dnnl_post_ops_destroy)
        lib.dnnl_post_ops_append_eltwise(chain, _LINEAR, self.scale, 0.0)
        lib.dnnl_primitive_attr_set_post_ops(attr, chain)
        return attr

    def multiplying(
        self, build: Builder, a: Any, b: Any, out: Any, scaled: bool = False
    ) -> Callable[[], None]:
        """Add a product; each factor and the result are (room, layout)."""
        made = self.product(a[1], b[1], out[1], self.linear() if scaled else None)
        run = build.kernel(made)
        args = [
            (number, build.part(room, layout, 0))
            for number, (room, layout) in zip((_SRC, _WEIGHTS, _DST), (a, b, out), strict=True)
        ]
        return lambda: run(args)


def narrow_attention_program(
    library: Library, specs: Any, outs: Any, attrs: Any, softmax: type[Softmax]
) -> Builder:
    """Return ``self_attention`` of bfloat16: qkv to (y, saved)."""
    it = _Narrow(library, specs[0], attrs)
    build = Builder(library, [it.array(3, NARROW), it.array(1, _FLOAT), it.saved])
    factors = [it.room(build, NARROW) for _ in range(3)]
    rooms = [it.room(build, d, scores=True) for d in (_FLOAT, NARROW)]
    result, between = it.room(build, _FLOAT), softmax(it, build)
    for block in it.blocks:
        _average(it, build, block, (*factors, *rooms, result), between)
    between.finish()
    return build


def _average(
    it: _Narrow, build: Builder, block: Block, own: tuple[int, ...], between: Softmax
) -> None:
    """Add what one block of queries needs."""
    q, k, v, scores, p, result = own
    mine, seen = (block.start, block.stop), (0, block.seen)
    (y,), spans = it.lying(1, 1, _FLOAT), (mine, seen, seen)
    gather = [
        it.moving(build, span, place, room)
        for span, place, room in zip(spans, it.lying(0, 3, NARROW), (q, k, v), strict=True)
    ]
    spread, turn = it.moving(build, mine, y, result), between.forward(block, scores)
    round_ = it.rounding(build, block, (scores, p))
    score, average = _averaging(it, build, block, own)
    for b in range(it.batch):
        for move in gather:
            move(b)
        score()
        turn(b)
        round_()
        average()
        spread(b)


def _averaging(
    it: _Narrow, build: Builder, block: Block, rooms: tuple[int, ...]
) -> list[Callable[[], None]]:
    """Add the products of a block: the scores, and the average of the values."""
    q, k, v, scores, p, result = rooms
    queries, keys = (it.matrices(n, it.head, NARROW) for n in (block.rows, block.seen))
    flipped = it.matrices(block.seen, it.head, NARROW, flipped=True)
    made, factor = (it.matrices(block.rows, block.seen, d) for d in (_FLOAT, NARROW))
    to = it.matrices(block.rows, it.head, _FLOAT)
    return [
        it.multiplying(build, (q, queries), (k, flipped), (scores, made), scaled=True),
        it.multiplying(build, (p, factor), (v, keys), (result, to)),
    ]


def narrow_attention_grad_program(
    library: Library, specs: Any, outs: Any, attrs: Any, softmax: type[Softmax]
) -> Builder:
    """Return ``self_attention_grad`` of bfloat16: (dy, qkv, saved) to the gradient of qkv.

    Blocks go backwards: the last one sees all keys and sets their gradients, the others add.
    """
    it = _Narrow(library, specs[1], attrs)
    arrays = [it.array(1, NARROW), it.array(3, NARROW), it.saved, it.array(3, _FLOAT)]
    build = Builder(library, arrays)
    rooms = {name: it.room(build, NARROW) for name in ("q", "k", "v", "dy")}
    rooms["result"] = it.room(build, _FLOAT)
    rooms |= {name: it.room(build, _FLOAT, scores=True) for name in ("scores", "pulled")}
    rooms |= {name: it.room(build, NARROW, scores=True) for name in ("p", "ds")}
    between = softmax(it, build)
    for block in reversed(it.blocks):
        _pull(it, build, block, rooms, between)
    return build


def _pull(
    it: _Narrow, build: Builder, block: Block, rooms: dict[str, int], between: Softmax
) -> None:
    """Add what one block of queries gives to the gradients."""
    mine, seen = (block.start, block.stop), (0, block.seen)
    spans, last = (mine, seen, seen), block.stop == it.steps
    names = ("q", "k", "v")
    places = [*zip(spans, it.lying(1, 3, NARROW), names, strict=True)]
    places += [(mine, it.lying(0, 1, NARROW)[0], "dy")]
    gather = [it.moving(build, span, place, rooms[n]) for span, place, n in places]
    spread = {
        n: it.moving(build, span, place, rooms["result"], add=n != "q" and not last)
        for span, place, n in zip(spans, it.lying(3, 3, _FLOAT), names, strict=True)
    }
    run = _products(it, build, block, rooms)
    turn = between.backward(block, (rooms["scores"], rooms["pulled"]))
    rounds = [
        it.rounding(build, block, (rooms[wide_one], rooms[narrow_one]))
        for wide_one, narrow_one in (("scores", "p"), ("pulled", "ds"))
    ]
    for b in range(it.batch):
        for move in gather:
            move(b)
        run["scores"]()
        run["pulled"]()
        turn(b)
        for round_ in rounds:
            round_()
        for name in ("v", "q", "k"):
            run[name]()
            spread[name](b)


def _products(
    it: _Narrow, build: Builder, block: Block, rooms: dict[str, int]
) -> dict[str, Callable[[], None]]:
    """Add the products of a block of the gradient by what they make."""
    queries, keys = (it.matrices(n, it.head, NARROW) for n in (block.rows, block.seen))
    across = it.matrices(block.seen, it.head, NARROW, flipped=True)
    each = block.rows, block.seen
    factor, flipped = (it.matrices(*each, NARROW, flipped=turn) for turn in (False, True))
    made = it.matrices(*each, _FLOAT)
    to_q, to_k = (
        (rooms["result"], it.matrices(n, it.head, _FLOAT)) for n in (block.rows, block.seen)
    )
    q, k, dy = (rooms["q"], queries), (rooms["k"], keys), (rooms["dy"], queries)
    products = {
        "scores": (q, (rooms["k"], across), (rooms["scores"], made), True),
        "v": ((rooms["p"], flipped), dy, to_k, False),
        "pulled": (dy, (rooms["v"], across), (rooms["pulled"], made), False),
        "q": ((rooms["ds"], factor), k, to_q, True),
        "k": ((rooms["ds"], flipped), q, to_k, True),
    }
    return {name: it.multiplying(build, *given) for name, given in products.items()}
