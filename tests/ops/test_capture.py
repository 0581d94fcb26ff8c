"""Operations and gradient rules need no elements, only shapes: so they can be captured."""

import itertools

import numpy as np
import pytest
from op_cases import case_ids, every_case

from hpctrain import ops
from hpctrain.autograd import Spec, Tensor, grad, record
from hpctrain.autograd.bind import EAGER
from hpctrain.autograd.mode import interpreted_by
from hpctrain.autograd.node import Node, Symbol

pytestmark = pytest.mark.serial
PAIRS = every_case()


class Shapes:
    """An interpreter that gives every result a name and computes nothing."""

    def __init__(self):
        self.names = (Symbol(i, 0) for i in itertools.count())

    def apply(self, row, inputs, attrs, specs):
        """Name the outputs; attributes must be hashable, as merging and plans need it."""
        hash(tuple(attrs.items()))
        return [next(self.names) for _ in specs]

    def kept(self, inputs):
        """Let the tape keep the inputs themselves."""
        return inputs

    def beside(self, values):
        """Do as the eager interpreter does."""
        return EAGER.beside(values)


@pytest.mark.parametrize(("group", "case"), PAIRS, ids=case_ids(PAIRS))
def test_shapes_are_enough(group, case):
    shapes = Shapes()
    arrays = case.arrays()
    inputs = [Node.from_value(next(shapes.names), Spec.of(a)) for a in arrays]
    floating = [x for x in inputs if x.dtype.kind == "f"]
    for x in floating:
        x.attach_grad()

    with interpreted_by(shapes), record():
        outputs = case.ours(ops, *inputs)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        heads = [o for o in outputs if o.requires_grad and o.dtype.kind == "f"]
        found = grad(heads, floating) if heads and case.order else []

    eager = case.ours(ops, *map(Tensor, arrays))
    eager = eager if isinstance(eager, tuple) else (eager,)
    assert [o.spec for o in outputs] == [o.spec for o in eager]
    assert [g.spec for g in found] == [x.spec for x in floating][: len(found)]


def test_numbers_take_the_dtype_of_the_tensor_beside_them():
    x = Tensor(np.ones(3, np.float32))

    for y in (ops.add(2, x), ops.maximum(x, 0.5), ops.where(x > 0, 1, x), 1 - x, x**2):
        assert y.dtype == np.float32
