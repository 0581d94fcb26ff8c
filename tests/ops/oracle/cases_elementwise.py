"""Cases of elementwise and unary."""

from op_cases import Case, mask, positive, values

A, B = (3, 4, 5), (4, 1)
WIDE = (22, 3, 16)  # long enough for rows to be folded

CASES = [
    Case("add", [A, B], lambda ops, a, b: ops.add(a, b), lambda t, a, b: a + b),
    Case("add_row", [WIDE, (16,)], lambda ops, a, b: a + b, lambda t, a, b: a + b),
    Case("subtract", [A, B], lambda ops, a, b: ops.subtract(a, b), lambda t, a, b: a - b),
    Case(
        "subtract_from_row", [(16,), WIDE],
        lambda ops, a, b: ops.subtract(a, b), lambda t, a, b: a - b,
    ),
    Case("multiply", [B, A], lambda ops, a, b: ops.multiply(a, b), lambda t, a, b: a * b),
    Case(
        "divide", [A, positive(4, 1)], lambda ops, a, b: ops.divide(a, b), lambda t, a, b: a / b
    ),
    Case(
        "divide_row", [WIDE, positive(1, 1, 16)],
        lambda ops, a, b: ops.divide(a, b), lambda t, a, b: a / b,
    ),
    Case(
        "power", [positive(3, 4), (4,)], lambda ops, a, b: ops.power(a, b), lambda t, a, b: a**b
    ),
    Case("cube", [A], lambda ops, a: a**3, lambda t, a: a**3),
    Case(
        "maximum", [A, B],
        lambda ops, a, b: ops.maximum(a, b), lambda t, a, b: t.maximum(a, b),
    ),
    Case(
        "minimum", [A, B],
        lambda ops, a, b: ops.minimum(a, b), lambda t, a, b: t.minimum(a, b),
    ),
    Case(
        "maximum_of_equals", [values(1, 2, 3), values(1, 3, 2)],
        lambda ops, a, b: ops.maximum(a, b), lambda t, a, b: t.maximum(a, b), order=0,
    ),
    Case(
        "numbers", [A], lambda ops, a: 2 - (1 + a * 3) / 4, lambda t, a: 2 - (1 + a * 3) / 4
    ),
    Case("negative", [A], lambda ops, a: ops.negative(a), lambda t, a: -a),
    Case("abs", [A], lambda ops, a: ops.abs(a), lambda t, a: t.abs(a)),
    Case("sign", [A], lambda ops, a: ops.sign(a) * a, lambda t, a: t.sign(a) * a),
    Case("square", [A], lambda ops, a: ops.square(a), lambda t, a: t.square(a)),
    Case("exp", [A], lambda ops, a: ops.exp(a), lambda t, a: t.exp(a)),
    Case("expm1", [A], lambda ops, a: ops.expm1(a), lambda t, a: t.expm1(a)),
    Case("log", [positive(3, 4)], lambda ops, a: ops.log(a), lambda t, a: t.log(a)),
    Case("log1p", [positive(3, 4)], lambda ops, a: ops.log1p(a), lambda t, a: t.log1p(a)),
    Case("sqrt", [positive(3, 4)], lambda ops, a: ops.sqrt(a), lambda t, a: t.sqrt(a)),
    Case("rsqrt", [positive(3, 4)], lambda ops, a: ops.rsqrt(a), lambda t, a: t.rsqrt(a)),
    Case(
        "reciprocal", [positive(3, 4)],
        lambda ops, a: ops.reciprocal(a), lambda t, a: t.reciprocal(a),
    ),
    Case("identity", [A], lambda ops, a: ops.identity(a), lambda t, a: a.clone()),
    Case(
        "ones_like", [A],
        lambda ops, a: ops.ones_like(a) + ops.zeros_like(a) * a,
        lambda t, a: t.ones_like(a) + t.zeros_like(a) * a,
    ),
    Case("cast", [A], lambda ops, a: ops.square(a.astype("float64"))),
    Case(
        "cast_from_bool", [mask(3, 4), (3, 4)],
        lambda ops, m, a: ops.cast(m, a.dtype) * a, lambda t, m, a: m * a,
    ),
]  # fmt: skip
