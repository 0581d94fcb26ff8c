"""Data parallelism: each rank computes gradients on its part of a batch, in step.

One training step, as it is pushed to the engine (S: segment, X: exchange, U: update):

    compute   S0 S1 S2 S3 S4 S5 . U2 U1 U0 | S0 S1 ...     the next step starts at once
    comm               X2    X1    X0                      in one order on every rank

What is pushed is data (`hpctrain.parallel.recipe`); a segment reads slices of the parameters
and writes slices of the gradient, and the engine orders everything by these. Nothing here
waits, except for what `result` asks for.
"""

from collections.abc import Mapping, Sequence
from functools import partial

from hpctrain.autograd import Spec
from hpctrain.comm.group import Group
from hpctrain.comm.timeline import Link
from hpctrain.engine import Engine, Variable
from hpctrain.errors import ConfigError, EngineError
from hpctrain.graph.cached import Statistics
from hpctrain.optim import LossScale, Optimizer, Schedule
from hpctrain.parallel.actions import Actions, Turn
from hpctrain.parallel.bound import BoundStep, BoundSteps
from hpctrain.parallel.exchange import exchange_by
from hpctrain.parallel.forecast import Forecast, forecast
from hpctrain.parallel.meter import Meter
from hpctrain.parallel.program import Objective
from hpctrain.parallel.recipe import (
    READERS,
    Item,
    Key,
    Role,
    Rules,
    end_items,
    exchange_items,
    gradient_items,
    posted_early,
    rules,
)
from hpctrain.parallel.shards import parts_of_step
from hpctrain.parallel.state import ModelState
from hpctrain.parallel.tables import Table, tables
from hpctrain.parallel.ways import Way, plain
from hpctrain.parallel.work import LAG, Options, StepResult, Work

__all__ = ["DataParallel"]

REPLAN_AT = (8, 40)  # steps of a run before which the order is planned by what was measured


class DataParallel:
    """Pushes training steps to an engine.

    Parameters
    ----------
    objective : Objective
    state : ModelState
        Parameters, gradients, optimizer state of this rank.
    optimizer : Optimizer
    schedule : Schedule
        Learning rate as a function of the step.
    engine : Engine
        Its lane ``comm`` must start tasks in order if there are several ranks; see
        `hpctrain.engine.LaneSpec`.
    group : Group
        The data-parallel ranks, for agreements in the main thread.
    options : Options
    way : Way, optional
        How slices travel, from `hpctrain.parallel.ways`; by default by MPI's collectives on
        ``group``.

    Attributes
    ----------
    order : tuple of int
        The slices in the order of their exchange; see `reorder`.
    transport : Transport or None
        What carries the slices; None for a single rank.

    Notes
    -----
    A step's gradient is that of the mean loss over the global batch, however it is divided.
    """

    actions: type[Actions] = Actions

    def __init__(  # noqa: PLR0913 (the parts that meet here)
        self,
        objective: Objective,
        state: ModelState,
        optimizer: Optimizer,
        schedule: Schedule,
        engine: Engine,
        group: Group,
        options: Options | None = None,
        way: Way | None = None,
    ) -> None:
        self.objective = objective
        self.state = state
        self.optimizer, self.schedule = optimizer, schedule
        self.engine, self.group = engine, group
        self.options = options or Options()
        self.stop = False  # set by whoever wants all ranks to stop
        self.step_number = 0
        self.way = way or plain(group, state, self.options)
        self.transport = self.way.transport
        self.order: tuple[int, ...] = ()
        self._norms: Group | None = None
        self._build({})
        self._after: tuple[Item, ...] = ()
        self._steps, self._planned = 0, True
        self._variables: dict[Key, Variable] = {}
        self._ready = [engine.variable(f"result {i}") for i in range(LAG + 1)]

    def _build(self, found: Mapping[int, Table]) -> None:
        """Make what depends on the slices; ``found`` have one of their own."""
        state, options = self.state, self.options
        if found:
            state.flat.keep_whole(found)
        self._exchange = exchange_by(self.way, state, options, found)
        if self.rules.shared_norm and self._norms is None:
            self._norms = self.group.dup()
        parts = self.optimizer, self.schedule, options, self._exchange, self.way.sums
        self._actions = self.actions(state, *parts, self._norms, self.way.log)
        self._bound = BoundSteps(
            self.objective, state, options, self.way.early(options), self.way.sums
        )

    @property
    def meter(self) -> Meter:
        """What the compute lane did, and waited for."""
        return self._actions.meter

    @property
    def scale(self) -> LossScale:
        """The factor on the loss; changes with each step if it is dynamic."""
        return self._actions.scale

    @property
    def variables(self) -> list[Variable]:
        """Variables that stand for the parameters and the state, for whoever reads them."""
        slices = [self._variable(("parameters", s.index)) for s in self.state.flat.slices]
        return [*slices, self._variable(("arena", 0))]

    def begin_at(self, number: int) -> None:
        """Let the next step have this number: training goes on from a checkpoint."""
        self.step_number = number
        if self.way.log is not None:
            self.way.log.first_step = number

    def prepare(self, inputs: Sequence[Spec], targets: Sequence[Spec]) -> None:
        """Capture and plan for a shape of batch; collective the first time.

        The order in which slices are exchanged is that in which rank 0 makes them final, until
        `reorder` says otherwise: after a few steps the times measured decide.
        """
        specs = tuple(inputs), tuple(targets)
        bound = self._bound.get(specs)
        if not self.order:
            sharded = self.options.sharded and self.transport is not None
            parts = bound.plan, self.state, self.optimizer, self.way, sharded
            found = tables(self.group, *parts)
            if found:
                self._build(found)
                bound = self._bound.get(specs)
            if sharded:
                self.state.shard(self._exchange.own)
            final = [s for segment in bound.segments for s in segment.final]
            empty = {s.index for s in self.state.flat.slices} - {*final, 0}
            order = [*sorted(empty), *(s for s in final if s != 0), 0]
            self.reorder(self.group.bcast_obj(order, 0))

    def reorder(self, order: Sequence[int]) -> None:
        """Exchange slices in another order from the next step on; the same on every rank.

        Raises
        ------
        ConfigError
            If ``order`` does not name each slice once.
        """
        every = [s.index for s in self.state.flat.slices]
        if sorted(order) != every:
            raise ConfigError(
                f"order: got {list(order)}, needed each of {len(every)} slices once"
            )
        self.order = tuple(order)
        self._after = exchange_items(self.rules)

    def fix(self, order: Sequence[int]) -> None:
        """Exchange slices in this order to the end; the same on every rank."""
        self.reorder(order)
        self._planned = False

    def forecast(self, link: Link) -> Forecast:
        """Return what a step is made of and the best order, by the times measured; collective.

        Parameters
        ----------
        link : Link
            What connects the ranks, the same numbers on all.
        """
        segments = self._bound.first().segments
        sizes = [self._exchange.nbytes(piece) for piece in self.state.flat.slices]
        return forecast(self.group, segments, sizes, self.meter, link)

    @property
    def rules(self) -> Rules:
        """How steps are made."""
        sums = self.way.sums
        rounded = sums is not None and sums.buffer.dtype != self.state.flat.dtype
        return rules(self.options, self.order, self.group.size > 1, sums is not None, rounded)

    def of_first_shape(self) -> BoundStep:
        """Return what runs the shape that `prepare` met first."""
        return self._bound.first()

    def statistics(self) -> Statistics:
        """Return how many batches were run and shapes captured, and what that keeps."""
        return self._bound.statistics()

    def step(self, *parts: Work) -> int:
        """Push one step and return its number, for `result`; after `prepare`.

        Parameters
        ----------
        *parts : Work
            What this rank computes: its share of one batch, or of up to ``Options.accumulate``
            batches that make one step, as if they were one batch of all their samples.
        """
        number = self._begin(parts)
        if self._planned and self._steps in REPLAN_AT and self.way.link is not None:
            self.reorder(self.forecast(self.way.link).order)
        cut = parts_of_step(parts, self.options.shard, self.objective.together is not None)
        pushed = self._gradient(cut, number)
        end = Turn(number, parts[-1], stop=self.stop)
        pushed += [(item, end) for item in end_items([part.count for part in cut], self.rules)]
        pushed += [(item, end) for item in self._after]
        if not self.options.overlap:
            pushed = [pushed[i] for i in posted_early([item for item, _ in pushed])]
        for item, turn in pushed:
            self._push(item, turn, self._actions, _label(item, turn.bound))
        return number

    def _begin(self, parts: Sequence[Work]) -> int:
        """Return the number of the step that these batches make."""
        if not self.order:
            raise EngineError("step: nothing is planned; call prepare on all ranks before")
        self.options.check(len(parts))
        number = self.step_number
        self.step_number += 1
        self._steps += 1
        return number

    def result(self, number: int) -> StepResult:
        """Wait for a step and return its sums; only the last `LAG` + 1 steps are kept."""
        self.engine.wait(self._ready[number % (LAG + 1)])
        return self._actions.results.pop(number)

    def _gradient(self, parts: Sequence[Work], number: int) -> list[tuple[Item, Turn]]:
        rules, found, counted = self.rules, [], 0
        for part, bound, derives in self._bound.of_step(parts):
            first = part.count > 0 and not counted
            turn = Turn(number, part, bound, first, self.stop and first, derives)
            role: Role = "last" if part is parts[-1] else "part"
            role = role if part.count else "silent"
            if role not in bound.items:
                bound.items[role] = gradient_items(bound.segments, rules, role)
            found += [(item, turn) for item in bound.items[role]]
            counted += part.count
        return found

    def _push(self, item: Item, turn: Turn, actions: object, name: str) -> None:
        reads = [self._variable(key) for key in item.reads]
        writes = [self._variable(key) for key in item.writes]
        if turn.work.variable is not None and item.verb in READERS:
            reads.append(turn.work.variable)
        if item.verb == "keep":
            writes.append(self._ready[turn.number % (LAG + 1)])
        self.engine.push(
            partial(getattr(actions, item.verb), turn, item.at),
            reads,
            writes,
            lane=item.lane,
            priority=item.priority,
            name=name,
            deferred=item.deferred,
        )

    def _variable(self, key: Key) -> Variable:
        if key not in self._variables:
            kind, index = key
            self._variables[key] = self.engine.variable(f"{kind} {index}")
        return self._variables[key]


def _label(item: Item, bound: BoundStep | None) -> str:
    """Return the name of an item in traces."""
    if item.verb == "run" and bound is not None:
        return bound.segments[item.at].name
    return f"{item.verb} {item.at}"
