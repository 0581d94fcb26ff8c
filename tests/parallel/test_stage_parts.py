"""F, B and W of the stages, one after the other, are the gradient of the whole."""

import numpy as np
import pytest
from programs import random_program
from replicas import convnet, mlp

from hpctrain import ops
from hpctrain.autograd import Spec, Tensor
from hpctrain.cli.subject import of_model
from hpctrain.graph.capture import capture, capture_gradient
from hpctrain.graph.execute import Executor
from hpctrain.graph.marks import marked
from hpctrain.graph.passes import EXACT, optimise
from hpctrain.graph.plan import make_plan
from hpctrain.models import small_workload
from hpctrain.parallel.cut_graph import cut_graph, stage_graph
from hpctrain.parallel.stage_parts import stage_parts

pytestmark = pytest.mark.serial
F8 = np.dtype(np.float64)


def run(graph, leaves, inputs):
    outputs = [np.empty(graph.specs[v].shape, graph.specs[v].dtype) for v in graph.outputs]
    Executor(make_plan(graph), leaves, dict(enumerate(outputs)))(inputs)
    return outputs


class Twin:
    """A stage on no rank: its parts, and what it keeps of one micro-batch."""

    def __init__(self, graph, cut, number, leaf_of, wanted):
        self.part = stage_graph(graph, cut, number)
        self.enters = cut.stages[number - 1].sends if number else ()
        self.sends = cut.stages[number].sends
        self.leaves = [leaf_of[v] for v in self.part.leaves]
        self.wanted = [t for t in self.leaves if any(t is w for w in wanted)]
        loss = graph.outputs[0] if graph.outputs[0] in self.part.outputs else None
        ends = len(self.enters), len(self.sends)
        self.parts = stage_parts(self.part, self.leaves, self.wanted, ends, loss)
        self.loss, self.kept = loss, {}

    def floats(self, values):
        return [v for v in values if self.part.specs[v].dtype.kind == "f"]

    def _run(self, graph, keeps):
        own = [t.array for t in self.leaves]
        arrays = [*own, *run(self.parts.once, own, ())]
        found = run(graph, arrays, [self.kept[v] for v in graph.inputs])
        self.kept.update(zip(keeps, found[len(found) - len(keeps) :], strict=True))
        return found[: len(found) - len(keeps)]

    def forward(self, values):
        """Return the outputs of the stage by number."""
        given = [values[v] for v in self.part.inputs]
        self.kept = dict(zip(self.parts.forward.inputs, given, strict=True))
        found = self._run(self.parts.forward, self.parts.forward_keeps)
        return dict(zip(self.part.outputs, found, strict=True))

    def backward(self, cotangents, weight):
        """Return the cotangents of what enters, by number."""
        given = [cotangents[v] for v in self.floats(self.sends)]
        given += [weight] if self.loss is not None else []
        self.kept.update(zip(self.parts.given, given, strict=True))
        found = self._run(self.parts.backward, self.parts.backward_keeps)
        return dict(zip(self.floats(self.enters), found, strict=True))

    def weight(self):
        """Return the gradients."""
        return self._run(self.parts.weight, ())


def gradients_in_stages(graph, stages, leaves, wanted, inputs, weight):
    """Return the loss, and the gradients by the identity of the leaf, summed over stages."""
    ordered, cut = cut_graph(graph, stages, "params")
    leaf_of = dict(zip(graph.leaves, leaves, strict=True))
    twins = [Twin(ordered, cut, n, leaf_of, wanted) for n in range(len(cut.stages))]
    fed, outputs, sent = dict(zip(graph.inputs, inputs, strict=True)), {}, {}
    for twin in twins:
        sent = twin.forward({**fed, **sent})
        outputs.update(sent)
    cotangents, found = {}, {}
    for twin in reversed(twins):
        cotangents = twin.backward(cotangents, weight)
    for twin in twins:
        for tensor, gradient in zip(twin.wanted, twin.weight(), strict=True):
            found[id(tensor)] = found.get(id(tensor), 0) + gradient
    return outputs[graph.outputs[0]], found, twins


def compare(function, leaves, wanted, inputs, stages, exact=True):
    specs = [Spec.of(x) for x in inputs]
    for tensor in wanted:
        tensor.attach_grad()
    whole = optimise(capture_gradient(function, specs, leaves, wanted), EXACT)
    arrays = [t.array.copy() for t in leaves]
    weight = np.array(0.25, whole.specs[whole.inputs[-1]].dtype)
    loss, *rest = run(whole, arrays, [*inputs, weight])
    graph = capture(function, specs, leaves, training=True)
    rest = rest[len(graph.outputs) - 1 :]

    found, gradients, twins = gradients_in_stages(graph, stages, leaves, wanted, inputs, weight)

    np.testing.assert_array_equal(found, loss)
    for tensor, wanted_gradient in zip(wanted, rest, strict=True):
        given = gradients.get(id(tensor), np.zeros(tensor.shape))
        if exact:
            np.testing.assert_array_equal(given, wanted_gradient)
        else:
            np.testing.assert_allclose(given, wanted_gradient, rtol=1e-12, atol=1e-12)
    for tensor, array in zip(leaves, arrays, strict=True):
        np.testing.assert_array_equal(tensor.array, array)
    return twins


@pytest.mark.parametrize("seed", range(20))
def test_parts_of_a_random_program_give_its_gradients(seed):
    """Within rounding: what a parameter gets from several stages is summed over these."""
    program, leaves, inputs = random_program(seed)

    def function(*given):
        first, *rest = program(*given)
        return first * ops.mean(leaves[0]), *rest  # some depend on no leaf

    compare(function, leaves, leaves, [t.array for t in inputs], 2 + seed % 3, exact=False)


@pytest.mark.parametrize("stages", [1, 2, 3, 4])
@pytest.mark.parametrize(
    ("model", "shape"), [(mlp(), (6, 6)), (mlp(0.5), (6, 6)), (convnet(), (6, 7, 5, 2))]
)
def test_parts_of_a_model_give_the_bits_of_the_whole(model, shape, stages):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=shape), np.arange(shape[0]) % 3
    leaves = [p.data() for p in model.parameters.values()]
    wanted = [p.data() for p in model.parameters.values() if p.grad_req != "null"]

    compare(lambda a, b: model.objective([a], [b])[:2], leaves, wanted, [x, y], stages)


@pytest.mark.parametrize(
    "name", ["gpt", "lstm", pytest.param("resnet20", marks=pytest.mark.slow)]
)
def test_parts_of_a_workload_give_the_bits_of_the_whole(name):
    """With batch norms and attention, on three stages."""
    found, count = of_model(name, small=True), 1
    x, y = small_workload(name).make(np.random.default_rng(0))
    leaves, wanted = list(found.leaves().values()), list(found.wanted().values())

    twins = compare(
        lambda *t: found.objective(t[:count], t[count:])[:2], leaves, wanted, [x, y], 3
    )

    assert all(twin.parts.weight.nodes for twin in twins if twin.wanted)


def test_b_of_dense_layers_has_no_weight_gradients_and_w_only_these():
    model = mlp()
    leaves = [p.data() for p in model.parameters.values()]
    x, y = np.ones((6, 6)), np.zeros(6, np.int64)

    twins = compare(lambda a, b: model.objective([a], [b])[:1], leaves, leaves, [x, y], 3)

    for twin in twins[1:]:
        made = {twin.parts.backward.specs[v].shape for v in twin.parts.backward.outputs}
        assert not made & {t.shape for t in twin.wanted if t.ndim == 2}
    first = twins[0].parts
    assert not first.backward.outputs  # nobody waits for a cotangent: all of it is W


def test_what_is_only_handed_on_has_its_cotangents_summed():
    """A skip from the first stage to the last, and a tied parameter on both."""
    table = Tensor(np.random.default_rng(1).normal(size=(5, 4)))

    def tied(ids):
        with marked(ctx_group="in"):
            first = ops.take(table, ids)
        with marked(ctx_group="middle"):
            h = ops.tanh(first)
        with marked(ctx_group="out"):
            return ops.sum(ops.square(ops.dense(h + first, table)), 1)

    compare(tied, [table], [table], [np.array([0, 3, 3])], 0, exact=False)
