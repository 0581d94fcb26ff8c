"""The formula of a row says the same as its kernel, on every call that the cases make."""

import numpy as np
import pytest
from formula_oracle import evaluate
from test_rows import assert_close, calls_of, say

from hpctrain.autograd import PRIMITIVES, Spec
from hpctrain.autograd.element import cast, source

pytestmark = pytest.mark.serial


def traced(call):
    inputs = [source(i, a.dtype.name) for i, a in enumerate(call.arrays)]
    made = call.row.element(*inputs, **call.attrs)
    return cast(made, call.results[0].dtype.name)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_formula_gives_what_the_kernel_gives(dtype):
    for call in calls_of(dtype):
        if call.row.element is not None:
            (found,) = evaluate([traced(call)], call.arrays)
            shape = call.results[0].shape
            assert_close(np.broadcast_to(found, shape), call.results[0], say(call))


def test_element_wise_rows_have_formulas():
    without = {
        row.name for row in PRIMITIVES.values() if row.kind == "elementwise" and not row.element
    }

    # A power has no expansion in vector arithmetic, and a label is not one element.
    assert {"add", "exp", "relu_grad", "where", "cast"} & without == set()
    assert "power" in without


def test_totals_name_the_axes_that_are_summed():
    for call in calls_of("float64"):
        if call.row.total is not None:
            axes, factor = call.row.total(Spec.of(call.arrays[0]), **call.attrs)
            want = call.results[0]
            got = np.asarray(call.arrays[0].sum(axis=axes) * factor).reshape(want.shape)
            assert_close(got.astype(want.dtype), want, say(call))
