"""Values made of parameters alone are made once in an update, whatever the ranks and parts."""

from functools import partial

import numpy as np
import pytest
from narrow_models import narrow_mlp
from replicas import Model, batches, parallel, parameters
from staged_runs import staged, work_of

from hpctrain import ops
from hpctrain.autograd import Tensor
from hpctrain.graph.native import available
from hpctrain.graph.repeated import Once, Repeated
from hpctrain.ops.dnnl_narrow import describe_narrow, lacking
from hpctrain.optim import SGD
from hpctrain.parallel import bound
from hpctrain.parallel.evaluate import Evaluator
from hpctrain.parallel.staged import Layout
from hpctrain.parallel.work import Options

UPDATES = 3
LACKING = pytest.mark.skipif(bool(lacking()), reason=f"bfloat16: {describe_narrow()}")
NARROW = pytest.param("narrow", True, marks=LACKING)


def squashed():
    """An MLP that squashes its weights: values derived from them, and their gradients."""
    model = Model(parameters({"w1": (9, 6), "b": (9,), "c": (9,), "w2": (5, 9)}), None)

    def net(x):
        t = model.tensor
        y = ops.tanh(ops.dense(x, ops.tanh(t("w1")), t("b") + t("c")))
        return ops.dense(y, ops.tanh(t("w2")))

    model.net = net
    return model


def made(kind, parts):
    """Return a model, and updates of ``parts`` batches each, the last of another shape."""
    if kind == "narrow":
        model, shape, last, change = narrow_mlp(), (48, 64), (36, 64), np.float32
    else:
        model, shape, last, change = squashed(), (12, 6), (9, 6), np.float64
    found = batches(([shape] * (parts - 1) + [last]) * UPDATES)
    found = [(x.astype(change), y) for x, y in found]
    return model, [found[i : i + parts] for i in range(0, len(found), parts)]


def train(world, kind, parts, fuse):
    model, data = made(kind, parts)
    options = Options(accumulate=parts, fuse=fuse and available())
    results, state = parallel(model, SGD(momentum=0.9), world, data, options=options,
                              slice_bytes=2048)  # fmt: skip
    return [r.loss_sum for r in results], {n: a.copy() for n, a in state.arrays().items()}


@pytest.mark.parametrize("parts", [1, 2, 3])
@pytest.mark.parametrize(("kind", "fuse"), [("wide", False), ("wide", True), NARROW])
def test_bits_are_those_of_making_them_in_each_part(world, monkeypatch, kind, fuse, parts):
    losses, arrays = train(world, kind, parts, fuse)

    def alone(step):
        return Repeated.alone(bound.training_plan(step))

    monkeypatch.setattr(bound, "repeated_plan", alone)
    want, expected = train(world, kind, parts, fuse)

    assert losses == want
    for name, array in expected.items():
        np.testing.assert_array_equal(arrays[name], array)


@pytest.mark.parametrize(
    ("kind", "values"), [("wide", 3), pytest.param("narrow", 1, marks=LACKING)]
)
def test_each_is_made_once_in_an_update_and_in_the_next_update_anew(
    world, monkeypatch, kind, values
):
    counts, plain = [], Once.run

    def counted(once, start=0, stop=None):
        counts.append((once.keys, stop - start))
        plain(once, start, stop)

    monkeypatch.setattr(Once, "run", counted)
    for parts in (1, 2, 3):
        train(world, kind, parts, fuse=False)

        kinds = {keys for keys, _ in counts}
        assert len(kinds) == (parts > 1)
        assert sum(n for _, n in counts) == (UPDATES * values if parts > 1 else 0)
        counts.clear()


@pytest.mark.parametrize(("kind", "values"), [("wide", 3), ("narrow", 1)])
@pytest.mark.mpi(min_size=2)
def test_a_stage_makes_each_once_for_all_micro_batches(world, monkeypatch, kind, values):
    if kind == "narrow" and lacking():
        pytest.skip("bfloat16")
    model, data = made(kind, 2)
    counts, plain = [], Once.run

    def counted(once, start=0, stop=None):
        counts.append(len(once.keys))
        plain(once, start, stop)

    monkeypatch.setattr(Once, "run", counted)
    layout = Layout(2 if world.size == 4 else world.size, "1f1b", 2)
    options = Options(accumulate=2, fuse=available())

    staged(model, SGD(momentum=0.9), data, world, layout, options)

    assert len(counts) in (0, UPDATES)  # of one stage, in 4 micro-batches of 3 shapes
    found = sum(world.allgather_obj(sum(counts)))
    if layout.ranks == 2:  # of three stages, one may send what it derives to the next
        assert found == UPDATES * values * (world.size // 2)
    assert found


@pytest.mark.serial
def test_an_evaluation_makes_each_once_for_all_pieces_of_a_batch(monkeypatch):
    model, runs, plain = squashed(), [], Once.run
    monkeypatch.setattr(Once, "run", lambda once: (runs.append(len(once.keys)), plain(once)))
    run = Evaluator(model.objective, bound.ModelState(model.parameters, SGD()))
    x, y = batches([(1031, 6)])[0]

    for change in (0, 1):
        model.tensor("w1").array[...] += change
        _, _, outputs = run(work_of((x, y)))
        want = model.net(Tensor(x)).asnumpy()
        np.testing.assert_allclose(outputs, want, rtol=1e-12, atol=1e-14)

    assert run.plans_made == 2  # pieces of two shapes
    assert runs == [3, 3]


@pytest.mark.serial
def test_a_step_of_one_part_keeps_nothing(world):
    for accumulate, wanted in ((1, 0), (2, 3)):
        model, data = made("wide", 1)
        options = Options(accumulate=accumulate)
        step = partial(bound.BoundStep, model.objective)
        state = bound.ModelState(model.parameters, SGD())
        specs = work_of(data[0][0]).specs()
        assert len(step(state, specs, bound.Pool(), options).derived) == wanted
