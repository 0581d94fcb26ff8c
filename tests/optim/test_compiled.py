"""Compiled updates against those that NumPy makes."""

import numpy as np
import pytest

from hpctrain.graph.native import available
from hpctrain.optim import SGD, Adam, AdamW, optimizer

pytestmark = [
    pytest.mark.serial,
    pytest.mark.skipif(not available(), reason="LLVM is not installed"),
]

KINDS = [
    SGD(), SGD(momentum=0.9), SGD(momentum=0.9, nesterov=True, weight_decay=0.01),
    Adam(rescale_grad=0.5), Adam(weight_decay=0.1), AdamW(), AdamW(weight_decay=0.0),
    Adam(nesterov=True), AdamW(nesterov=True),
]  # fmt: skip


def trained(kind, dtype, grads, copies):
    """Make three updates; return the weights and the states."""
    rng = np.random.default_rng(5)
    n = 1003
    weight = rng.standard_normal(n).astype(dtype)
    state = kind.make_state(n, dtype)
    places = [np.zeros(n, dtype) for _ in range(copies)]
    for step in range(3):
        terms = [rng.standard_normal(n).astype(dtype) for _ in range(grads)]
        kind.update(weight, terms, state, lr=0.1, step=step, scale=0.25, copies=places)
    return [weight, *state.values(), *places]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("grads, copies", [(1, 0), (3, 2)])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: repr(kind)[:40])
def test_a_compiled_update_has_the_bits_of_numpy(kind, grads, copies, dtype, monkeypatch):
    found = trained(kind, dtype, grads, copies)
    monkeypatch.setattr(optimizer, "compiled_update", lambda *_: False)
    expected = trained(kind, dtype, grads, copies)

    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(a, b)
    for copy in found[len(found) - copies :]:
        np.testing.assert_array_equal(copy, found[0])


def test_clipped_gradients_and_strided_arrays_go_through_numpy():
    weight, grad = np.zeros(8, np.float32), np.full(16, 4, np.float32)[::2]

    SGD(clip_gradient=1.0).update(weight, grad, {}, lr=1.0, step=0)
    SGD().update(weight, grad, {}, lr=1.0, step=0)

    np.testing.assert_array_equal(weight, np.full(8, -5, np.float32))
