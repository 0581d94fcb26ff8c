"""Products in strips: the same numbers, and the first slices are final before the last."""

from itertools import pairwise

import numpy as np
import pytest

from hpctrain import ops
from hpctrain.autograd import Spec, Tensor
from hpctrain.graph.execute import Executor
from hpctrain.graph.segments import cut
from hpctrain.graph.strips import Strip, strips_of
from hpctrain.parallel.flat import FlatParameters
from hpctrain.parallel.program import Objective, StepDefinition, training_plan

pytestmark = pytest.mark.serial
X, LABELS = Spec((6, 7), np.dtype(np.float64)), Spec((6,), np.dtype(np.int64))
SHAPES = [(13, 7), (11, 13), (5, 11)]


def made(slice_bytes):
    rng = np.random.default_rng(3)
    weights = [Tensor(rng.normal(size=shape)) for shape in SHAPES]
    for weight in weights:
        weight.attach_grad()
    flat = FlatParameters(weights, slice_bytes)

    def net(x):
        a, b, c = weights
        return ops.dense(ops.tanh(ops.dense(ops.tanh(ops.dense(x, a)), b)), c)

    goal = Objective(net, ops.softmax_cross_entropy)
    step = StepDefinition(goal, ((X,), (LABELS,)), weights, weights)
    return weights, flat, training_plan(step)


def run(weights, plan, strips):
    rng = np.random.default_rng(8)
    inputs = [rng.normal(size=X.shape), rng.integers(0, 5, 6), np.array(1 / 6)]
    specs = [plan.graph.specs[v] for v in plan.graph.outputs]
    outputs = {i: np.full(s.shape, np.nan, s.dtype) for i, s in enumerate(specs)}
    executor = Executor(plan, [w.value for w in weights], outputs, strips=strips)
    executor(inputs)
    return outputs


@pytest.mark.parametrize("slice_bytes", [64, 200, 500, 2**20])
def test_gradients_in_pieces_are_those_of_the_whole(slice_bytes):
    weights, flat, plan = made(slice_bytes)
    rows = {plan.graph.outputs[2 + p]: r for p, r in flat.row_cuts().items()}

    strips = strips_of(plan, {value: r.edges for value, r in rows.items()})

    whole, cut_up = run(weights, plan, None), run(weights, plan, strips)
    for i, array in whole.items():
        np.testing.assert_allclose(cut_up[i], array, rtol=1e-12, atol=1e-14)
    # The first layer reads the batch, which is another array in each run.
    divided = {strip.node for strip in strips if strip.rows}
    assert len(divided) == (0 if slice_bytes == 2**20 else 2 if slice_bytes < 500 else 1)


@pytest.mark.parametrize("slice_bytes", [64, 200, 500])
def test_each_slice_is_final_once_and_early_ones_before_the_product_ends(slice_bytes):
    _, flat, plan = made(slice_bytes)
    rows = {plan.graph.outputs[2 + p]: r for p, r in flat.row_cuts().items()}
    strips = strips_of(plan, {value: r.edges for value, r in rows.items()})
    written = dict(zip(plan.graph.outputs[2:], flat.where(), strict=True))

    segments = cut(plan, {}, written, strips, lambda value, span: rows[value].slices(span))

    assert segments[0].start == 0 and segments[-1].stop == len(strips)
    final = [s for segment in segments for s in segment.final]
    assert sorted(final) == sorted({s for slices in written.values() for s in slices})
    place = {s: i for i, segment in enumerate(segments) for s in segment.final}
    middle = flat.where()[1]
    assert len({place[s] for s in middle}) > 1


def test_rows_know_their_slices():
    _, flat, _ = made(200)
    for place, found in flat.row_cuts().items():
        height = SHAPES[place][0]
        edges = [0, *found.edges, height]
        seen = [found.slices((a, b)) for a, b in pairwise(edges)]
        assert set().union(*seen) == set(flat.where()[place])
        assert found.slices((0, height)) == set(flat.where()[place])


def test_what_cannot_be_divided_stays_whole():
    _, _, plan = made(2**20)
    cuts = dict.fromkeys(plan.graph.specs, (1,))
    for strip in strips_of(plan, cuts):
        if strip.rows is not None:
            assert plan.graph.nodes[strip.node].row.part is not None
    assert strips_of(plan, {}) == [Strip(i) for i in range(len(plan.graph.nodes))]
