"""``bench overhead``: what a step takes beyond its kernels, in a network of tiny layers."""

import json
from collections.abc import Callable
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from hpctrain import engine, nn
from hpctrain.cli.bench_step import trainer_of
from hpctrain.cli.exchange import Traffic, lanes_for
from hpctrain.cli.threads import limit_threads
from hpctrain.comm.world import World, start
from hpctrain.graph.native import fuses
from hpctrain.graph.pool import Pool
from hpctrain.models.workloads import Workload
from hpctrain.parallel.bound import BoundStep
from hpctrain.parallel.data_parallel import DataParallel
from hpctrain.parallel.terms import Terms
from hpctrain.parallel.work import Options, Work

__all__ = ["measure", "overhead"]

WARM_UP = 10
LR, MOMENTUM = np.float32(1e-3), np.float32(0.9)


def overhead(layers: int = 100, width: int = 16, batch: int = 32, steps: int = 60) -> None:
    """Compare the training step of many tiny dense layers with the same calls of NumPy.

    The other side is a list of calls with all their arrays made before, run one by one: what
    the kernels alone take, and no interpreter could do without.

    Args:
        layers: dense layers with relu.
        width: outputs of a layer.
        batch: samples.
        steps: steps that count, of each kind in turn, after 10 to warm up.
    """
    with start() as world:
        limit_threads(world, 1)
        if world.rank == 0:
            print(json.dumps(measure(world, layers, width, batch, steps)), flush=True)


def measure(world: World, layers: int, width: int, batch: int, steps: int) -> dict[str, Any]:
    """Return median times of a step, and of one kernel call beyond the kernel.

    Parameters
    ----------
    world : World
        Of one rank.
    layers, width, batch, steps : int
        See `overhead`.

    Returns
    -------
    dict
        ``plan_us_per_call``: the kernels of the plan run one by one, less NumPy's calls, for
        each of the plan's kernels; ``step_us_per_call``: the same of a whole step, with
        engine, segments, update and results.
    """
    net = nn.HybridSequential()
    for _ in range(layers):
        net.add(nn.Dense(width, "relu", in_units=width))
    rng = np.random.default_rng(0)
    given = rng.standard_normal((batch, width), np.float32), rng.integers(width, size=batch)
    work = Workload("tiny", net, nn.SoftmaxCrossEntropyLoss(), batch, 0, lambda _: given)
    with engine.create(lanes=lanes_for(Traffic())) as lanes:
        trainer = trainer_of(work, world, lanes, Options(fuse=fuses("auto")), None, Terms())
        part = Work((given[0],), (given[1],), batch, batch)
        trainer.prepare(*part.specs())
        bare = partial(_run, _calls(layers, width, batch))
        pieces = trainer.objective, trainer.state, part.specs(), Pool(), trainer.options
        bound = BoundStep(*pieces)
        bound.feed(part, 0)
        times = _alternate([partial(_step, trainer, part), bound.run.run, bare], steps)
        kernels = sum(v.outputs[0] not in bound.plan.views for v in bound.plan.graph.nodes)
    step, plan, alone = (1e6 * t for t in times)
    return {
        "layers": layers,
        "kernels": kernels,
        "step_us": round(step, 1),
        "plan_us": round(plan, 1),
        "numpy_us": round(alone, 1),
        "plan_us_per_call": round((plan - alone) / kernels, 2),
        "step_us_per_call": round((step - alone) / kernels, 2),
    }


def _step(trainer: DataParallel, part: Work) -> None:
    trainer.result(trainer.step(part))


def _run(calls: list[Callable[[], Any]]) -> None:
    for call in calls:
        call()


def _alternate(runs: list[Callable[[], Any]], steps: int) -> list[float]:
    """Return the median seconds of each, in turn."""
    found: list[list[float]] = [[] for _ in runs]
    for _ in range(WARM_UP + steps):
        for run, times in zip(runs, found, strict=True):
            begun = perf_counter()
            run()
            times.append(perf_counter() - begun)
    return [median(times[WARM_UP:]) for times in found]


def _calls(layers: int, width: int, batch: int) -> list[Callable[[], Any]]:
    """Return NumPy's calls of a step: forward, backward and update, on arrays of their own."""
    rng, shape = np.random.default_rng(0), (batch, width)
    weights = rng.standard_normal((layers, width, width), np.float32) * np.float32(0.3)
    biases, values = np.zeros((layers, width), np.float32), np.zeros((layers + 1, *shape), "f4")
    masks = np.zeros((layers, *shape), bool)
    dw, db = np.zeros_like(weights), np.zeros_like(biases)
    dy, dx = np.ones(shape, np.float32), np.ones(shape, np.float32)
    calls: list[Callable[[], Any]] = []
    for w, b, x, y in zip(weights, biases, values, values[1:], strict=False):
        calls += [partial(np.matmul, x, w.T, y), partial(np.add, y, b, y),
                  partial(np.maximum, y, 0, out=y)]  # fmt: skip
    for i in reversed(range(layers)):
        calls += [
            partial(np.greater, values[i + 1], 0, masks[i]),
            partial(np.multiply, dy, masks[i], dy),
            partial(np.matmul, dy.T, values[i], dw[i]),
            partial(np.add.reduce, dy, axis=0, out=db[i]),
            partial(np.matmul, dy, weights[i], dx),
        ]
        dy, dx = dx, dy
    return [*calls, *_update(weights, dw), *_update(biases, db)]


def _update(values: Any, gradients: Any) -> list[Callable[[], Any]]:
    velocity, part = np.zeros_like(values), np.zeros_like(values)
    return [
        partial(np.multiply, velocity, MOMENTUM, velocity),
        partial(np.multiply, gradients, LR, part),
        partial(np.subtract, velocity, part, velocity),
        partial(np.add, values, velocity, values),
    ]
