"""Cases of softmax and cross_entropy."""

from op_cases import Case, ids, uniform, values

A = (3, 4, 5)
FAR = values([900.0, -900, 901], [-1000, -1001, -1002])


def entropy(t, logits, labels):
    """Return PyTorch's cross entropy; its classes stand on axis 1."""
    flat = logits.reshape(-1, logits.shape[-1])
    loss = t.nn.functional.cross_entropy(flat, labels.reshape(-1), reduction="none")
    return loss.reshape(labels.shape)


CASES = [
    *(
        Case(
            f"{name}_{axis % 3}", [A],
            lambda ops, x, name=name, axis=axis: getattr(ops, name)(x, axis),
            lambda t, x, name=name, axis=axis: getattr(t, name)(x, axis),
        )
        for name in ("softmax", "log_softmax", "logsumexp")
        for axis in (0, 1, -1)
    ),
    Case("softmax_far", [FAR], lambda ops, x: ops.softmax(x), lambda t, x: x.softmax(-1)),
    Case(
        "log_softmax_far", [FAR],
        lambda ops, x: ops.log_softmax(x), lambda t, x: x.log_softmax(-1), order=1,
    ),
    Case(
        "logsumexp_keep", [A], lambda ops, x: ops.logsumexp(x, 1, keepdims=True),
        lambda t, x: x.logsumexp(1, keepdim=True),
    ),
    Case(
        "cross_entropy", [(3, 4, 6), ids(6, 3, 4)],
        lambda ops, x, i: ops.softmax_cross_entropy(x, i), entropy,
    ),
    Case(
        "cross_entropy_far", [FAR, ids(3, 2)],
        lambda ops, x, i: ops.softmax_cross_entropy(x, i), entropy, order=1,
    ),
    Case(
        "cross_entropy_and_sum", [(5, 6), ids(6, 5)],
        lambda ops, x, i: ops.softmax_cross_entropy(x, i) * ops.logsumexp(x),
        lambda t, x, i: entropy(t, x, i) * x.logsumexp(-1),
    ),
    Case(
        "cross_entropy_soft", [(3, 6), uniform(0, 1, 3, 6)],
        lambda ops, x, p: ops.softmax_cross_entropy(x, p),
        lambda t, x, p: t.nn.functional.cross_entropy(x, p, reduction="none"),
    ),
]  # fmt: skip
