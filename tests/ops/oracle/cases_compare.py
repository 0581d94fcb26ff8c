"""Cases of compare."""

from op_cases import Case, mask, values

A, B = (3, 4, 5), (4, 1)
TORCH = {"equal": "eq", "not_equal": "ne"}
ODD = values([1.0, float("nan"), float("inf"), -float("inf")])


def both(name):
    """Return the comparison ``name`` on either side."""
    return (
        lambda ops, a, b: getattr(ops, name)(a, b),
        lambda t, a, b: getattr(t, TORCH.get(name, name))(a, b),
    )


CASES = [
    *(
        Case(name, [values([1, 2, 3]), values([[2.0], [3]])], *both(name), order=0)
        for name in (
            "equal", "not_equal", "less", "less_equal", "greater", "greater_equal",
            "logical_and", "logical_or",
        )
    ),
    Case(
        "logical_not", [mask(3, 4)],
        lambda ops, m: ops.logical_not(m), lambda t, m: t.logical_not(m), order=0,
    ),
    Case("isfinite", [ODD], lambda ops, x: ops.isfinite(x), lambda t, x: x.isfinite(), order=0),
    Case(
        "where", [mask(4, 5), A, B],
        lambda ops, m, a, b: ops.where(m, a, b), lambda t, m, a, b: t.where(m, a, b),
    ),
    Case("clip", [A], lambda ops, x: ops.clip(x, -0.5, 1), lambda t, x: x.clip(-0.5, 1)),
    Case(
        "clip_one_side", [A],
        lambda ops, x: ops.clip(x, 0.1, float("inf")), lambda t, x: x.clip(min=0.1),
    ),
]  # fmt: skip
