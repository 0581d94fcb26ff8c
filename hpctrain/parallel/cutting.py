"""Where a model is best cut into pipeline stages: exact search for the smallest maximum.

Only runs of neighbouring layers are tried, in the order that the network has.
"""

import math
from collections.abc import Callable, Sequence
from itertools import accumulate

from hpctrain.errors import ConfigError
from hpctrain.parallel.stages import Cut, Network, Value, cut_at

__all__ = ["BALANCES", "cut"]

BALANCES = ("time", "memory", "params")


def cut(
    network: Network,
    stages: int,
    balance: str = "time",
    kept: Sequence[int] = (),
    copies: int = 2,
) -> Cut:
    """Cut a network so that the largest stage is as small as can be.

    Parameters
    ----------
    network : Network
    stages : int
        None of them is empty.
    balance : {"time", "memory", "params"}
        What is to be small: seconds, bytes in use, bytes of parameters.
    kept : sequence of int, length ``stages``, optional
        For ``memory``: how many micro-batches each stage keeps at once (see
        `hpctrain.parallel.pipeline_times.peak_formula`); 1 if not given.
    copies : int
        For ``memory``: arrays as large as the parameters: these, gradients, optimizer state.

    Returns
    -------
    Cut
        Of all with the least maximum, one with the fewest bytes over its boundaries; of
        these, the one whose last stages are longest.

    Raises
    ------
    ConfigError
        If there are fewer layers than stages, or no such balance.

    Notes
    -----
    Exact, by dynamic programming over (stages, layers): the least maximum first, then the
    fewest bytes among the cuts that keep to it. Takes time O(S n**2).
    """
    if balance not in BALANCES:
        raise ConfigError(f"cut: got balance {balance!r}, needed one of {', '.join(BALANCES)}")
    if not 1 <= stages <= len(network.layers):
        raise ConfigError(
            f"cut: got {len(network.layers)} layers for {stages} stages, needed at least 1 "
            "layer for each of at least 1 stage; lower the number of ranks in the pipeline "
            "(parallel.pipeline), or of stages on each (parallel.chunks)"
        )
    many = kept or [1] * stages
    if len(many) != stages:
        raise ConfigError(
            f"cut: got {len(many)} numbers of kept micro-batches, needed {stages}, one for "
            "each stage"
        )
    once, each = _loads(network, balance, copies)
    sent = _crossing_bytes(network)

    def load(stage: int, start: int, stop: int) -> float:
        return once[stop][start] + many[stage] * each[stop][start]

    def larger(before: float, stage: int, start: int, stop: int) -> float:
        return max(before, load(stage, start, stop))

    least, _ = _search(stages, len(network.layers), larger)

    def bytes_within(before: float, stage: int, start: int, stop: int) -> float:
        return before + sent[start] if load(stage, start, stop) <= least else math.inf

    return cut_at(network, _search(stages, len(network.layers), bytes_within)[1])


def _search(
    stages: int, count: int, worse: Callable[[float, int, int, int], float]
) -> tuple[float, list[int]]:
    """Return the least value of a cut into ``stages``, and its bounds.

    ``worse(value, stage, start, stop)`` is the value of a cut that has one stage more.
    """
    best = [0.0] + [math.inf] * count  # of the first layers, by their number
    choices = []
    for stage in range(stages):
        further, begins = [math.inf] * (count + 1), [0] * (count + 1)
        for stop in range(stage + 1, count - (stages - stage - 1) + 1):
            values = [worse(best[start], stage, start, stop) for start in range(stage, stop)]
            further[stop] = min(values)
            begins[stop] = stage + values.index(further[stop])
        best = further
        choices.append(begins)
    bounds = [count]
    for begins in reversed(choices):
        bounds.append(begins[bounds[-1]])
    return best[count], bounds[::-1]


def _loads(
    network: Network, balance: str, copies: int
) -> tuple[list[list[float]], list[list[float]]]:
    """Return the load of layers start to stop, at [stop][start]: once, and for each kept."""
    once: list[list[float]] = [[]]
    each: list[list[float]] = [[]]
    for stop in range(1, len(network.layers) + 1):
        seen: set[Value] = set()
        parameter_bytes = memory_bytes = time_s = 0.0
        ones, eaches = [0.0] * stop, [0.0] * stop
        for start in reversed(range(stop)):
            layer = network.layers[start]
            fresh = set(layer.parameters) - seen
            seen |= fresh
            parameter_bytes += sum(network.nbytes.get(p, 0) for p in fresh)
            memory_bytes += layer.memory_bytes
            time_s += layer.time_s
            if balance == "memory":
                ones[start], eaches[start] = copies * parameter_bytes, memory_bytes
            else:
                ones[start] = time_s if balance == "time" else parameter_bytes
        once.append(ones)
        each.append(eaches)
    return once, each


def _crossing_bytes(network: Network) -> list[int]:
    """Return the bytes that travel over a boundary before each layer, and at the end."""
    change = [0] * (len(network.layers) + 1)
    made = {v: place for place, layer in enumerate(network.layers) for v in layer.outputs}
    last = {v: place for place, layer in enumerate(network.layers) for v in layer.inputs}
    for value in made.keys() & last.keys():
        change[made[value] + 1] += network.nbytes.get(value, 0)
        change[last[value] + 1] -= network.nbytes.get(value, 0)
    return list(accumulate(change))
