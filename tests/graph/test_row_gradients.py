"""Which rows of a table a plan reads, and which of its gradient may differ from zero."""

import numpy as np
import pytest

from hpctrain import ops
from hpctrain.autograd import Spec, Tensor
from hpctrain.graph.rows import rows_of_outputs, rows_read
from hpctrain.parallel.program import Objective, StepDefinition, training_plan

pytestmark = pytest.mark.serial
IDS, LABELS = Spec((4,), np.dtype(np.int32)), Spec((4,), np.dtype(np.int64))


def plan(net, *shapes):
    weights = [Tensor(np.ones(shape)) for shape in shapes]
    for weight in weights:
        weight.attach_grad()
    goal = Objective(lambda ids: net(ids, *weights), ops.softmax_cross_entropy)
    return training_plan(StepDefinition(goal, ((IDS,), (LABELS,)), weights, weights))


def test_the_table_of_an_embedding_has_the_rows_of_its_ids():
    found = rows_of_outputs(
        plan(lambda ids, e, w: ops.dense(ops.embedding(ids, e), w), (9, 3), (5, 3))
    )
    assert found == {2: 0}


def test_a_table_that_is_used_as_a_whole_too_has_all():
    found = rows_of_outputs(plan(lambda ids, e: ops.dense(ops.embedding(ids, e), e), (9, 3)))
    assert found == {}


def test_ids_that_are_computed_do_not_count():
    found = rows_of_outputs(
        plan(lambda ids, e: ops.embedding((ids + 1).astype("int64"), e), (9, 3))
    )
    assert found == {}


def test_other_axes_are_not_rows():
    found = rows_of_outputs(
        plan(lambda ids, e: ops.transpose(ops.take(e, ids, 1), (1, 0)), (5, 9))
    )
    assert found == {}


@pytest.mark.parametrize(("net", "expected"), [
    (lambda ids, e, w: ops.dense(ops.embedding(ids, e), w), {0}),
    (lambda ids, e, w: ops.dense(ops.reshape(
        ops.embedding(ops.reshape(ids, (2, 2)), e), (4, 4)), w), {0}),
    (lambda ids, e, w: ops.dense(ops.embedding(ids, e), w) + ops.sum(e), {0, -1}),
    (lambda ids, e, w: ops.dense(ops.embedding((ids + 1).astype("int64"), e), w), {-1}),
    (lambda ids, e, w: ops.dense(ops.take(e, ids, 1), w), {-1}),
], ids=["looked up", "by a view", "read too", "computed", "columns"])  # fmt: skip
def test_a_plan_tells_which_rows_it_reads(net, expected):
    made = plan(net, (4, 4), (5, 4))
    assert rows_read(made, made.graph.leaves[0]) == expected
