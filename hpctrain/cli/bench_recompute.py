"""``bench recompute``: what recomputation saves in a deep network, and what it costs."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from hpctrain import backend, nn
from hpctrain.autograd import Spec
from hpctrain.cli.threads import limit_threads
from hpctrain.comm.world import start
from hpctrain.graph.budget import Memory
from hpctrain.graph.execute import Executor
from hpctrain.graph.marks import AGAIN
from hpctrain.graph.plan import Plan
from hpctrain.parallel.program import Objective, StepDefinition, training_plan

__all__ = ["compare", "recompute"]

WARM_UP = 2


def recompute(
    layers: Sequence[int] = (64, 256),
    width: int = 256,
    batch: int = 128,
    steps: int = 15,
    threads: int = 1,
) -> None:
    """Compare gradients of deep networks with and without recomputation, on one rank.

    Args:
        layers: dense layers with relu, one network for each number.
        width: outputs of a layer.
        batch: samples.
        steps: steps that count, of each kind in turn, after 2 to warm up.
        threads: threads.
    """
    with start() as world:
        limit_threads(world, threads)
        if world.rank == 0:
            for count in layers:
                print(json.dumps(compare(count, width, batch, steps)), flush=True)


def compare(layers: int, width: int, batch: int, steps: int) -> dict[str, Any]:
    """Return planned bytes and times of a step of one network, with and without.

    Parameters
    ----------
    layers, width, batch, steps : int
        See `recompute`.

    Returns
    -------
    dict
        Planned MiB and median ms of a step, keeping everything and recomputing as much as
        helps; the extra time as a share; operations of a step, and those that run again.
    """
    net = nn.HybridSequential()
    for _ in range(layers):
        net.add(nn.Dense(width, "relu", in_units=width))
    device = backend.choose()
    net.initialize("msraprelu", ctx=device)
    leaves = [p.data() for p in net.collect_params().values()]
    rng = np.random.default_rng(0)
    given = [rng.normal(size=(batch, width)).astype("f4"), rng.integers(0, width, batch)]
    goal = Objective(net, nn.SoftmaxCrossEntropyLoss())
    specs = tuple((Spec.of(a),) for a in given)
    arrays = [backend.to_device(a, device) for a in (*given, np.array(1 / batch, "f4"))]
    begun = perf_counter()
    step = StepDefinition(goal, (specs[0], specs[1]), leaves, leaves, device)
    full, less = plans = [
        training_plan(replace(step, memory=Memory(kind))) for kind in ("off", "sqrt")
    ]
    planned = perf_counter() - begun
    runs = [_bound(plan, [t.value for t in leaves], arrays, device) for plan in plans]
    times: list[list[float]] = [[], []]
    for _ in range(WARM_UP + steps):
        for run, found in zip(runs, times, strict=True):
            begun = perf_counter()
            run()
            found.append(perf_counter() - begun)
    ms = [median(found[WARM_UP:]) * 1e3 for found in times]
    return {
        "layers": layers,
        "mib": round(full.arena_bytes / 2**20, 3),
        "mib_recomputed": round(less.arena_bytes / 2**20, 3),
        "ms_per_step": round(ms[0], 2),
        "ms_per_step_recomputed": round(ms[1], 2),
        "extra_time": round(ms[1] / ms[0] - 1, 3),
        "nodes": len(full.graph.nodes),
        "nodes_run_again": sum(AGAIN in node.marks for node in less.graph.nodes),
        "planning_s": round(planned, 2),
    }


def _bound(plan: Plan, leaves: list[Any], arrays: list[Any], device: Any) -> Callable[[], Any]:
    """Bind a plan to arrays of its own for all that comes out; return what runs it."""
    specs = [plan.graph.specs[v] for v in plan.graph.outputs]
    outputs = [backend.empty(s.shape, s.dtype, device) for s in specs]
    run = Executor(plan, leaves, dict(enumerate(outputs)), device)
    run.feed(arrays)

    def whole() -> Any:
        run.run()
        return backend.to_host(outputs[0])  # a device has come to its end then

    return whole
