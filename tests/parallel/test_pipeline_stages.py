"""What pipelines are for: parameters and kept values of a rank fall with the stages."""

import numpy as np
import pytest

from hpctrain.autograd import Spec
from hpctrain.models import workload
from hpctrain.optim import SGD
from hpctrain.parallel.hollow import fill, hollow, start_hollow
from hpctrain.parallel.pieces import of_samples
from hpctrain.parallel.pipeline_stages import RankStages
from hpctrain.parallel.program import Objective
from hpctrain.parallel.staged import Layout, StagedModel
from hpctrain.parallel.state import ModelState

pytestmark = pytest.mark.serial
GPT = {"vocab": 40, "width": 32, "heads": 2, "depth": 8, "steps": 16}
DEEP = {"inputs": 64, "hidden": (64,) * 16, "classes": 10}
BATCH = 16


def staged(name, sizes, layout):
    made = workload(name, BATCH, **sizes)
    made.net.initialize()
    specs = [[Spec.of(a)] for a in made.make(np.random.default_rng(0))]
    shape = tuple(of_samples(s, BATCH // layout.micro_batches) for s in specs)
    parameters = made.net.collect_params()
    model = StagedModel(Objective(made.net, made.loss), parameters, layout, shape)
    return model, parameters, tuple(map(tuple, shape))


def planned(name, sizes, layout):
    """Bytes by rank: three arrays as large as the parameters, kept values, working memory."""
    model, parameters, shape = staged(name, sizes, layout)
    totals = []
    for rank in range(layout.ranks):
        own = {n: p for n, p in parameters.items() if rank in model.homes(n)}
        state = ModelState(own, SGD(momentum=0.9))
        stages = RankStages(model, state, rank, fuse=False)
        stages.make_room(layout.plan(layout.micro_batches))
        stages.bound(shape)
        totals.append(3 * state.flat.weights.nbytes + stages.kept_bytes + stages.arena_bytes)
    return totals


@pytest.mark.slow
@pytest.mark.parametrize(("name", "sizes"), [("gpt", GPT), ("mlp", DEEP)])
def test_the_largest_rank_needs_less_with_more_stages(name, sizes):
    """Of one batch: as a whole on one rank, in 4 micro-batches on several."""
    layouts = [Layout(1), Layout(2, "1f1b", 4, 1, "memory"), Layout(4, "1f1b", 4, 1, "memory")]

    peaks = [max(planned(name, sizes, layout)) for layout in layouts]

    assert peaks[1] < 0.6 * peaks[0]
    assert peaks[2] < 0.75 * peaks[1]


def test_gpipe_keeps_all_micro_batches_and_1f1b_as_many_as_stages():
    kept = {}
    for kind in ("gpipe", "1f1b"):
        layout = Layout(2, kind, 8)
        model, parameters, shape = staged("mlp", DEEP, layout)
        state = ModelState(parameters, SGD())
        stages = RankStages(model, state, 0, fuse=False)
        stages.make_room(layout.plan(8))
        stages.bound(shape)
        kept[kind] = stages.kept_bytes

    assert kept["gpipe"] == pytest.approx(4 * kept["1f1b"], rel=0.01)


def test_every_parameter_has_a_home_and_chunks_take_turns():
    model, parameters, _ = staged("mlp", DEEP, Layout(2, "interleaved", 2, 2))

    assert model.stages_of(0) == (0, 2) and model.stages_of(1) == (1, 3)
    assert set(model.readers) == set(parameters)
    homes = [model.homes(name) for name in parameters if name.endswith("weight")]
    assert homes == sorted(homes, key=lambda h: h != (0,)) or len(set(homes)) == 2
    assert "stage" in model.describe() and "features" not in model.describe()


def test_emptied_parameters_take_no_memory_and_are_filled_as_in_any_run():
    made, other = (workload("mlp", 2, **DEEP).net for _ in range(2))
    parameters, device = made.collect_params(), other.collect_params()
    other.initialize(seed=5)
    other.cast("float64")
    device = next(iter(device.values())).data().device

    drawn = start_hollow(parameters, device, 5, "float64")

    assert set(drawn) == set(parameters)
    for name, parameter in parameters.items():
        assert parameter.data().array.base.nbytes <= 8
        assert parameter.data().dtype == np.float64
        fill(parameter, device, 5, name, drawn[name])
        expected = other.collect_params()[name].data().asnumpy()
        np.testing.assert_array_equal(parameter.data().asnumpy(), expected)
        assert parameter.data().array.flags.writeable
        hollow(parameter)
        assert not parameter.data().array.flags.writeable
