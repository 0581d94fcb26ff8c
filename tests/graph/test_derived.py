"""What is made of parameters alone: taken out, in the order of its readers, within a budget."""

import numpy as np
import pytest

from hpctrain import ops
from hpctrain.autograd import Spec, Tensor, assign
from hpctrain.backend import CPU
from hpctrain.errors import ConfigError
from hpctrain.graph.budget import Memory, captured_order
from hpctrain.graph.capture import capture, capture_gradient
from hpctrain.graph.derived import Shelves, by_first_use, derived
from hpctrain.graph.execute import Executor
from hpctrain.graph.passes import EXACT, optimise
from hpctrain.graph.plan import make_plan
from hpctrain.graph.repeated import Once, plan_repeated

pytestmark = pytest.mark.serial
X = Spec((4, 3), np.dtype(np.float64))


def tensors(*shapes):
    rng = np.random.default_rng(5)
    return [Tensor(rng.normal(size=shape)) for shape in shapes]


def parts_of(function, leaves, *inputs):
    return derived(captured_order(capture(function, list(inputs), leaves, CPU)))


def names(graph):
    return [node.row.name for node in graph.nodes]


def exact(graph):
    return optimise(graph, EXACT)


def test_what_reads_parameters_and_constants_alone_is_taken_out():
    w, b = tensors((3, 3), (3,))

    parts = parts_of(lambda x: ops.tanh(x @ (ops.exp(w) * 0.5)) + b, [w, b], X)

    assert names(parts.once) == ["exp", "multiply"]
    assert names(parts.rest) == ["matmul", "tanh", "add"]
    assert parts.nbytes == 9 * 8
    assert parts.sources() == {parts.once.outputs[0]: {parts.once.leaves[0]}}
    assert parts.rest.leaves == (*parts.once.leaves, *parts.once.outputs)


def test_views_are_left_to_who_reads_them():
    (w,) = tensors((3, 3))

    parts = parts_of(lambda x: x @ w.T + x @ ops.exp(w).T, [w], X)

    assert names(parts.once) == ["exp"]
    assert names(parts.rest).count("transpose") == 2


def test_what_is_larger_than_its_parameters_is_made_in_each_run():
    (b,) = tensors((3,))

    parts = parts_of(lambda x: x + ops.broadcast_to(ops.exp(b), (4, 3)) * 2.0, [b], X)

    assert names(parts.once) == ["exp"]
    assert "multiply" in names(parts.rest)


def test_outputs_state_and_what_is_made_of_state_stay():
    w, state = tensors((3, 3), (3,))

    def function(x):
        assign(state, ops.exp(state))
        return x @ w + ops.tanh(state), ops.exp(w)

    graph = captured_order(capture(function, [X], [w, state], CPU))

    assert derived(graph).rest is graph
    assert not derived(graph).keys


def test_equal_values_of_different_graphs_have_one_key_and_one_array():
    w, b = tensors((3, 3), (3, 3))

    def function(x):
        return x @ ops.exp(w) + x @ (w + b)

    one, two = (parts_of(function, [w, b], Spec((n, 3), X.dtype)) for n in (4, 7))
    other = parts_of(lambda x: x @ ops.exp(b), [w, b], X)
    shelves = Shelves(CPU)
    arrays = [
        shelves.arrays(p.keys, [p.once.specs[v] for v in p.once.outputs])
        for p in (one, two, other)
    ]

    assert one.keys == two.keys and len(set(one.keys)) == 2
    assert set(other.keys).isdisjoint(one.keys)
    assert all(a is b for a, b in zip(arrays[0], arrays[1], strict=True))
    assert shelves.nbytes == 3 * 9 * 8


def test_nodes_stand_in_the_order_of_their_first_readers():
    w, b = tensors((3, 3), (3, 3))
    parts = parts_of(lambda x: (x @ ops.exp(w)) @ ops.tanh(ops.square(b)), [w, b], X)
    early, late = parts.once.outputs

    graph, stops = by_first_use(parts.once, [[7], [late], [early, late]])

    assert names(graph) == ["square", "tanh", "exp"]
    assert stops == [0, 2, 3]


def ready(planned, leaves, shelves):
    once = Once(planned.once, planned.keys, leaves, shelves, CPU)
    return once, Executor(planned.each, [*leaves, *once.arrays])


def test_runs_after_the_first_give_the_bits_of_plans_that_make_all_themselves():
    w, b = tensors((3, 3), (3, 3))
    for t in (w, b):
        t.attach_grad()

    def function(x):
        return ops.sum(ops.tanh(x @ ops.tanh(w)) @ ops.exp(b + w), 1)

    graph = capture_gradient(function, [X], [w, b], [w, b], CPU)
    whole, planned = make_plan(exact(graph)), plan_repeated(graph, Memory(), exact)
    leaves = [w.array, b.array]
    once, each = ready(planned, leaves, Shelves(CPU))
    plain = Executor(whole, leaves)
    assert len(planned.each.graph.nodes) < len(whole.graph.nodes)
    assert planned.stops == sorted(planned.stops)
    assert planned.stops[-1] == len(planned.once.graph.nodes)

    for update in range(2):
        w.array[...] += update
        once.run()
        for seed in range(3):
            given = [np.random.default_rng(seed).normal(size=(4, 3)), np.array(1.0)]
            want, got = (
                [np.full(whole.graph.specs[v].shape, np.nan) for v in whole.graph.outputs]
                for _ in range(2)
            )
            plain(given, want)
            each(given, got)
            for a, b_ in zip(want, got, strict=True):
                np.testing.assert_array_equal(a, b_)


def test_what_is_kept_counts_for_the_budget_and_is_not_kept_where_there_is_no_room():
    v, w = tensors((64, 64), (64, 64))
    spec, kept = Spec((2, 64), X.dtype), 2 * 64 * 64 * 8
    graph = capture(lambda x: x @ ops.exp(v) @ ops.exp(w), [spec], [v, w], CPU)
    plain, free = make_plan(exact(graph)), plan_repeated(graph, Memory(), exact)
    assert plain.arena_bytes < free.arena_bytes
    assert free.kept_bytes == kept
    assert free.arena_bytes == free.each.arena_bytes + kept
    assert free.naive_bytes == free.each.naive_bytes + kept

    within = plan_repeated(graph, Memory(budget=free.arena_bytes), exact)
    without = plan_repeated(graph, Memory(budget=free.arena_bytes - 1), exact)
    with pytest.raises(ConfigError, match=r"memory\.budget"):
        plan_repeated(graph, Memory(budget=kept // 4), exact)

    assert within.keys == free.keys
    assert (without.keys, without.arena_bytes) == ((), plain.arena_bytes)
