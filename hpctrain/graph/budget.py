"""How much memory a step may use: what is recomputed is chosen until the plan fits."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeVar

from hpctrain.errors import ConfigError
from hpctrain.graph.cuts import Way, ways
from hpctrain.graph.ir import Graph
from hpctrain.graph.passes import EXACT, optimise
from hpctrain.graph.plan import Plan
from hpctrain.graph.recompute import Forward, recompute, recompute_regions

__all__ = ["Memory", "captured_order", "first_that_fits", "least_memory", "plan_within"]

Made = TypeVar("Made")

_BEFORE = EXACT[: EXACT.index("own_outputs") + 1]  # captured order still
_LAST = 3  # plans that are made of the smallest by the estimate before a budget is refused


@dataclass(frozen=True, slots=True)
class Memory:
    """What a step may keep.

    Attributes
    ----------
    recompute : {"auto", "sqrt", "off"}
        auto: what blocks are marked for, and otherwise what the budget asks for, with as
        little work as it takes; sqrt: as much as helps, so that memory grows with the square
        root of the number of layers; off: nothing.
    budget : int
        Bytes that the arena of a step may have, 0 for no limit. Parameters, gradients,
        optimizer state and batches are not in it.
    """

    recompute: Literal["auto", "sqrt", "off"] = "auto"
    budget: int = 0


def plan_within(graph: Graph, memory: Memory, finish: Callable[[Graph], Plan]) -> Plan:
    """Plan a graph of forward and backward part such that it uses no more than allowed.

    Parameters
    ----------
    graph : Graph
        As captured.
    memory : Memory
    finish : callable
        Optimises a graph and plans it: the judge of how much memory it takes.

    Returns
    -------
    Plan

    Raises
    ------
    ConfigError
        If the budget is too small, with the least that is possible.

    Notes
    -----
    Cost: one call of ``finish``, and where there is a search some six more.
    """
    plan = finish(recompute_regions(graph) if memory.recompute == "auto" else graph)
    if memory.recompute == "sqrt":
        plan = _smallest(graph, finish, plan)
    if not memory.budget or plan.arena_bytes <= memory.budget:
        return plan
    if memory.recompute == "off":
        raise _too_little(memory, plan.arena_bytes, "without recomputation")
    return _search(graph, memory, finish, plan.arena_bytes)


def captured_order(graph: Graph) -> Graph:
    """Return a graph improved as far as nodes stay in the order in which they were captured."""
    return optimise(graph, _BEFORE)


def least_memory(graph: Graph) -> Graph:
    """Return a captured training step with as much computed again as helps; a pure pass."""
    forward = Forward(optimise(graph, _BEFORE))
    found = ways(forward)
    return recompute(forward, found[-1].kept) if found else graph


def first_that_fits(
    count: int, make: Callable[[int], Made], fits: Callable[[Made], bool]
) -> Made | None:
    """Return the first of ``count`` choices that fits, found by bisection; None if none does.

    Parameters
    ----------
    count : int
        Choices in an order in which those that fit come last.
    make : callable
        From the number of a choice to what comes of it; called about log2 of ``count`` times.
    fits : callable

    Examples
    --------
    >>> first_that_fits(9, lambda number: 9 - number, lambda nbytes: nbytes <= 4)
    4
    """
    best: Made | None = None
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        made = make(middle)
        if fits(made):
            best, high = made, middle
        else:
            low = middle + 1
    return best


def _smallest(graph: Graph, finish: Callable[[Graph], Plan], plain: Plan) -> Plan:
    """Return the plan with the least memory, ``plain`` if nothing helps."""
    forward = Forward(optimise(graph, _BEFORE))
    plans = [finish(recompute(forward, way.kept)) for way in ways(forward)[-1:]]
    return min([plain, *plans], key=lambda plan: plan.arena_bytes)


def _search(graph: Graph, memory: Memory, finish: Callable[[Graph], Plan], least: int) -> Plan:
    """Return the plan with the least work among those that fit."""
    forward = Forward(optimise(graph, _BEFORE))
    found = ways(forward)
    tried = [least]

    def judged(way: Way) -> Plan:
        plan = finish(recompute(forward, way.kept))
        tried.append(plan.arena_bytes)
        return plan

    best = first_that_fits(
        len(found),
        lambda number: judged(found[number]),
        lambda p: p.arena_bytes <= memory.budget,
    )
    if best is None:
        # The estimate may put the smallest not quite last.
        for way in found[-_LAST:-1]:
            plan = judged(way)
            if plan.arena_bytes <= memory.budget:
                return plan
        raise _too_little(memory, min(tried), "with all that helps recomputed")
    return best


def _too_little(memory: Memory, least: int, how: str) -> ConfigError:
    return ConfigError(
        f"memory.budget: got {memory.budget // 2**10} KiB, but the values of a step take "
        f"{-(-least // 2**10)} KiB {how}; raise the budget, or take fewer records in a batch"
    )
