"""Compiled equals eager, bit for bit: values, gradients, state."""

import numpy as np
import pytest
from programs import random_program

from hpctrain import ops
from hpctrain.autograd import Tensor, assign, is_training, record, train_mode
from hpctrain.graph.cached import CachedGraph

pytestmark = pytest.mark.serial


def gradients(function, leaves, inputs):
    tensors = [*leaves, *inputs]
    for tensor in tensors:
        tensor.attach_grad()
    with record():
        outputs = function(*inputs)
    outputs[0].backward()
    return [*(o.asnumpy() for o in outputs), *(t.grad.asnumpy().copy() for t in tensors)]


@pytest.mark.parametrize("first", range(0, 500, 50))
def test_a_captured_program_gives_the_bits_of_eager_execution(first):
    for seed in range(first, first + 50):
        function, leaves, inputs = random_program(seed)

        eager = gradients(function, leaves, inputs)
        compiled = gradients(CachedGraph(function, leaves), leaves, inputs)

        for a, b in zip(eager, compiled, strict=True):
            np.testing.assert_array_equal(a, b, err_msg=f"program {seed}")


@pytest.mark.parametrize("seed", range(20))
def test_inference_gives_the_same_bits(seed):
    function, leaves, inputs = random_program(seed, length=20)

    for a, b in zip(function(*inputs), CachedGraph(function, leaves)(*inputs), strict=True):
        np.testing.assert_array_equal(a.asnumpy(), b.asnumpy())


def test_results_stay_when_the_function_is_called_again():
    twice = CachedGraph(lambda x: x + x, [])

    first = twice(Tensor(np.ones(4)))
    twice(Tensor(np.zeros(4)))

    np.testing.assert_array_equal(first.asnumpy(), 2.0)


def test_two_calls_can_wait_for_their_backward():
    weight = Tensor(np.full(3, 2.0))
    weight.attach_grad("add")
    call = CachedGraph(lambda x: ops.exp(x * weight), [weight])
    inputs = [Tensor(np.full(3, v)) for v in (0.0, 1.0)]

    with record():
        outputs = [call(x) for x in inputs]
    for output in outputs:
        output.backward()

    np.testing.assert_allclose(weight.grad.asnumpy(), np.exp(2.0), rtol=1e-6)


def test_a_new_shape_is_captured_anew_and_an_old_one_is_not():
    call = CachedGraph(lambda x: ops.sum(x * x), [])

    for n in (3, 4, 3, 4):
        assert float(call(Tensor(np.ones(n)))) == n

    assert call.captures == 2


def test_training_and_inference_are_captured_apart():
    call = CachedGraph(lambda x: x * (2.0 if is_training() else 3.0), [])
    x = Tensor(np.ones(2))

    inference = call(x)
    with train_mode():
        training = call(x)

    np.testing.assert_array_equal(inference.asnumpy(), 3.0)
    np.testing.assert_array_equal(training.asnumpy(), 2.0)


def test_state_is_assigned_in_every_run_and_gradients_see_it_as_it_was():
    state = Tensor(np.ones(3))
    x = Tensor(np.full(3, 2.0))
    x.attach_grad()

    def function(x):
        y = ops.sum(x * x * state)
        assign(state, state + 1.0)
        return y

    call = CachedGraph(function, [state])
    for run in range(1, 4):
        with record():
            y = call(x)
        y.backward()
        np.testing.assert_array_equal(x.grad.asnumpy(), 4.0 * run)
        np.testing.assert_array_equal(state.asnumpy(), run + 1.0)


def test_parameters_may_move_to_other_arrays():
    weight = Tensor(np.ones(3))
    call = CachedGraph(lambda x: x * weight, [weight])
    x = Tensor(np.full(3, 5.0))
    call(x)

    weight.value = np.full(3, 7.0)

    np.testing.assert_array_equal(call(x).asnumpy(), 35.0)


def test_an_error_names_the_step():
    call = CachedGraph(lambda i, w: ops.embedding(i, w), [])
    good = Tensor(np.zeros(2, np.int64)), Tensor(np.zeros((3, 4)))
    call(*good)

    with pytest.raises(Exception) as caught:
        call(Tensor(np.full(2, 9)), good[1])

    assert any(
        "in step 0 of the plan: take(float64[3,4], int64[2])" in note
        for note in caught.value.__notes__
    )


def test_a_scalar_can_be_an_input():
    call = CachedGraph(lambda x: x * 2.0, [])
    x = Tensor(np.array(3.0))
    x.attach_grad()

    with record():
        y = call(x)
    y.backward()

    assert (float(y), y.shape, float(x.grad)) == (6.0, (), 2.0)


def test_an_input_of_any_strides_can_be_given():
    call = CachedGraph(lambda x: ops.flatten(x), [])
    x = np.arange(24.0).reshape(2, 3, 4)

    got = call(Tensor(x.transpose(2, 0, 1)))

    np.testing.assert_array_equal(got.asnumpy(), x.transpose(2, 0, 1).reshape(4, 6))


def test_outputs_may_be_inputs_parameters_and_each_other():
    weight = Tensor(np.full(3, 2.0))
    x = Tensor(np.arange(3.0))

    def function(x):
        y = x * weight
        return x, weight, y, y, y[::1]

    eager = gradients(lambda x: (ops.sum(x * weight), *function(x)), [weight], [x])
    compiled = gradients(
        CachedGraph(lambda x: (ops.sum(x * weight), *function(x)), [weight]), [weight], [x]
    )

    for a, b in zip(eager, compiled, strict=True):
        np.testing.assert_array_equal(a, b)


def test_gradients_flow_through_outputs_that_are_inputs_or_parameters():
    weight = Tensor(np.full(3, 2.0))
    x = Tensor(np.arange(3.0))
    grads = []
    for call in (lambda x: (x, weight, x * weight), None):
        call = call or CachedGraph(lambda x: (x, weight, x * weight), [weight])
        for tensor in (x, weight):
            tensor.attach_grad()
        with record():
            a, b, c = call(x)
            total = ops.sum(a * b) + ops.sum(c * c)
        total.backward()
        grads.append([t.grad.asnumpy().copy() for t in (x, weight)])

    np.testing.assert_array_equal(grads[0], grads[1])


def test_an_output_of_a_row_that_nobody_reads_disturbs_nothing():
    x = Tensor(np.linspace(-1, 1, 24).reshape(4, 6))
    gamma, beta = Tensor(np.ones(6)), Tensor(np.zeros(6))

    def function(x):
        y = ops.batch_norm(ops.exp(x), gamma, beta)[0]
        return ops.sum(y * ops.batch_norm(y + x, gamma, beta)[2])

    leaves = [gamma, beta]
    eager = gradients(lambda x: (function(x),), leaves, [x])
    compiled = gradients(CachedGraph(lambda x: (function(x),), leaves), leaves, [x])

    for a, b in zip(eager, compiled, strict=True):
        np.testing.assert_array_equal(a, b)


def test_arrays_without_elements_pass_through():
    call = CachedGraph(lambda x: ops.exp(x + 1.0).reshape(0, 2) * 2.0, [])

    assert call(Tensor(np.zeros((2, 0)))).shape == (0, 2)
