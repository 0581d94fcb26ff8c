"""Reverse mode: what arrives at the leaves, and what is said where nothing can."""

import gc
import weakref

import numpy as np
import pytest

from hpctrain import ops
from hpctrain.autograd import (
    Primitive,
    Tensor,
    apply_row,
    backward,
    grad,
    pause,
    record,
)
from hpctrain.errors import ShapeError

pytestmark = pytest.mark.serial


def leaf(value, grad_req="write"):
    tensor = Tensor(np.asarray(value, np.float64))
    tensor.attach_grad(grad_req)
    return tensor


def test_a_gradient_is_written_anew_by_each_backward():
    x = leaf([1.0, 2.0])
    for _ in range(2):
        with record():
            y = (x * x).sum()
        y.backward()

    np.testing.assert_array_equal(x.grad.asnumpy(), [2, 4])


def test_a_gradient_is_added_up_if_asked_for():
    x = leaf([1.0, 2.0], "add")
    for _ in range(3):
        with record():
            y = (x * x).sum()
        y.backward()

    np.testing.assert_array_equal(x.grad.asnumpy(), [6, 12])


def test_the_array_of_a_gradient_stays_the_same():
    for grad_req in ("write", "add"):
        x = leaf([1.0, 2.0], grad_req)
        array = x.grad.array
        with record():
            y = (x * 3.0).sum()
        y.backward()

        assert x.grad.array is array
        np.testing.assert_array_equal(array, 3)


def test_no_gradient_goes_where_none_is_wanted():
    x, w = leaf([1.0, 2.0]), leaf([3.0, 4.0], "null")
    with record():
        y = (x * w).sum()
    y.backward()

    assert w.grad is None
    np.testing.assert_array_equal(x.grad.asnumpy(), [3, 4])


def test_several_heads_add_up():
    x = leaf([1.0, 2.0])
    with record():
        a, b = x * 2.0, (x * x).sum()
    backward([a, b])

    np.testing.assert_array_equal(x.grad.asnumpy(), [4, 6])


def test_heads_may_be_given_cotangents():
    x = leaf([1.0, 2.0])
    with record():
        a, b = x * 2.0, (x * x).sum()
    backward([a, b], [Tensor(np.array([10.0, 20.0])), None])

    np.testing.assert_array_equal(x.grad.asnumpy(), [22, 44])


@pytest.mark.parametrize("given", [Tensor(np.array([1.0, 5.0])), np.array([1.0, 5.0])])
def test_a_head_may_be_given_a_tensor_or_an_array(given):
    x = leaf([1.0, 2.0])
    with record():
        y = x * 2.0
    y.backward(given)

    np.testing.assert_array_equal(x.grad.asnumpy(), [2, 10])


def test_one_head_may_stand_before_another():
    x = leaf([1.0, 2.0])
    with record():
        y = x * x
        z = y * 3.0
    backward([z, y, z])

    np.testing.assert_array_equal(x.grad.asnumpy(), 7 * 2 * x.asnumpy())


def test_a_leaf_may_be_a_head():
    x = leaf([1.0, 2.0])

    backward(x)

    np.testing.assert_array_equal(x.grad.asnumpy(), 1)


def test_a_tape_can_be_walked_again():
    x = leaf([1.0, 2.0], "add")
    with record():
        y = (x * x * x).sum()
    y.backward()
    y.backward()

    np.testing.assert_allclose(x.grad.asnumpy(), 6 * x.asnumpy() ** 2)


def test_paths_that_meet_again_add_up():
    x = leaf([0.3, 0.7])
    with record():
        a = ops.tanh(x)
        b, c = a * 2.0, ops.exp(a)
        d = b * c + a
        y = (d + b).sum()
    y.backward()

    t, e = np.tanh(x.asnumpy()), np.exp(np.tanh(x.asnumpy()))
    slope = 2 * e + 2 * t * e + 1 + 2
    np.testing.assert_allclose(x.grad.asnumpy(), slope * (1 - t**2), rtol=1e-14)


def test_a_long_chain_needs_no_deep_recursion():
    x = leaf(1.0)
    with record():
        y = x
        for _ in range(5000):
            y = y + 1.0
    y.backward()

    assert float(x.grad) == 1.0


def test_broadcast_operands_get_gradients_of_their_own_shape():
    x, row, number = leaf(np.ones((3, 4))), leaf(np.ones(4)), leaf(2.0)
    with record():
        y = ((x * row) * number).sum()
    y.backward()

    assert [t.grad.shape for t in (x, row, number)] == [(3, 4), (4,), ()]
    np.testing.assert_array_equal(row.grad.asnumpy(), 6)
    assert float(number.grad) == 12


def two_outputs(log):
    """A row with the outputs 2x and 3x, whose rule notes which cotangents came."""

    def kernel(xp, ins, outs, scratch):
        xp.multiply(ins[0], 2, out=outs[0])
        xp.multiply(ins[0], 3, out=outs[1])

    double = Primitive(
        "double", "elementwise", lambda specs: [specs[0], specs[0]], kernel,
        lambda inputs, outputs, given: log.append([g is not None for g in given]) or [
            sum(g * (k + 2.0) for k, g in enumerate(given) if g is not None)
        ],
    )  # fmt: skip
    return lambda x: apply_row(double, [x], {})


def test_an_output_that_is_not_used_brings_no_cotangent():
    log = []
    x = leaf([1.0])
    with record():
        y = two_outputs(log)(x)[1] * 5.0
    y.backward()

    assert log == [[False, True]]
    assert float(x.grad) == 15


def test_outputs_that_are_both_used_are_visited_once():
    log = []
    x = leaf([1.0])
    with record():
        a, b = two_outputs(log)(x)
        y = a * b
    y.backward()

    assert log == [[True, True]]
    assert float(x.grad) == 12


def test_a_gradient_that_nobody_wants_is_not_computed():
    def forbidden():
        raise AssertionError("asked for")

    row = Primitive(
        "lazy", "elementwise", lambda specs: specs[:1],
        lambda xp, ins, outs, scratch: xp.add(*ins, out=outs[0]),
        lambda inputs, outputs, given: [given[0], forbidden],
    )  # fmt: skip
    x = leaf([1.0])
    with record():
        y = apply_row(row, [x, Tensor(np.array([2.0]))], {})[0]
    y.backward()

    assert float(x.grad) == 1


def test_gradients_of_leaves_are_made_before_those_that_go_on():
    """They can travel while the walk goes on; the rule of a product names its input first."""
    made = []

    def lazily(name, gradient):
        return lambda: made.append(name) or gradient

    row = Primitive(
        "scaled", "elementwise", lambda specs: specs[:1],
        lambda xp, ins, outs, scratch: xp.multiply(*ins, out=outs[0]),
        lambda inputs, outputs, given: [
            lazily("input", given[0] * inputs[1]), lazily("weight", given[0] * inputs[0])
        ],
    )  # fmt: skip
    x, w = leaf([2.0]), leaf([3.0])
    with record():
        y = apply_row(row, [x * 1.0, w], {})[0]
    y.backward()

    assert made == ["weight", "input"]
    assert (float(x.grad), float(w.grad)) == (3, 2)


def test_a_gradient_can_be_differentiated():
    x = leaf([0.5, 2.0])
    with record():
        y = (x * x * x).sum()
        (first,) = grad(y, x, create_graph=True)
        (second,) = grad(first, x, create_graph=True)
        third = second.sum()
    third.backward()

    np.testing.assert_allclose(first.asnumpy(), 3 * x.asnumpy() ** 2)
    np.testing.assert_allclose(second.asnumpy(), 6 * x.asnumpy())
    np.testing.assert_allclose(x.grad.asnumpy(), 6)


def test_grad_leaves_the_gradients_of_leaves_alone():
    x = leaf([1.0, 2.0])
    with record():
        y = (x * x).sum()
    found = grad(y, [x])

    np.testing.assert_array_equal(found[0].asnumpy(), [2, 4])
    np.testing.assert_array_equal(x.grad.asnumpy(), 0)
    assert found[0].creator is None


def test_grad_knows_tensors_on_the_way():
    x = leaf([1.0, 2.0])
    with record():
        a = x * 3.0
        b = a * a
        y = (b * x).sum()
    of_b, of_a, of_x = grad(y, [b, a, x])

    np.testing.assert_allclose(of_b.asnumpy(), x.asnumpy())
    np.testing.assert_allclose(of_a.asnumpy(), 2 * a.asnumpy() * x.asnumpy())
    np.testing.assert_allclose(of_x.asnumpy(), 27 * x.asnumpy() ** 2)


def test_grad_is_zero_where_the_head_does_not_depend():
    x, other = leaf([1.0, 2.0]), leaf([np.inf, 1.0])
    with record():
        y = (x * x).sum()

    np.testing.assert_array_equal(grad(y, [x, other])[1].asnumpy(), 0)


def test_grad_of_what_is_on_no_tape_is_refused():
    x, plain = leaf([1.0, 2.0]), Tensor(np.ones(2))
    with record():
        y = (x * plain).sum()

    with pytest.raises(ShapeError, match=r"variable 1, float64\[2\], is on no tape"):
        grad(y, [x, plain])


def test_what_happens_in_pause_is_constant():
    x = leaf([2.0])
    with record():
        with pause():
            factor = x * x
        y = (factor * x).sum()
    y.backward()

    np.testing.assert_array_equal(x.grad.asnumpy(), 4)


def test_attach_grad_begins_a_new_tape():
    x = leaf([2.0])
    with record():
        y = x * 3.0
        y.attach_grad()
        z = (y * y).sum()
    z.backward()

    np.testing.assert_array_equal(y.grad.asnumpy(), 12)
    np.testing.assert_array_equal(x.grad.asnumpy(), 0)


def test_the_tape_is_freed_with_its_last_output():
    x = leaf(np.ones(100))
    with record():
        inner = ops.exp(x)
        y = (inner * inner).sum()
    held = weakref.ref(inner)
    gc.disable()
    try:
        del inner, y
        assert held() is None
    finally:
        gc.enable()


def test_a_head_without_a_tape_is_refused():
    with pytest.raises(ShapeError, match="does not depend on anything with a gradient"):
        backward(Tensor(np.ones(2)) * 2.0)


def test_a_row_without_a_rule_is_named():
    row = Primitive(
        "rounded", "elementwise", lambda specs: specs,
        lambda xp, ins, outs, scratch: xp.rint(ins[0], out=outs[0]),
    )  # fmt: skip
    x = leaf([1.2])
    with record():
        (y,) = apply_row(row, [x], {})

    with pytest.raises(ShapeError, match="rounded: this operation cannot be differentiated"):
        y.backward()


@pytest.mark.parametrize("count", [1, 3])
def test_as_many_head_gradients_as_heads_are_needed(count):
    x = leaf([1.0])
    with record():
        heads = [x * 2.0, x * 3.0]

    with pytest.raises(ShapeError, match=f"got {count} head gradients, needed 2"):
        backward(heads, [None] * count)


def test_a_cotangent_of_another_shape_is_refused():
    x = leaf([1.0, 2.0])
    with record():
        y = x * 2.0

    with pytest.raises(ShapeError, match=r"got a cotangent float64\[3\] for float64\[2\]"):
        y.backward(Tensor(np.ones(3)))
