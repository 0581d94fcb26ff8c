"""An evaluation in stages gives the numbers and outputs of one on a single rank."""

import numpy as np
import pytest
from replicas import SCHEDULE, batches, mlp
from staged_runs import LANES, share_of, tied_model, work_of

from hpctrain.comm.mesh import Mesh
from hpctrain.engine import create
from hpctrain.optim import SGD
from hpctrain.parallel.evaluate import Evaluator
from hpctrain.parallel.micro import most_samples
from hpctrain.parallel.pieces import of_samples
from hpctrain.parallel.pipeline import Pipeline
from hpctrain.parallel.pipeline_evaluate import PipelineEvaluator
from hpctrain.parallel.stage_state import StageState
from hpctrain.parallel.staged import Layout, StagedModel
from hpctrain.parallel.state import ModelState


def evaluated(model, data, group, layout):
    """Evaluate in stages; return (loss, correct, outputs) of each batch on this rank."""
    with Mesh(group, pipeline=layout.ranks) as mesh, create("serial", LANES) as engine:
        first = share_of(data[0], mesh)
        most = most_samples(first.count, layout.micro_batches)
        specs = tuple(of_samples(s, most) for s in first.specs())
        whole = StagedModel(model.objective, model.parameters, layout, specs, mesh.pipeline)
        state = StageState(whole, model.parameters, SGD(), mesh)
        step = Pipeline(whole, state, SGD(), SCHEDULE, engine, mesh)
        step.prepare(*first.specs())
        evaluator = PipelineEvaluator(step)
        found = [evaluator(share_of(batch, mesh)) for batch in data]
        step.free()
        return found


@pytest.mark.parametrize(
    ("kind", "chunks", "micro"),
    [("1f1b", 1, 1), ("gpipe", 1, 3), ("zero_bubble", 1, 2), ("interleaved", 2, 2)],
)
def test_sums_and_outputs_are_those_of_one_rank(world, kind, chunks, micro):
    if world.size == 1 and chunks > 1:
        pytest.skip("one rank has no use for chunks")
    data = batches([(6, 6), (5, 6), (9, 6), (1, 6)])
    found = evaluated(mlp(0.5), data, world, Layout(world.size, kind, micro, chunks))

    model = mlp(0.5)
    alone = Evaluator(model.objective, ModelState(model.parameters, SGD()))
    for (loss, correct, outputs), batch in zip(found, data, strict=True):
        wanted = alone(work_of(batch))
        assert loss == pytest.approx(wanted[0], rel=1e-12)
        assert correct == wanted[1]
        sizes = world.allgather_obj(len(outputs))
        assert sorted(sizes)[-1] == len(batch[0]) and sum(sizes) == len(batch[0])
        if len(outputs):
            np.testing.assert_allclose(outputs, wanted[2], rtol=1e-12)


@pytest.mark.mpi(min_size=3)
def test_tied_parameters_are_read_where_they_are(world):
    with world.split(int(world.rank >= 3)) as three:
        if world.rank >= 3:
            return
        data = batches([(6, 6), (4, 6)])
        found = evaluated(tied_model(), data, three, Layout(3, "1f1b", 2))
        model = tied_model()
        alone = Evaluator(model.objective, ModelState(model.parameters, SGD()))

        for (loss, correct, _), batch in zip(found, data, strict=True):
            wanted = alone(work_of(batch))
            assert loss == pytest.approx(wanted[0], rel=1e-12)
            assert correct == wanted[1]
