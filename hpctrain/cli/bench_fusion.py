"""``bench fusion``: a training step with and without fused kernels, in turn in one process."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import median
from time import perf_counter, thread_time
from typing import Annotated, Any

import numpy as np
import tyro

from hpctrain import backend, models
from hpctrain.autograd import Spec
from hpctrain.cli.threads import limit_threads
from hpctrain.comm.world import start
from hpctrain.graph.execute import Executor
from hpctrain.graph.fused import prepare
from hpctrain.parallel.program import Objective, StepDefinition, training_plan

__all__ = ["fusion"]

WARM_UP = 2
NAMES = ("mlp", "resnet20", "lstm", "gpt", "cosmo")


def fusion(
    workloads: Annotated[tuple[str, ...], tyro.conf.Positional] = NAMES, steps: int = 15
) -> None:
    """Compare forward and backward of workloads, fused and not, on one rank and one thread.

    Args:
        workloads: which models.
        steps: steps of each kind that count, in turn, after 2 to warm up.
    """
    with start() as world:
        limit_threads(world, 1)
        if world.rank == 0:
            for name in workloads:
                print(json.dumps(compare(name, steps)), flush=True)


def compare(name: str, steps: int) -> dict[str, Any]:
    """Return median ms of a step without and with fusion.

    Parameters
    ----------
    name : str
    steps : int

    Returns
    -------
    dict
        ``cpu`` counts the time of the thread, which other programs disturb less than the
        time on the wall; ``ratio`` is fused over unfused in it. Also the nodes of both
        plans, the kernels, and the seconds until they were ready.
    """
    work = models.workload(name)
    device = backend.choose()
    work.net.initialize(ctx=device)
    leaves = [p.data() for p in work.net.collect_params().values()]
    trained = [t for t in leaves if t.grad_req != "null"]
    goal = Objective(work.net, work.loss)
    given = work.make(np.random.default_rng(0))
    specs = tuple((Spec.of(a),) for a in given)
    weight = np.array(1 / work.batch, np.float32)
    arrays = [backend.to_device(a, device) for a in (*given, weight)]
    step = StepDefinition(goal, (specs[0], specs[1]), leaves, trained, device)
    runs, nodes, kernels = [], [], None
    for fuse in (False, True):
        plan = training_plan(replace(step, fuse=fuse))
        kernels = prepare(plan.graph)
        nodes.append(len(plan.graph.nodes))
        outputs = [plan.graph.specs[v] for v in plan.graph.outputs]
        into = {i: backend.empty(s.shape, s.dtype, device) for i, s in enumerate(outputs)}
        run = Executor(plan, [t.value for t in leaves], into, device)
        run.feed(arrays)
        runs.append(run.run)
    wall, cpu = _alternate(runs, steps)
    assert kernels is not None
    return {
        "workload": name,
        "cpu_ms": round(cpu[0], 2),
        "cpu_ms_fused": round(cpu[1], 2),
        "ratio": round(cpu[1] / cpu[0], 3),
        "wall_ms": round(wall[0], 2),
        "wall_ms_fused": round(wall[1], 2),
        "nodes": nodes[0],
        "nodes_fused": nodes[1],
        "kernels": kernels.kernels,
        "ready_s": round(kernels.seconds, 3),
    }


def _alternate(
    runs: Sequence[Callable[[], Any]], steps: int
) -> tuple[list[float], list[float]]:
    """Run each in turn; return median ms on the wall and of the thread."""
    found: list[list[tuple[float, float]]] = [[] for _ in runs]
    for _ in range(WARM_UP + steps):
        for run, times in zip(runs, found, strict=True):
            begun, used = perf_counter(), thread_time()
            run()
            times.append((perf_counter() - begun, thread_time() - used))
    medians = [[median(t[i] for t in times[WARM_UP:]) * 1e3 for times in found] for i in (0, 1)]
    return medians[0], medians[1]
