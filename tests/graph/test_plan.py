"""Plans: in place where it is safe, views for nothing, no two live values in one place."""

from itertools import pairwise

import numpy as np
import pytest
from programs import random_program, run_plan

from hpctrain import ops
from hpctrain.autograd import Spec, Tensor
from hpctrain.cli.measure import made_up
from hpctrain.cli.subject import of_model
from hpctrain.errors import ShapeError
from hpctrain.graph.capture import capture, capture_gradient
from hpctrain.graph.execute import Executor
from hpctrain.graph.passes import EXACT, optimise, own_outputs
from hpctrain.graph.plan import make_plan
from hpctrain.graph.segments import cut
from hpctrain.models.workloads import WORKLOADS
from hpctrain.parallel.pieces import pieces as pieces_of

pytestmark = pytest.mark.serial
F4 = np.dtype(np.float32)


def plan_of(function, *shapes, leaves=()):
    return make_plan(optimise(capture(function, [Spec(s, F4) for s in shapes], leaves)))


def test_a_chain_of_elementwise_operations_runs_in_one_place():
    plan = plan_of(lambda x: ops.sum(ops.relu(ops.tanh(ops.exp(x)))), (1024,))

    assert plan.arena_bytes == 4096
    assert plan.naive_bytes == 3 * 4096


def test_what_is_needed_later_is_not_overwritten():
    def function(x):
        y = ops.exp(x)
        return ops.sum(ops.relu(y)) + ops.sum(y)

    plan = plan_of(function, (1024,))
    out = np.empty((), F4)
    Executor(plan, [])([np.full(1024, -1.0, F4)], [out])

    assert plan.arena_bytes >= 2 * 4096
    np.testing.assert_allclose(out, 2 * 1024 * np.exp(-1), rtol=1e-5)


def test_views_take_no_memory():
    plan = plan_of(lambda x: ops.sum(ops.exp(x).reshape((4, 256)).T), (1024,))

    assert len(plan.views) == 2
    assert plan.arena_bytes == 4096


def test_a_reshape_of_a_transpose_is_a_copy():
    plan = plan_of(lambda x: ops.sum(ops.exp(x).T.reshape((1024,))), (4, 256))

    assert len(plan.views) == 1
    assert plan.arena_bytes == 2 * 4096


@pytest.mark.parametrize("seed", range(40))
def test_no_step_writes_over_a_value_that_is_read_later(seed):
    function, leaves, inputs = random_program(seed, length=25)
    for leaf in leaves:
        leaf.attach_grad()
    graph = optimise(capture_gradient(function, [t.spec for t in inputs], leaves, leaves))
    plan = make_plan(graph)
    last = {v: i for i, n in enumerate(graph.nodes) for v in n.inputs}

    homes = {v for v in plan.offsets if v not in plan.views}
    written = {v: step for step, n in enumerate(graph.nodes) for v in n.outputs}
    live = [(root(plan, value), end) for value, end in last.items()]
    for value in homes:
        step = written[value]
        for base, end in live:
            if base in homes and written[base] < step < end:
                apart(plan, value, base)


def root(plan, value):
    while value in plan.views:
        value = plan.views[value]
    return value


def apart(plan, *values):
    """Fail unless two values lie in different places."""
    (a, b), (c, d) = (
        (plan.offsets[v], plan.offsets[v] + plan.graph.specs[v].nbytes) for v in values
    )
    assert b <= c or d <= a, f"%{values[0]} is written over %{values[1]}"


def test_a_leaf_of_another_shape_is_refused():
    weight = Tensor(np.ones(3))
    plan = plan_of(lambda x: x * weight, (3,), leaves=[weight])

    with pytest.raises(ShapeError, match=r"got float32\[4\] for leaf"):
        Executor(plan, [np.ones(4, F4)])


def test_small_inputs_are_copied_so_that_kernels_are_bound_to_the_copy():
    run = Executor(plan_of(lambda x: ops.exp(ops.relu(x) - x), (3,)), [], held_bytes=12)
    given, out = np.full(3, 2, F4), np.empty(3, F4)

    run.feed([given], [out])
    given[:] = -np.log(4)  # whoever gave it may use it again
    run.run()
    np.testing.assert_array_equal(out, 1)

    run.forget()
    run.feed([given], [out])
    run.run()
    np.testing.assert_allclose(out, 4, 1e-6)


def test_an_input_of_another_dtype_is_refused():
    run = Executor(plan_of(lambda x: x + x, (3,)), [])

    with pytest.raises(ShapeError, match=r"got float64\[3\] for input"):
        run([np.ones(3)], [np.empty(3, F4)])


def two_layers():
    weights = [Tensor(np.full((8, 8), 1 / 8, F4)) for _ in range(3)]
    for weight in weights:
        weight.attach_grad()

    def function(x):
        for weight in weights:
            x = ops.tanh(x @ weight)
        return ops.sum(x, axis=1)

    graph = capture_gradient(function, [Spec((4, 8), F4)], weights, weights)
    return make_plan(optimise(graph)), weights


def test_segments_cover_the_plan_and_finish_each_slice_once():
    plan, _ = two_layers()
    read = {leaf: (i,) for i, leaf in enumerate(plan.graph.leaves)}
    written = {out: (i,) for i, out in enumerate(plan.graph.outputs[1:])}

    segments = cut(plan, read, written)

    assert segments[0].start == 0
    assert segments[-1].stop == len(plan.graph.nodes)
    assert all(a.stop == b.start for a, b in pairwise(segments))
    assert [s for segment in segments for s in segment.final] == [2, 1, 0]
    firsts = [segment.reads for segment in segments if segment.reads][:3]
    assert [r[-1] for r in firsts] == [0, 1, 2]


def test_a_run_in_segments_equals_a_run_in_one():
    plan, weights = two_layers()
    arrays = [np.ones((4, 8), F4), np.ones((), F4)]
    results = []
    for pieces in (False, True):
        outs = [np.empty(plan.graph.specs[v].shape, F4) for v in plan.graph.outputs]
        run = Executor(plan, [w.array for w in weights], dict(enumerate(outs)))
        run.feed(arrays)
        if pieces:
            for step in range(len(plan.graph.nodes)):
                run.run(step, step + 1)
        else:
            run.run()
        results.append(outs)

    for a, b in zip(*results, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_gradient_that_later_steps_read_is_final_after_them():
    shift, weight = Tensor(np.zeros((4, 8), F4)), Tensor(np.full((8, 8), 0.5, F4))
    both = [weight, shift]
    for leaf in both:
        leaf.attach_grad()

    def function(x):
        # The gradient of shift is the cotangent that weight's gradient is made of.
        return ops.sum(ops.tanh((x @ weight) + shift), axis=1)

    plan = make_plan(optimise(capture_gradient(function, [Spec((4, 8), F4)], both, both)))
    written = {out: (i,) for i, out in enumerate(plan.graph.outputs[1:])}
    segments = cut(plan, {}, written)

    done = {s: segment.stop for segment in segments for s in segment.final}
    for place, node in enumerate(plan.graph.nodes):
        for value in (*node.inputs, *node.outputs):
            while value in plan.views:
                value = plan.views[value]
            for s in written.get(value, ()):
                assert place < done[s]


def test_equal_gradients_are_copied_before_either_is_final():
    a, b = Tensor(np.zeros(8, F4)), Tensor(np.zeros(8, F4))
    for leaf in (a, b):
        leaf.attach_grad()

    def function(x):
        return ops.sum(ops.tanh(x + a + b), axis=1)

    plan = make_plan(optimise(capture_gradient(function, [Spec((4, 8), F4)], [a, b], [a, b])))
    written = {out: (i,) for i, out in enumerate(plan.graph.outputs[1:])}
    (copy,) = [n for n in plan.graph.nodes if n.row.name == "identity"]
    source = next(i for v, (i,) in written.items() if v in copy.inputs)
    segments = cut(plan, {}, written)

    done = {s: segment.stop for segment in segments for s in segment.final}
    assert plan.graph.nodes.index(copy) < done[source]


def test_a_constant_of_other_strides_is_not_taken_to_be_contiguous():
    table = Tensor(np.arange(60_000, dtype=F4).reshape(200, 300).T)

    graph = optimise(
        capture(lambda x: x * ops.reshape(table, (60_000,)), [Spec((60_000,), F4)])
    )
    (out,) = run_plan(graph, [], [np.ones(60_000, F4)])

    np.testing.assert_array_equal(out, table.asnumpy().reshape(-1))


@pytest.mark.parametrize("name", WORKLOADS)
def test_training_takes_half_the_naive_memory_and_little_more_than_the_bound(name):
    """At full size; the share is that of the MXNet paper.

    Chen et al., "MXNet: a flexible and efficient machine learning library for heterogeneous
    distributed systems" (2015), section 4: 1/2 in training and 1/4 in inference.
    """
    plan = make_plan(optimise(of_model(name).graph(training=True), EXACT))

    assert plan.arena_bytes <= plan.naive_bytes / 2
    assert plan.arena_bytes <= 1.10 * plan.bound_bytes


@pytest.mark.parametrize("name", WORKLOADS)
def test_inference_takes_a_quarter_of_the_naive_memory_in_pieces(name):
    """At full size; deep networks in one piece, those of few layers in two to four."""
    subject = of_model(name)

    count = pieces_of(subject.inference, subject.batch)

    whole, piece = map(subject.inference, (subject.batch, -(-subject.batch // count)))
    said = f"{count} piece(s)"
    assert piece.arena_bytes <= whole.naive_bytes / 4, said
    assert piece.arena_bytes <= 1.10 * piece.bound_bytes, said
    assert (count == 1) == (whole.arena_bytes <= whole.naive_bytes / 4), said
    assert count <= 4, said


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", WORKLOADS)
def test_the_passes_keep_every_bit_of_a_workload(name, training):
    subject = of_model(name, small=True)
    rng = np.random.default_rng(3)
    graph = subject.graph(training)
    given = [made_up(rng, s) for specs in subject.specs for s in specs]
    given += [np.full((), 1 / subject.batch, F4)] * training
    results = []
    for names in ((), EXACT):
        leaves = [t.array.copy() for t in subject.leaves().values()]
        run = run_plan(own_outputs(optimise(graph, names)), leaves, given)
        results.append([*run, *leaves])

    for a, b in zip(*results, strict=True):
        assert a.tobytes() == b.tobytes()
