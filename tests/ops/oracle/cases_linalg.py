"""Cases of linalg."""

from op_cases import Case

CASES = [
    Case("matmul", [(3, 4), (4, 5)], lambda ops, a, b: ops.matmul(a, b), lambda t, a, b: a @ b),
    Case(
        "matmul_tn", [(4, 3), (4, 5)],
        lambda ops, a, b: ops.matmul(a, b, transpose_a=True), lambda t, a, b: a.T @ b,
    ),
    Case(
        "matmul_nt", [(3, 4), (5, 4)],
        lambda ops, a, b: ops.matmul(a, b, transpose_b=True), lambda t, a, b: a @ b.T,
    ),
    Case(
        "matmul_tt", [(4, 3), (5, 4)],
        lambda ops, a, b: ops.matmul(a, b, True, True), lambda t, a, b: a.T @ b.T,
    ),
    Case(
        "matmul_batch", [(2, 1, 3, 4), (5, 4, 2)],
        lambda ops, a, b: ops.matmul(a, b), lambda t, a, b: a @ b,
    ),
    Case(
        "matmul_batch_tt", [(2, 4, 3), (2, 2, 4)],
        lambda ops, a, b: ops.matmul(a, b, True, True),
        lambda t, a, b: a.transpose(-1, -2) @ b.transpose(-1, -2),
    ),
    Case(
        "matmul_rows", [(2, 3, 4), (4, 5)],
        lambda ops, a, b: a @ b, lambda t, a, b: a @ b,
    ),
    Case(
        "matmul_rows_nt", [(2, 3, 4), (5, 4)],
        lambda ops, a, b: ops.matmul(a, b, transpose_b=True), lambda t, a, b: a @ b.T,
    ),
    Case(
        "matmul_matrix_batch", [(3, 4), (2, 4, 5)],
        lambda ops, a, b: ops.matmul(a, b), lambda t, a, b: a @ b,
    ),
    Case(
        "matmul_vectors", [(4,), (3, 4, 5), (5,)],
        lambda ops, a, b, c: (ops.matmul(a, b), ops.matmul(b, c), ops.matmul(a, a)),
        lambda t, a, b, c: (a @ b, b @ c, a @ a),
    ),
    Case(
        "dense", [(2, 3, 4), (5, 4), (5,)],
        lambda ops, x, w, b: ops.dense(x, w, b),
        lambda t, x, w, b: t.nn.functional.linear(x, w, b),
    ),
    Case(
        "dense_narrow", [(400, 3), (5, 3), (5,)],
        lambda ops, x, w, b: ops.mean(ops.dense(x, w, b), 0),
        lambda t, x, w, b: t.nn.functional.linear(x, w, b).mean(0),
    ),
    Case(
        "dense_without_bias", [(3, 4), (5, 4)],
        lambda ops, x, w: ops.dense(x, w), lambda t, x, w: t.nn.functional.linear(x, w),
    ),
    Case(
        "dense_vector", [(4,), (5, 4), (5,)],
        lambda ops, x, w, b: ops.dense(x, w, b),
        lambda t, x, w, b: t.nn.functional.linear(x, w, b),
    ),
]  # fmt: skip
