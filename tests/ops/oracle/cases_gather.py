"""Cases of gather."""

from op_cases import Case, ids

CASES = [
    Case(
        "embedding", [ids(7, 3, 4), (7, 5)],
        lambda ops, i, w: ops.embedding(i, w), lambda t, i, w: t.nn.functional.embedding(i, w),
    ),
    Case(
        "embedding_repeated", [ids(3, 40), (6, 5)],
        lambda ops, i, w: ops.embedding(i, w), lambda t, i, w: t.nn.functional.embedding(i, w),
    ),
    Case(
        "take_last", [(3, 2, 5), ids(5, 6)],
        lambda ops, x, i: ops.take(x, i, axis=-1), lambda t, x, i: t.index_select(x, -1, i),
    ),
    Case(
        "take_middle", [(3, 4, 5), ids(4, 2, 3)],
        lambda ops, x, i: ops.take(x, i, axis=1), lambda t, x, i: x[:, i],
    ),
    Case(
        "take_one", [(4, 5), ids(4)],
        lambda ops, x, i: ops.take(x, i), lambda t, x, i: x[i],
    ),
    Case(
        "pick", [(3, 4, 5), ids(5, 3, 4)],
        lambda ops, x, i: ops.pick(x, i),
        lambda t, x, i: x.gather(-1, i[..., None])[..., 0],
    ),
    Case("take_square", [(4, 5), ids(4, 6)], lambda ops, x, i: ops.square(ops.take(x, i))),
    Case("pick_square", [(4, 5), ids(5, 4)], lambda ops, x, i: ops.square(ops.pick(x, i))),
    Case(
        "one_hot", [ids(6, 3, 4)],
        lambda ops, i: ops.one_hot(i, 6, "int64"),
        lambda t, i: t.nn.functional.one_hot(i, 6), order=0,
    ),
]  # fmt: skip
