"""Evaluation in a pipeline: micro-batches go forward through the stages, in inference mode."""

from collections.abc import Hashable, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from hpctrain import backend
from hpctrain.graph.budget import captured_order
from hpctrain.graph.derived import Shelves, derived
from hpctrain.graph.execute import Executor
from hpctrain.graph.passes import EXACT, FUSED, optimise
from hpctrain.graph.plan import make_plan
from hpctrain.graph.pool import Pool
from hpctrain.graph.precision import narrow
from hpctrain.graph.recent import Recent
from hpctrain.graph.repeated import Once
from hpctrain.parallel.cut_graph import stage_graph
from hpctrain.parallel.micro import micro_batches
from hpctrain.parallel.packing import Packing, pack
from hpctrain.parallel.parcels import OUTBOXES
from hpctrain.parallel.pipeline import Pipeline
from hpctrain.parallel.pipeline_messages import message_of, messages
from hpctrain.parallel.pipeline_recipe import awaited, berths
from hpctrain.parallel.pipeline_schedule import Action, PipelineSchedule
from hpctrain.parallel.stage_program import packet_specs
from hpctrain.parallel.work import Work

__all__ = ["PipelineEvaluator"]


class _Stage(NamedTuple):
    """One stage in inference mode, for one shape."""

    run: Executor
    once: Once
    received: Packing
    sent: Packing
    fed: tuple[int, ...]
    results: tuple[int, ...]


class PipelineEvaluator:
    """Runs a model in stages on batches without changing it.

    A batch of a replica goes through in micro-batches of the size that training has.

    Parameters
    ----------
    step : Pipeline
        Prepared; nothing of it may be under way.
    """

    def __init__(self, step: Pipeline) -> None:
        self._step, self._model = step, step.model
        self._bound: Recent[dict[int, _Stage]] = Recent()
        self._pool = Pool()
        self._shelves = {n: Shelves(step.state.device) for n in step.stages.numbers}
        self._derived = frozenset[Hashable]()  # by the stages for the batch under way

    def __call__(self, work: Work) -> tuple[float, float, np.ndarray]:
        """Evaluate the part of a batch that this replica has; collective over its stages.

        Parameters
        ----------
        work : Work
            Of at least one sample, the same on all ranks of the pipeline.

        Returns
        -------
        loss_sum, correct : float
            The same on all of them.
        outputs : ndarray
            Of the model, on the rank that makes them; empty on the others.
        """
        step, axis = self._step, self._step.batch_axis
        micros = micro_batches(work, -(-work.count // step.most), axis)
        plan = _forward_only(self._model.layout.plan(len(micros)))
        sums, outputs = np.zeros(2), []
        self._expect(plan, micros)
        self._derived = frozenset()
        posts: dict[int, int] = {}
        home = {a.stage: rank for rank, actions in enumerate(plan) for a in actions}
        boxes = berths(plan, step.rank, self._boxes(plan))
        for action in plan[step.rank]:
            message, found = awaited(action, home), message_of(action, home)
            inbox = None if message is None else (message.source, boxes[message])
            outbox = None
            if found is not None:
                posts[found.dest] = posts.get(found.dest, -1) + 1
                outbox = found.dest, posts[found.dest] % OUTBOXES
            made = self._run(action, micros[action.micro], inbox, outbox)
            sums += [float(made[0].sum(dtype=np.float64)) if 0 in made else 0.0, 0.0]
            sums[1] += float(made[1]) if 1 in made else 0.0
            outputs += [made[2]] if 2 in made else []
        step.parcels.settle_all()
        step.mesh.pipeline.allreduce(sums)
        whole = np.concatenate(outputs, axis) if outputs else np.empty(0)
        return float(sums[0]), float(sums[1]), whole

    def _boxes(self, plan: PipelineSchedule) -> int:
        """Return boxes for all messages: nothing is kept of them, and none waits."""
        return max(map(len, messages(plan).values()), default=1)

    def _expect(self, plan: PipelineSchedule, micros: list[Work]) -> None:
        sizes = {
            source: [self._stages(micros[m.micro])[m.stage].received.nbytes for m in sent]
            for (source, dest), sent in messages(plan).items()
            if dest == self._step.rank
        }
        self._step.parcels.expect(sizes, self._boxes(plan))

    def _run(self, action: Action, work: Work, inbox: Any, outbox: Any) -> Mapping[int, Any]:
        """Compute one stage for one micro-batch; return what it makes of the results."""
        stage, parcels = self._stages(work)[action.stage], self._step.parcels
        device, graph = self._step.state.device, stage.run.graph
        batch = [*work.inputs, *work.targets]
        entering = [] if inbox is None else stage.received.views(parcels.open(*inbox)).values()
        inputs = [*entering, *(backend.to_device(batch[p], device) for p in stage.fed)]
        sent = []
        if outbox is not None:
            box = parcels.outbox(outbox[0], outbox[1], stage.sent.nbytes)
            sent = list(stage.sent.views(box).values())
        results = [
            backend.empty(graph.specs[v].shape, graph.specs[v].dtype, device)
            for v in graph.outputs[len(stage.sent.specs) :]
        ]
        made = {(action.stage, key) for key in stage.once.keys}
        if not made <= self._derived:
            stage.once.run()
            self._derived |= made
        stage.run(inputs, [*sent, *results])
        if outbox is not None:
            parcels.send(outbox[0], outbox[1], stage.sent.nbytes)
        if inbox is not None:
            parcels.empty(*inbox)
        stage.run.forget()
        return dict(zip(stage.results, map(backend.to_host, results), strict=True))

    def _stages(self, work: Work) -> dict[int, _Stage]:
        specs = work.specs()
        return self._bound.get(specs, partial(self._bind, specs))

    def _bind(self, specs: Any) -> dict[int, _Stage]:
        graph, cut = self._model.evaluation(specs)
        tensors, state = self._model.tensors_of(graph), self._step.state
        names = FUSED if self._step.options.fuse else EXACT
        found = {}
        for number in self._step.stages.numbers:
            part = stage_graph(graph, cut, number)
            if self._model.objective.narrow:
                part = narrow(part)
            received = pack(dict(enumerate(packet_specs(graph, cut, number - 1)[0])))
            sent = pack(dict(enumerate(packet_specs(graph, cut, number)[0])))
            apart, device = derived(captured_order(part)), state.device
            leaves = [tensors[v].value for v in part.leaves]
            made = make_plan(optimise(apart.once, names))
            once = Once(made, apart.keys, leaves, self._shelves[number], device)
            plan = make_plan(optimise(apart.rest, names))
            run = Executor(plan, [*leaves, *once.arrays], device=device, pool=self._pool)
            fed = tuple(graph.inputs.index(v) for v in part.inputs[len(received.specs) :])
            results = tuple(graph.outputs.index(v) for v in part.outputs[len(sent.specs) :])
            found[number] = _Stage(run, once, received, sent, fed, results)
        return found


def _forward_only(plan: PipelineSchedule) -> PipelineSchedule:
    return tuple(tuple(a for a in actions if a.kind == "F") for actions in plan)
