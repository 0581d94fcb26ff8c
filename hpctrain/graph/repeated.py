"""Plans that run several times between two updates: what they share is made in one run."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hpctrain import backend
from hpctrain.errors import ConfigError
from hpctrain.graph.budget import Memory, captured_order, plan_within
from hpctrain.graph.derived import Shelves, by_first_use, derived, nothing_derived
from hpctrain.graph.execute import Executor
from hpctrain.graph.ir import Graph
from hpctrain.graph.plan import Plan, make_plan
from hpctrain.graph.pool import Pool

__all__ = ["Once", "Repeated", "kept_bytes", "plan_repeated", "planned_once"]

Improve = Callable[[Graph], Graph]


@dataclass(frozen=True, slots=True)
class Repeated:
    """A plan, and what it reads that is made before its first run.

    Attributes
    ----------
    once : Plan
        From the leaves to what is derived from them; see `hpctrain.graph.derived`.
    each : Plan
        Its last leaves are the outputs of ``once``.
    keys : tuple
        What they are made of.
    stops : sequence of int
        For each step of ``each``, how many of ``once`` must have run before.
    sources : mapping of int to set of int
        For each leaf of ``each`` that is derived, the leaves that it is made of.
    """

    once: Plan
    each: Plan
    keys: tuple[Hashable, ...]
    stops: Sequence[int]
    sources: Mapping[int, set[int]] = field(default_factory=dict)

    @classmethod
    def alone(cls, plan: Plan) -> "Repeated":
        """Return a plan that makes all of its values in each run."""
        nothing = make_plan(nothing_derived(plan.graph).once)
        return cls(nothing, plan, (), [0] * len(plan.graph.nodes))

    @property
    def kept_bytes(self) -> int:
        """Bytes that are kept between the runs, and those that it takes to make them."""
        return kept_bytes(self.once)

    @property
    def arena_bytes(self) -> int:
        """Bytes that both plans work in, with what is kept."""
        return self.each.arena_bytes + self.kept_bytes

    @property
    def naive_bytes(self) -> int:
        """Bytes of all values, if none shared memory."""
        return self.each.naive_bytes + self.kept_bytes


def plan_repeated(graph: Graph, memory: Memory, improve: Improve) -> Repeated:
    """Plan a graph that runs several times between two updates of its leaves.

    Parameters
    ----------
    graph : Graph
        As captured.
    memory : Memory
        Its budget holds what is kept between the runs too. If nothing can be kept within it,
        all is made in each run.
    improve : callable
        The passes.

    Raises
    ------
    ConfigError
        If the budget is too small, with the least that is possible.
    """

    def finish(graph: Graph) -> Plan:
        return make_plan(improve(graph))

    parts = derived(captured_order(graph))
    kept = parts.nbytes
    less = replace(memory, budget=memory.budget and max(1, memory.budget - kept))
    if parts.keys:
        try:
            each = plan_within(parts.rest, less, finish)
        except ConfigError:
            pass
        else:
            once, stops = planned_once(parts.once, each, improve)
            return Repeated(once, each, parts.keys, stops, parts.sources())
    return Repeated.alone(plan_within(graph, memory, finish))


def planned_once(once: Graph, each: Plan, improve: Improve) -> tuple[Plan, list[int]]:
    """Plan what is made once in the order in which ``each`` needs it; see `by_first_use`."""
    made = improve(once)
    names = dict(zip(once.outputs, made.outputs, strict=True))
    uses = [[names[v] for v in node.inputs if v in names] for node in each.graph.nodes]
    ordered, stops = by_first_use(made, uses)
    return make_plan(ordered), stops


def kept_bytes(once: Plan) -> int:
    """Return the bytes of what a plan makes once for several runs of others, and to make it."""
    graph = once.graph
    return once.arena_bytes + sum(graph.specs[v].nbytes for v in graph.outputs)


class Once:
    """What is derived from parameters, bound to arrays.

    Parameters
    ----------
    plan : Plan
    keys : sequence
        What its outputs are made of.
    leaves : sequence of array
    shelves : Shelves
        Where the values are kept: equal ones of several plans in one place.
    device : Device

    Attributes
    ----------
    keys : frozenset
    arrays : list
        The values, for whoever reads them.
    """

    def __init__(
        self,
        plan: Plan,
        keys: Sequence[Hashable],
        leaves: Sequence[Any],
        shelves: Shelves,
        device: backend.Device,
    ) -> None:
        graph = plan.graph
        self.keys = frozenset(keys)
        self.arrays = shelves.arrays(keys, [graph.specs[v] for v in graph.outputs])
        # Not in the pool of the plans that read the values: those are under way meanwhile.
        outputs = dict(enumerate(self.arrays))
        self._executor = Executor(plan, leaves, outputs, device, Pool())

    def run(self, start: int = 0, stop: int | None = None) -> None:
        """Derive anew, all or what steps ``start`` up to ``stop`` make."""
        self._executor.run(start, stop)
