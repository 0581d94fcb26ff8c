"""How much memory the values of a stage may take: what is computed again is chosen to fit."""

from collections.abc import Callable

from hpctrain.errors import ConfigError
from hpctrain.graph.budget import Memory, captured_order, first_that_fits, least_memory
from hpctrain.graph.cuts import Way, ways
from hpctrain.graph.ir import Graph
from hpctrain.graph.recompute import Forward, recompute, recompute_regions
from hpctrain.parallel.stage_program import StageProgram

__all__ = ["fitted", "value_bytes"]

Change = Callable[[Graph], Graph]
Make = Callable[[Change], StageProgram]  # from what is done to the joint graph of a stage


def value_bytes(program: StageProgram, slots: int) -> int:
    """Return the bytes that a stage works in and keeps for so many micro-batches."""
    kept = program.area.nbytes + program.kept_bytes
    return program.arena_bytes + slots * program.slot.nbytes + kept


def fitted(make: Make, memory: Memory, slots: int) -> StageProgram:
    """Return a stage whose values take no more than ``memory.budget``.

    Parameters
    ----------
    make : callable
    memory : Memory
        With the budget of this stage alone.
    slots : int
        How many micro-batches it keeps at once.

    Raises
    ------
    ConfigError
        If the budget is too small, with the least that is possible.

    Notes
    -----
    As `hpctrain.graph.budget.plan_within`: as little work again as it takes to fit, found by
    bisection.
    """
    changes: dict[str, Change] = {
        "auto": recompute_regions, "sqrt": least_memory, "off": _nothing
    }  # fmt: skip
    plain = make(changes[memory.recompute])
    least = value_bytes(plain, slots)
    if not memory.budget or least <= memory.budget:
        return plain
    tried = [least]

    def judged(number: int) -> StageProgram:
        program = make(_Again(number))
        tried.append(value_bytes(program, slots))
        return program

    best = first_that_fits(
        len(_ways(make)) if memory.recompute != "off" else 0,
        judged,
        lambda program: value_bytes(program, slots) <= memory.budget,
    )
    if best is None:
        raise ConfigError(
            f"memory.budget: got {memory.budget // 2**10} KiB for stage {plain.number}, but "
            f"its values take {-(-min(tried) // 2**10)} KiB for {slots} micro-batches at once; "
            "raise the budget, or parallel.micro_batches"
        )
    return best


def _nothing(graph: Graph) -> Graph:
    return graph


def _ways(make: Make) -> list[Way]:
    """Return the choices that there are for a stage."""
    found: list[Way] = []

    def look(graph: Graph) -> Graph:
        found.extend(ways(Forward(captured_order(graph))))
        return graph

    make(look)
    return found


class _Again:
    """Computes again what one of the choices does not keep."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __call__(self, graph: Graph) -> Graph:
        forward = Forward(captured_order(graph))
        return recompute(forward, ways(forward)[self._number].kept)
