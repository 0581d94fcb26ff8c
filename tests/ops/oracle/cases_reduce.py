"""Cases of reduce."""

from op_cases import Case, values

A = (3, 4, 5)

CASES = [
    Case("sum", [A], lambda ops, x: ops.sum(x), lambda t, x: x.sum()),
    Case("sum_axes", [A], lambda ops, x: ops.sum(x, axis=(0, -1)), lambda t, x: x.sum((0, 2))),
    Case(
        "sum_rows", [(15, 5, 16)],
        lambda ops, x: ops.sum(x, (0, 1)), lambda t, x: x.sum((0, 1)),
    ),
    Case(
        "mean_inside", [(2, 90, 3, 16)],
        lambda ops, x: ops.mean(x, (1, 2)), lambda t, x: x.mean((1, 2)),
    ),
    Case(
        "sum_keep", [A], lambda ops, x: ops.sum(x, 1, True), lambda t, x: x.sum(1, keepdim=True)
    ),
    Case("mean", [A], lambda ops, x: ops.mean(x), lambda t, x: x.mean()),
    Case("mean_axes", [A], lambda ops, x: ops.mean(x, (1, 2)), lambda t, x: x.mean((1, 2))),
    Case("mean_rows", [(70, 16)], lambda ops, x: ops.mean(x, 0), lambda t, x: x.mean(0)),
    Case("max", [A], lambda ops, x: ops.max(x, (0, 2)), lambda t, x: x.amax((0, 2))),
    Case("min", [A], lambda ops, x: ops.min(x, 1, True), lambda t, x: x.amin(1, keepdim=True)),
    Case(
        "max_of_equals", [values([1, 2, 2], [3, 3, 3])],
        lambda ops, x: ops.max(x, 1), lambda t, x: x.amax(1), order=0,
    ),
    Case("argmax", [A], lambda ops, x: ops.argmax(x, 1), lambda t, x: x.argmax(1), order=0),
    Case(
        "sum_to", [A],
        lambda ops, x: ops.sum_to(x, (4, 1)), lambda t, x: x.sum((0, 2))[:, None],
    ),
]  # fmt: skip
