"""Cases of activations and erf."""

from op_cases import Case, uniform, values

X = uniform(-4, 4, 3, 4, 7)
FAR = values([-800.0, -40, -3, 0.5, 6, 90, 800])

CASES = [
    Case("relu", [X], lambda ops, x: ops.relu(x), lambda t, x: x.relu()),
    Case(
        "leaky_relu", [X], lambda ops, x: ops.leaky_relu(x, 0.2),
        lambda t, x: t.nn.functional.leaky_relu(x, 0.2),
    ),
    Case(
        "leaky_relu_steep", [X], lambda ops, x: ops.leaky_relu(x, 3),
        lambda t, x: t.nn.functional.leaky_relu(x, 3),
    ),
    Case("sigmoid", [X], lambda ops, x: ops.sigmoid(x), lambda t, x: x.sigmoid()),
    Case(
        "sigmoid_far", [FAR], lambda ops, x: ops.sigmoid(x), lambda t, x: x.sigmoid(), order=1
    ),
    Case("tanh", [X], lambda ops, x: ops.tanh(x), lambda t, x: x.tanh()),
    Case("softplus", [X], lambda ops, x: ops.softplus(x), lambda t, x: t.log1p(x.exp())),
    Case(
        "softplus_far", [FAR], lambda ops, x: ops.softplus(x),
        lambda t, x: t.logaddexp(x, t.zeros_like(x)), order=1,
    ),
    Case("silu", [X], lambda ops, x: ops.silu(x), lambda t, x: t.nn.functional.silu(x)),
    Case(
        "gelu_tanh", [X], lambda ops, x: ops.gelu(x),
        lambda t, x: t.nn.functional.gelu(x, approximate="tanh"),
    ),
    Case(
        "gelu_erf", [X], lambda ops, x: ops.gelu(x, approximate=False),
        lambda t, x: t.nn.functional.gelu(x),
    ),
    Case("erf", [uniform(-7, 7, 150)], lambda ops, x: ops.erf(x), lambda t, x: t.erf(x)),
]  # fmt: skip
