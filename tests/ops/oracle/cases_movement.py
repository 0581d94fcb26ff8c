"""Cases of movement and slicing."""

from op_cases import Case

A = (3, 4, 5)

CASES = [
    Case("reshape", [A], lambda ops, x: ops.reshape(x, (2, -1)), lambda t, x: x.reshape(2, -1)),
    Case(
        "reshape_of_transposed", [A],
        lambda ops, x: x.T.reshape(4, 15), lambda t, x: x.permute(2, 1, 0).reshape(4, 15),
    ),
    Case("flatten", [A], lambda ops, x: ops.flatten(x), lambda t, x: x.flatten(1)),
    Case(
        "expand_dims", [A], lambda ops, x: ops.expand_dims(x, -2) * 2,
        lambda t, x: x.unsqueeze(-2) * 2,
    ),
    Case(
        "squeeze", [(3, 1, 4, 1)],
        lambda ops, x: (ops.squeeze(x, 1), ops.squeeze(x)),
        lambda t, x: (x.squeeze(1), x.squeeze()),
    ),
    Case(
        "transpose", [A],
        lambda ops, x: ops.transpose(x, (1, 2, 0)), lambda t, x: x.permute(1, 2, 0),
    ),
    Case(
        "broadcast_to", [(4, 1)],
        lambda ops, x: ops.broadcast_to(x, (3, 4, 5)), lambda t, x: x.broadcast_to(3, 4, 5),
    ),
    Case("flip", [A], lambda ops, x: ops.flip(x, (0, 2)), lambda t, x: x.flip(0, 2)),
    Case(
        "repeat", [A],
        lambda ops, x: ops.repeat(x, 3, 1), lambda t, x: x.repeat_interleave(3, 1),
    ),
    Case("tile", [A], lambda ops, x: ops.tile(x, (2, 1, 3)), lambda t, x: x.tile(2, 1, 3)),
    Case(
        "slice", [A],
        lambda ops, x: (x[1], x[..., 1:4:2], x[:, -1, :3]),
        lambda t, x: (x[1], x[..., 1:4:2], x[:, -1, :3]),
    ),
    Case("slice_square", [A], lambda ops, x: ops.square(x[:, 1, ::2])),
    Case("slice_to_number", [A], lambda ops, x: x[2, 3, 4], lambda t, x: x[2, 3, 4]),
    Case(
        "concat", [(3, 2), (3, 4), (3, 1)],
        lambda ops, *x: ops.concat(x, axis=1), lambda t, *x: t.concat(x, axis=1),
    ),
    Case(
        "stack", [(3, 4), (3, 4)],
        lambda ops, *x: ops.stack(x, axis=-1), lambda t, *x: t.stack(x, axis=-1),
    ),
    Case("unstack", [A], lambda ops, x: ops.unstack(x)),
    Case(
        "unstack_partly_used", [(3, 4)],
        lambda ops, x: ops.unstack(x)[1] * ops.unstack(x * x)[2],
    ),
    Case("split", [(6, 4)], lambda ops, x: ops.split(x, 3), lambda t, x: x.split(2)),
    Case(
        "split_by_length", [A],
        lambda ops, x: ops.split(x, (1, 4), axis=-1), lambda t, x: x.split((1, 4), dim=-1),
    ),
    Case(
        "pad", [A], lambda ops, x: ops.pad(x, ((0, 0), (1, 2), (3, 0)), 1.5),
        lambda t, x: t.nn.functional.pad(x, (3, 0, 1, 2), value=1.5),
    ),
]  # fmt: skip
