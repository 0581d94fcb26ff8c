"""Sequences of unequal length, against loops over NumPy arrays."""

import numpy as np
import pytest

from hpctrain import ops
from hpctrain.autograd import Tensor, check_gradients, grad, record
from hpctrain.errors import ShapeError
from hpctrain.graph.cached import CachedGraph
from hpctrain.ops.mxnet import OPERATORS

pytestmark = pytest.mark.serial
LENGTHS = np.array([3, 1, 5, 4])


def masked(x, lengths, value):
    y = x.copy()
    for n, length in enumerate(lengths):
        y[length:, n] = value
    return y


def reverse(x, lengths):
    y = x.copy()
    for n, length in enumerate(lengths):
        y[:length, n] = x[:length, n][::-1]
    return y


def last(x, lengths):
    return np.stack([x[length - 1, n] for n, length in enumerate(lengths)])


CASES = {
    "mask": (
        lambda x, n, axis: ops.sequence_mask(x, n, axis, -7),
        lambda x, n: masked(x, n, -7),
    ),
    "reverse": (ops.sequence_reverse, reverse),
    "last": (ops.sequence_last, last),
}
every_case = pytest.mark.parametrize("name", CASES)
every_layout = pytest.mark.parametrize("axis", [0, 1])
every_shape = pytest.mark.parametrize("shape", [(5, 4), (5, 4, 3), (5, 4, 2, 3)])


def made(shape, axis):
    x = np.random.default_rng(len(shape)).standard_normal(shape)
    return x, np.ascontiguousarray(x.swapaxes(0, axis))


@every_case
@every_layout
@every_shape
@pytest.mark.parametrize("kind", [np.int64, np.int32, np.float32])
def test_values_are_those_of_a_loop(name, axis, shape, kind):
    ours, plain = CASES[name]
    x, given = made(shape, axis)

    have = ours(Tensor(given), Tensor(LENGTHS.astype(kind)), axis).asnumpy()

    want = plain(x, LENGTHS)
    np.testing.assert_array_equal(have, want if name == "last" else want.swapaxes(0, axis))


@every_case
@every_layout
def test_gradients_are_those_of_finite_differences(name, axis):
    ours, _ = CASES[name]
    _, given = made((5, 4, 3), axis)

    check_gradients(lambda x, n: ours(x, n, axis), [given, LENGTHS], 2)
    check_gradients(CachedGraph(lambda x, n: ours(x, n, axis), []), [given, LENGTHS])


@every_layout
def test_without_lengths_all_steps_are_real(axis):
    x, given = made((5, 4, 3), axis)
    tensor = Tensor(given)

    np.testing.assert_array_equal(ops.sequence_last(tensor, None, axis).asnumpy(), x[-1])
    np.testing.assert_array_equal(
        ops.sequence_reverse(tensor, None, axis).asnumpy(), np.flip(given, axis)
    )
    assert ops.sequence_mask(tensor, None, axis) is tensor


def test_padding_that_is_not_a_number_does_no_harm():
    x = Tensor(np.array([[1.0, 2.0], [np.nan, 3.0]]))
    x.attach_grad()

    with record():
        y = ops.sum(ops.exp(ops.sequence_mask(x, [1, 2])))
    (found,) = grad(y, x)

    assert np.isfinite(float(y))
    assert found.asnumpy()[1, 0] == 0


@pytest.mark.parametrize("bad", [[0, 1], [1, 4]])
def test_a_length_out_of_range_has_no_last_step(bad):
    with pytest.raises(ShapeError, match="got index -1"):
        ops.sequence_last(Tensor(np.ones((3, 2))), bad)


def test_lengths_of_another_number_are_refused():
    with pytest.raises(ShapeError, match="one for each of 2 sequences"):
        ops.sequence_mask(Tensor(np.ones((3, 2))), [1, 2, 3])


@pytest.mark.parametrize("name", ["SequenceMask", "SequenceLast", "SequenceReverse"])
def test_mxnets_names_leave_lengths_out_unless_told(name):
    row = OPERATORS[name]
    attrs = {n: a.default for n, a in row.attrs.items()}
    x = Tensor(np.arange(6.0).reshape(3, 2))

    assert row.input_names(attrs) == ["data"]
    told = {**attrs, "use_sequence_length": True}
    assert row.input_names(told) == ["data", "sequence_length"]
    assert list(row.shapes(told, [(3, 2), None])) == [(3, 2), (2,)]
    plain = row.function(x, Tensor(np.ones(2)), **attrs).asnumpy()
    np.testing.assert_array_equal(plain, row.function(x, **attrs).asnumpy())
    assert not np.array_equal(plain, row.function(x, Tensor(np.ones(2)), **told).asnumpy())
