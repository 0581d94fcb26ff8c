"""The checker passes right rules and catches wrong ones."""

import numpy as np
import pytest

from hpctrain import ops
from hpctrain.autograd import Primitive, Tensor, apply_row, check_gradients

pytestmark = pytest.mark.serial
X = np.array([[0.3, -0.7], [1.1, 0.4]])


def cube(rule):
    row = Primitive(
        "cube", "elementwise", lambda specs: specs,
        lambda xp, ins, outs, scratch: xp.power(ins[0], 3, out=outs[0]), rule,
    )  # fmt: skip
    return lambda x: apply_row(row, [x], {})[0]


def test_a_right_rule_passes_in_both_orders():
    check_gradients(cube(lambda i, o, g: [g[0] * i[0] * i[0] * 3.0]), [X], order=2)


@pytest.mark.parametrize(
    "rule",
    [
        lambda i, o, g: [g[0] * i[0] * i[0] * 3.001],
        lambda i, o, g: [-(g[0] * i[0] * i[0] * 3.0)],
        lambda i, o, g: [None],
        lambda i, o, g: [(g[0] * i[0] * i[0] * 3.0).T],
    ],
    ids=["factor", "sign", "missing", "transposed"],
)
def test_a_wrong_rule_is_caught(rule):
    with pytest.raises(AssertionError, match=r"analytic .*, numeric .* in direction 0"):
        check_gradients(cube(rule), [X])


def test_a_rule_that_is_wrong_in_second_order_only_is_caught():
    """The slope is right as a number, but does not know that it depends on x."""

    def rule(i, o, g):
        return [g[0] * Tensor(3 * i[0].asnumpy() ** 2)]

    check_gradients(cube(rule), [X])
    with pytest.raises(AssertionError, match="in direction 1"):
        check_gradients(cube(rule), [X], order=2)


def test_whole_numbers_are_passed_on():
    ids = np.array([1, 0, 1])

    check_gradients(lambda i, w: ops.take(w, i, 0) * 2.0, [ids, X])


def test_several_outputs_are_checked_together():
    check_gradients(lambda x: (ops.exp(x), ops.sum(x), x * x), [X], order=2)


def test_single_precision_is_checked_in_double():
    check_gradients(lambda x: ops.exp(x), [X.astype(np.float32)], tolerance=1e-8)
