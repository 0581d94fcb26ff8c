"""Pipeline parallelism: each rank has stages of a model, micro-batches go through them.

A step is pushed to the engine as data (`hpctrain.parallel.pipeline_recipe`): the rank's actions
in the order of the schedule, then the exchange of its gradients among the replicas of its
stages and their update, as in `hpctrain.parallel.data_parallel`.

    rank 0   F0 F1 .  .  BW0 F2 BW1 .  BW2 | exchange, update | F0 F1 ...
    rank 1   .  F0 BW0 F1 BW1 F2 BW2 .     | exchange, update | .  F0 ...

The gradients of the micro-batches are summed in their order, in every schedule: the bits are
those of one rank that accumulates over the same micro-batches. Only sums over ranks (of the
norm of the gradient, of the gradient of a parameter that several stages read) are made in
another order than on one rank. A batch normalisation takes its statistics over one
micro-batch, and its running ones move with each of them, in their order. With statistics over
all replicas (`hpctrain.parallel.together`) it takes them over the micro-batches of one number
together, first with first and so on; a replica that has fewer makes up one of no weight.

With `Options.shard` the micro-batches are virtual shards (`hpctrain.parallel.shards`), however
many a replica has of them: so the bits do not depend on the number of replicas.
"""

from collections.abc import Sequence
from dataclasses import replace

from hpctrain.autograd import Spec
from hpctrain.comm.clock import offsets
from hpctrain.comm.mesh import Mesh
from hpctrain.comm.watched import Logs
from hpctrain.engine import Engine
from hpctrain.graph.cached import Statistics
from hpctrain.optim import Optimizer, Schedule
from hpctrain.parallel.bubble import Bubble, bubble_of
from hpctrain.parallel.data_parallel import DataParallel
from hpctrain.parallel.exchange import exchange_by
from hpctrain.parallel.micro import micros_of_step, most_samples
from hpctrain.parallel.parcels import Parcels
from hpctrain.parallel.pieces import of_samples
from hpctrain.parallel.pipeline_actions import PipelineActions
from hpctrain.parallel.pipeline_moves import Move, Ties, moves_of
from hpctrain.parallel.pipeline_recipe import Deed, deeds, end_items
from hpctrain.parallel.pipeline_schedule import Action, PipelineSchedule
from hpctrain.parallel.pipeline_stages import RankStages
from hpctrain.parallel.pipeline_times import Span, Timeline
from hpctrain.parallel.recipe import Rules, nothing_items, posted_early, rules
from hpctrain.parallel.stage_times import agreed_times, message_seconds, stage_seconds
from hpctrain.parallel.staged import StagedModel
from hpctrain.parallel.state import ModelState
from hpctrain.parallel.ways import Way, plain
from hpctrain.parallel.work import Options, Work

__all__ = ["Pipeline", "summing"]


def summing(options: Options) -> Options:
    """Return ``options`` for the way of a pipeline, which sums gradients where the first is."""
    return replace(options, accumulate=1)


class Pipeline(DataParallel):
    """Pushes the steps of one rank of a pipeline to an engine.

    Parameters
    ----------
    model : StagedModel
    state : ModelState
        Of the parameters of this rank's stages.
    optimizer : Optimizer
    schedule : Schedule
    engine : Engine
        With a lane ``wire`` for the messages of the pipeline; see `lanes`.
    mesh : Mesh
        Replicas and stages. Making a pipeline is collective over both of its groups.
    options : Options
    way : Way, optional
        Of the gradients among the replicas of this rank's stages, for options as `summing`
        gives them.
    batch_axis : int
        The axis of inputs and targets that counts samples.
    """

    def __init__(  # noqa: PLR0913 (the parts that meet here)
        self,
        model: StagedModel,
        state: ModelState,
        optimizer: Optimizer,
        schedule: Schedule,
        engine: Engine,
        mesh: Mesh,
        options: Options | None = None,
        way: Way | None = None,
        batch_axis: int = 0,
    ) -> None:
        options = options or Options()
        self.model, self.mesh, self.batch_axis = model, mesh, batch_axis
        self.rank = mesh.place.pipeline
        self.most, self.micro_batches = 1, 1  # samples of a micro-batch, and how many
        self.clock_s = 0.0  # how far this rank's clock is ahead of the first stage's
        self.message = 0.0, 0.0  # seconds and latency of one between stages
        self._plans: dict[int, PipelineSchedule] = {}  # by the number of micro-batches
        tied = [n for n in model.tied if n in state.names]
        self._tied = [state.names.index(name) for name in tied]
        if tied:
            state.flat.keep_whole(self._tied)
        way = way or plain(mesh.data, state, summing(options))
        super().__init__(
            model.objective, state, optimizer, schedule, engine, mesh.data, options, way
        )
        self._planned = False

    def _build(self, found: object) -> None:
        """Make what depends on the slices."""
        state, options, mesh = self.state, self.options, self.mesh
        self._exchange = exchange_by(replace(self.way, rows=None), state, options, {})
        if options.sharded and mesh.data.size > 1:
            state.shard(self._exchange.own)
        norms = None
        self._groups = [mesh.pipeline.dup(), mesh.replica.dup()]
        if options.clip_norm or options.skip:
            norms = (mesh.whole if state.sharded else mesh.replica).dup()
            self._groups.append(norms)
        self.moves = PipelineActions(
            state, self.optimizer, self.schedule, options, self._exchange, self.way.sums, norms
        )
        self.ties = self._tie()
        self.parcels = Parcels(self._groups[0], state.device, options.pause_s)
        self.moves.meet(self._groups[1], leads=mesh.place.tensor == 0)
        self.moves.join(self.parcels, self.ties)
        self.moves.together = self.model.objective.together
        self._actions = self.moves
        self.stages = RankStages(self.model, state, self.rank, options.fuse, options.memory)

    def watch(self, logs: Logs) -> None:
        """Note messages between stages; collective over the pipeline."""
        self.parcels.watch(logs.pairs(self.mesh.pipeline))

    def free(self) -> None:
        """Free the groups of the pipeline; collective, with nothing under way."""
        for group in self._groups:
            group.free()

    def _tie(self) -> Ties:
        """Make the groups of ranks that have a parameter in common; the same calls on all."""
        groups, elsewhere = {}, set()
        slices = self.state.flat.slices
        own = {p: piece.index for piece in slices for p in piece.parameters}
        for homes in sorted({self.model.homes(n) for n in self.model.tied}):
            group = self.mesh.pipeline.split(int(self.rank in homes), self.rank)
            self._groups.append(group)
            for place in self._tied:
                if self.model.homes(self.state.names[place]) == homes:
                    groups[own[place]] = group
                    if self.rank != homes[0]:
                        elsewhere.add(own[place])
        count = len(self.model.names)
        first = self.mesh.place.tensor * count
        numbers = tuple(
            first + self.model.names.index(name) if counted else -1
            for name, counted in zip(self.state.names, self.state.counted, strict=True)
        )
        return Ties(groups, frozenset(elsewhere), numbers, self.mesh.shape.tensor * count)

    def prepare(self, inputs: Sequence[Spec], targets: Sequence[Spec]) -> None:
        """Plan the stages for a shape of batch, that of one replica; collective at first."""
        layout, samples = self.model.layout, inputs[0].shape[self.batch_axis]
        shard, batches = self.options.shard, max(1, self.options.accumulate)
        count = layout.micro_batches * batches
        self.most = most_samples(samples, layout.micro_batches)
        if shard:
            count, self.most = -(-samples // shard) * batches, min(shard, samples)
        self.micro_batches = count // batches
        specs = tuple(of_samples(s, self.most, self.batch_axis) for s in (inputs, targets))
        # What is computed again must not depend on how many replicas have the shards.
        fewest = layout.plan(layout.micro_batches * batches) if shard else None
        self.stages.make_room(layout.plan(count), fewest)
        if not self.order:
            self._time(specs)
        plan = self.plan(count)
        if not self.order:
            final = self.stages.final_order(specs, plan)
            empty = {s.index for s in self.state.flat.slices} - set(final)
            order = [*sorted(empty), *final]
            # What waits for other stages comes late, and the riders last.
            order.sort(key=lambda index: (index == 0, index in self.ties.groups))
            self.reorder(self.group.bcast_obj(order, 0))
            clocks = self.mesh.pipeline.bcast_obj(offsets(self.mesh.pipeline), 0)
            self.clock_s = clocks[self.rank] * 1e-9

    def _time(self, specs: tuple[Sequence[Spec], ...]) -> None:
        """Fit the schedule to the times of the stages, if it can be; collective."""
        line, model = self.mesh.pipeline, self.model
        if line.size == 1:
            return
        bound = self.stages.bound(specs)
        sent = max(stage.program.sent.nbytes for stage in bound.values())
        sizes = line.allgather_obj(sent)
        self.message = message_seconds(line, max(sizes))
        if model.layout.schedule == "zero_bubble" and model.layout.times is None:
            mine = stage_seconds(bound, [*specs[0], *specs[1]], self.state)
            times = agreed_times(self.mesh, mine, self.message)
            model.layout = replace(model.layout, times=times)

    def plan(self, micro_batches: int) -> PipelineSchedule:
        """Return the schedule of a step of that many micro-batches."""
        if micro_batches not in self._plans:
            self._plans[micro_batches] = self.model.layout.plan(micro_batches)
        return self._plans[micro_batches]

    def reorder(self, order: Sequence[int]) -> None:
        """Exchange slices in another order from the next step on; equal among replicas."""
        super().reorder(order)
        self.stages.forget_recipes()
        self._after = end_items(self.rules, sorted(self.ties.groups))

    @property
    def rules(self) -> Rules:
        """How steps are made."""
        shards = bool(self.options.shard)
        found = rules(self.options, self.order, self.group.size > 1, True, shards)
        return replace(found, shared_norm=found.measured)

    def timeline(self) -> Timeline:
        """Return when each rank did what in the last whole step; collective over the stages.

        Nothing may be under way.
        """
        rows = [[*s.action, s.start_s, s.end_s] for s in self.moves.timed]
        shift = self.clock_s
        every = self.mesh.pipeline.allgather_obj([shift, rows])
        return Timeline(
            tuple(
                tuple(Span(Action(k, s, m), a - at, b - at) for k, s, m, a, b in found)
                for at, found in every
            )
        )

    def bubble(self, last: int) -> Bubble:
        """Return the share of time in which nothing was done, of all ranks of the pipeline.

        Of the steps up to ``last``, whose results are there, that this was not asked of
        before. Collective over the stages.
        """
        steps = self.moves.steps
        found = [steps.pop(number) for number in sorted(steps) if number <= last]
        return bubble_of(
            found, self.mesh.pipeline, self.model.layout, self.clock_s, self.message
        )

    def statistics(self) -> Statistics:
        """Return how many steps were run, shapes planned, and what that keeps."""
        return self.stages.statistics(self._steps)

    def step(self, *parts: Work) -> int:
        """Push one step and return its number, for `result`; after `prepare`.

        Parameters
        ----------
        *parts : Work
            The share of this replica, equal on all ranks of the pipeline, of one batch, or of
            up to ``Options.accumulate`` batches that make one step.
        """
        number = self._begin(parts)
        meeting = self.group.size if self.moves.together is not None else 0
        size = self.model.layout.micro_batches, self.batch_axis
        micros = micros_of_step(parts, *size, self.options.shard, meeting)
        end = Move(number, parts[-1], stop=self.stop)
        if micros:
            pushed = self._moved(micros, end)
        else:
            pushed = [(Deed(item), end) for item in nothing_items(self.rules)]
        pushed += [(Deed(item), end) for item in self._after]
        if not self.options.overlap:
            order = posted_early([deed.item for deed, _ in pushed])
            pushed = [pushed[place] for place in order]
        for deed, move in pushed:
            self._push(deed.item, move, self.moves, deed.label)
        return number

    def _moved(self, micros: Sequence[Work], end: Move) -> list[tuple[Deed, Move]]:
        """Return the deeds of a step with what they are about."""
        shapes, stages = tuple(work.specs() for work in micros), self.stages
        plan = self.plan(len(micros))
        made = stages.recipe(
            shapes, plan, lambda facts, boxes: deeds(plan, self.rank, facts, self.rules, boxes)
        )
        return moves_of(made, stages, micros, replace(end, work=micros[-1]))
