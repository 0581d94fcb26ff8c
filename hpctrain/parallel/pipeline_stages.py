"""The stages of one rank: planned and bound for each shape of micro-batch, in one memory."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from hpctrain.errors import ConfigError
from hpctrain.graph.budget import Memory
from hpctrain.graph.cached import Statistics
from hpctrain.graph.pool import Pool
from hpctrain.graph.recent import Recent
from hpctrain.parallel.bound_stage import BoundStage, StageMemory
from hpctrain.parallel.pipeline_messages import messages
from hpctrain.parallel.pipeline_order import buffers_needed
from hpctrain.parallel.pipeline_recipe import Deed, StageFacts, slot_counts
from hpctrain.parallel.pipeline_schedule import Action, PipelineSchedule
from hpctrain.parallel.stage_budget import fitted
from hpctrain.parallel.stage_program import StageProgram, stage_program
from hpctrain.parallel.staged import StagedModel
from hpctrain.parallel.state import ModelState

__all__ = ["RankStages", "Recipe"]

SPARE = 1  # boxes beyond what the schedule needs: one is filled while one is read
Stages = dict[int, BoundStage]  # by number


class Recipe(NamedTuple):
    """A step of this rank for micro-batches of certain shapes.

    Attributes
    ----------
    deeds : list of Deed
    expected : dict of int to list of int
        By rank: the bytes of what it sends here, in order.
    boxes : int
        For the messages of each rank.
    """

    deeds: list[Deed]
    expected: dict[int, list[int]]
    boxes: int


class RankStages:
    """What one rank of a pipeline computes.

    Parameters
    ----------
    model : StagedModel
    state : ModelState
        Of the parameters of this rank.
    rank : int
        Within the pipeline.
    fuse : bool
    memory : Memory, optional
        What the values of all stages of this rank may take, and what is computed again.
    """

    def __init__(
        self,
        model: StagedModel,
        state: ModelState,
        rank: int,
        fuse: bool,
        memory: Memory | None = None,
    ) -> None:
        self.model, self.rank = model, rank
        self._state, self._fuse = state, fuse
        self.numbers = model.stages_of(rank)
        allowed = memory or Memory()
        self._allowed = replace(allowed, budget=allowed.budget // len(self.numbers))
        self._memory = {number: StageMemory(state.device) for number in self.numbers}
        self._slots = dict.fromkeys(self.numbers, 0)
        self._judged: dict[int, int] = {}  # slots that budgets go by, if they are others
        self._pool = Pool()
        self._bound: Recent[Stages] = Recent()
        self._recipes: Recent[Recipe] = Recent()

    def make_room(self, plan: PipelineSchedule, judged: PipelineSchedule | None = None) -> None:
        """See that each stage has as many slots as a schedule needs.

        Parameters
        ----------
        plan : PipelineSchedule
        judged : PipelineSchedule, optional
            One for the same stages that budgets go by instead, from now on.
        """
        if judged is not None:
            self._judged = slot_counts(judged, self.rank)
        wanted = slot_counts(plan, self.rank)
        if any(wanted[number] > self._slots[number] for number in self.numbers):
            for number in self.numbers:
                self._slots[number] = max(wanted[number], self._slots[number])
            self._bound, self._recipes = Recent(), Recent()

    def bound(self, specs: Any) -> Stages:
        """Return the stages for a shape of micro-batch; planned anew if it was not met lately.

        What an earlier step was pushed with goes on to work.
        """
        return self._bound.get(specs, partial(self._bind, specs))

    def _bind(self, specs: Any) -> Stages:
        graph, cut = self.model.training(specs)
        tensors = self.model.tensors_of(graph)
        state, found = self._state, {}

        def made(number: int) -> StageProgram:
            parts = graph, cut, number, tensors, state.trained, state.device, self._fuse
            narrow, whole = self.model.objective.narrow, self.model.layout.merged
            make = partial(stage_program, *parts, narrow=narrow, whole=whole)
            slots = self._judged.get(number, self._slots[number])
            try:
                return fitted(make, self._allowed, slots)
            except ConfigError:  # no room for what could be kept between micro-batches
                return fitted(partial(make, keeps=False), self._allowed, slots)

        programs = [made(number) for number in self.numbers]
        self._pool.arena(max(p.arena_bytes for p in programs), state.device)
        for program in programs:
            number = program.number
            memory, slots = self._memory[number], self._slots[number]
            found[number] = BoundStage(program, state.flat, memory, slots, self._pool)
        return found

    def slot(self, action: Action) -> int:
        """Return where a stage keeps a micro-batch.

        Micro-batches come and go in one order, so that those that are kept are neighbours.
        """
        return action.micro % self._slots[action.stage]

    def facts(self, specs: Any) -> dict[int, StageFacts]:
        """Return what the items of the stages touch, for a shape of the last micro-batch."""
        return {
            number: StageFacts(bound.slices, bound.slices, tuple(bound.segments))
            for number, bound in self.bound(specs).items()
        }

    def final_order(self, specs: Any, plan: PipelineSchedule) -> list[int]:
        """Return the slices of the gradient in the order in which they become final."""
        facts, found = self.facts(specs), dict[int, None]()
        last = {a.stage: None for a in reversed(plan[self.rank]) if "W" in a.kind}
        for number in reversed(last):
            for segment in facts[number].segments:
                for index in segment.final:
                    found.pop(index, None)  # a later stage adds to it too
                    found[index] = None
        return list(found)

    def recipe(
        self,
        shapes: tuple[Any, ...],
        plan: PipelineSchedule,
        make: Callable[[dict[int, StageFacts], int], list[Deed]],
    ) -> Recipe:
        """Return the step of micro-batches of these shapes.

        Parameters
        ----------
        shapes : tuple
            Specs of each micro-batch.
        plan : PipelineSchedule
        make : callable
            From what the stages touch and the number of boxes to the deeds.
        """
        self.make_room(plan)

        def made() -> Recipe:
            boxes = buffers_needed(plan) + SPARE
            return Recipe(
                make(self.facts(shapes[-1]), boxes), self._expected(shapes, plan), boxes
            )

        return self._recipes.get(shapes, made)

    def forget_recipes(self) -> None:
        """Make recipes anew: what they depend on has changed."""
        self._recipes = Recent()

    def _expected(self, shapes: Sequence[Any], plan: PipelineSchedule) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        for (source, dest), sent in messages(plan).items():
            if dest != self.rank:
                continue
            for message in sent:
                program = self.bound(shapes[message.micro])[message.stage].program
                activation = message.kind == "activation"
                packing = program.received if activation else program.answered
                found.setdefault(source, []).append(packing.nbytes)
        return found

    @property
    def kept_bytes(self) -> int:
        """Bytes of slots and areas."""
        return sum(memory.nbytes for memory in self._memory.values())

    @property
    def arena_bytes(self) -> int:
        """Bytes of the working memory."""
        return self._pool.nbytes

    def statistics(self, calls: int) -> Statistics:
        """Return counts, and the bytes that are kept."""
        nbytes = self._pool.nbytes + self.kept_bytes
        return Statistics(calls, self._bound.made, len(self._bound), nbytes)
