"""Cases of recurrent: 4 steps, 3 sequences, 5 inputs, 2 states."""

from op_cases import Case


def lstm(t, x, h0, c0, w_x, w_h, bias):
    """Run PyTorch's, which has two biases."""
    zero = t.zeros_like(bias)
    y, h, c = t._VF.lstm(
        x, (h0[None], c0[None]), (w_x, w_h, bias, zero), True, 1, 0.0, True, False, False
    )
    return y, h[0], c[0]


def gru(t, x, h0, w_x, w_h, b_x, b_h):
    """Run PyTorch's."""
    y, h = t._VF.gru(x, h0[None], (w_x, w_h, b_x, b_h), True, 1, 0.0, True, False, False)
    return y, h[0]


CASES = [
    Case(
        "lstm", [(4, 3, 5), (3, 2), (3, 2), (8, 5), (8, 2), (8,)],
        lambda ops, *a: ops.lstm(*a)[:3], lstm, order=1,
    ),
    Case(
        "gru", [(4, 3, 5), (3, 2), (6, 5), (6, 2), (6,), (6,)],
        lambda ops, *a: ops.gru(*a)[:2], gru, order=1,
    ),
]  # fmt: skip
