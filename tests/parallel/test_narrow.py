"""Training with products of bfloat16: parameters stay float32, ranks agree, runs repeat."""

import numpy as np
import pytest
from narrow_models import F4
from narrow_models import narrow_mlp as mlp
from replicas import batches, parallel, serial
from staged_runs import staged, twin, work_of
from teams import by_team

from hpctrain.autograd.narrow import is_narrow
from hpctrain.graph.native import available
from hpctrain.ops.dnnl_narrow import describe_narrow, lacking
from hpctrain.optim import SGD
from hpctrain.parallel.pieces import of_samples
from hpctrain.parallel.pipeline_stages import RankStages
from hpctrain.parallel.staged import Layout, StagedModel
from hpctrain.parallel.state import ModelState
from hpctrain.parallel.work import Options

pytestmark = pytest.mark.skipif(bool(lacking()), reason=f"bfloat16: {describe_narrow()}")
BATCH = (48, 64)  # a quarter of it still makes products that pay


def data():
    return [(x.astype(F4), y) for x, y in batches([BATCH] * 4)]


def train(world, model, fuse=True):
    options = Options(fuse=fuse and available())
    return parallel(model, SGD(momentum=0.9), world, data(), options=options)


def weights(state):
    return {n: a.copy() for n, a in state.arrays().items() if n.startswith("parameters/")}


def test_ranks_together_are_one_rank_in_float32_within_rounding(world):
    one, many = mlp(narrow=False), mlp()
    expected = serial(one, SGD(momentum=0.9), data())

    results, state = train(world, many)

    losses = [loss for loss, _, _ in expected]
    np.testing.assert_allclose([r.loss_sum for r in results], losses, rtol=5e-3)
    assert [r.loss_sum for r in results] != losses  # it was rounded
    assert len(set(world.allgather_obj(state.digest()))) == 1
    for name, array in weights(state).items():
        want = one.parameters[name.removeprefix("parameters/")].data().asnumpy()
        assert array.dtype == F4
        assert np.linalg.norm(array - want) < 5e-3 * np.linalg.norm(want)


@pytest.mark.parametrize("fuse", [True, False])
def test_the_same_run_gives_the_same_bits(world, fuse):
    (first, one), (second, two) = (train(world, mlp(), fuse) for _ in range(2))

    assert [r.loss_sum for r in first] == [r.loss_sum for r in second]
    for name, array in weights(one).items():
        np.testing.assert_array_equal(array, weights(two)[name])


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zero_bubble"])
@pytest.mark.mpi(min_size=2)
def test_stages_give_the_bits_of_one_rank(world, schedule):
    options = Options()
    layout = Layout(2 if world.size == 4 else world.size, schedule, 2)
    expected, arrays = twin(mlp(), SGD(momentum=0.9), data(), 2, options)

    results, state, step = staged(mlp(), SGD(momentum=0.9), data(), world, layout, options)

    alone = step.mesh.shape.data == 1
    for got, want in zip(results, expected, strict=True):
        assert got.loss_sum == pytest.approx(want.loss_sum, rel=1e-12 if alone else 1e-3)
    for name, array in state.items():
        if alone:
            np.testing.assert_array_equal(array, arrays[name])
        else:
            assert np.linalg.norm(array - arrays[name]) < 5e-3 * np.linalg.norm(arrays[name])


@pytest.mark.serial
def test_a_stage_keeps_rounded_activations_but_no_rounded_parameters():
    model = mlp()
    specs = tuple(of_samples(s, 24) for s in work_of(data()[0]).specs())
    whole = StagedModel(model.objective, model.parameters, Layout(1, "1f1b", 2), specs)
    stages = RankStages(whole, ModelState(model.parameters, SGD()), 0, available())
    stages.make_room(whole.layout.plan(2))

    slot = stages.bound(specs)[0].program.slot

    kept = {spec.shape for spec in slot.specs.values() if is_narrow(spec)}
    assert kept == {(24, 64)}
    assert not {(512, 64), (5, 512)} & {spec.shape for spec in slot.specs.values()}


@pytest.mark.mpi(min_size=2)
def test_teams_are_one_rank_within_rounding(world):
    (expected, arrays), optimizer = twin(mlp(), SGD(momentum=0.9), data(), 1), SGD(momentum=0.9)

    results, found = by_team(mlp(), optimizer, data(), world, world.size)

    for got, want in zip(results, expected, strict=True):
        assert got.loss_sum == pytest.approx(want.loss_sum, rel=5e-3)
    for name, array in found.items() if world.rank == 0 else ():
        assert array.dtype == F4
        assert np.linalg.norm(array - arrays[name]) < 5e-3 * np.linalg.norm(arrays[name])
