"""Every gradient rule against central differences, twice over where it can be done."""

import numpy as np
import pytest
from op_cases import ELSEWHERE, case_ids, every_case
from spy import Spy

from hpctrain import ops
from hpctrain.autograd import PRIMITIVES, Tensor, check_gradients, record

pytestmark = pytest.mark.serial
PAIRS = [(group, case) for group, case in every_case() if case.order]


def spread_out(array):
    """Return an array from which `gathered` makes ``array`` with other strides."""
    if array.ndim > 1:
        return np.ascontiguousarray(array.T)
    return np.repeat(array, 2) if array.ndim else array


def gathered(tensor):
    """Undo `spread_out` by a view: transposed, or every second element."""
    if tensor.ndim > 1:
        return tensor.T
    return tensor[::2] if tensor.ndim else tensor


@pytest.mark.parametrize(("group", "case"), PAIRS, ids=case_ids(PAIRS))
def test_gradients_are_those_of_finite_differences(group, case):
    def function(*tensors):
        return case.ours(ops, *tensors)

    check_gradients(function, case.arrays(), case.order, 1e-6 * case.loose)


@pytest.mark.parametrize(("group", "case"), PAIRS, ids=case_ids(PAIRS))
def test_gradients_do_not_depend_on_strides(group, case):
    def function(*tensors):
        return case.ours(ops, *map(gathered, tensors))

    arrays = [spread_out(a) for a in case.arrays()]
    check_gradients(function, arrays, 1, 1e-6 * case.loose)


def test_every_gradient_rule_is_checked():
    spy = Spy()
    with spy.watch():
        for _, case in PAIRS:
            check_gradients(lambda *t, c=case: c.ours(ops, *t), case.arrays(), case.order, 1e9)

    checked = {(call.row.name, place) for call in spy.calls for place in call.wanted}
    needed = {
        (call.row.name, place)
        for call in spy.calls
        for place, array in enumerate(call.arrays)
        if call.row.vjp and array.dtype.kind == "f"
    }
    rows = {name for name, row in PRIMITIVES.items() if row.vjp} - ELSEWHERE
    missing = rows - {name for name, _ in needed}
    assert not missing, f"rows whose gradient no case checks: {sorted(missing)}"
    missing = needed - checked
    assert not missing, f"inputs whose gradient no case checks: {sorted(missing)}"


def test_gradients_have_the_dtype_of_their_tensor():
    a = Tensor(np.ones((2, 3), np.float32))
    b = Tensor(np.ones(3))
    for x in (a, b):
        x.attach_grad()

    with record():
        y = ops.divide(ops.multiply(a, b) + a, b)
    y.backward()

    assert a.grad.dtype == np.float32
    assert b.grad.dtype == np.float64
    assert y.dtype == np.float64
