"""``bench``: measure, and print one line of JSON."""

import json
import resource
from collections.abc import Sequence
from statistics import median
from time import perf_counter
from typing import Annotated, Any, Literal

import numpy as np
import tyro

from hpctrain import backend, engine, models, optim
from hpctrain.cli.arguments import call
from hpctrain.cli.bench_fusion import fusion
from hpctrain.cli.bench_memory import memory
from hpctrain.cli.threads import limit_threads
from hpctrain.comm.world import World, start
from hpctrain.graph.native import fuses
from hpctrain.models.workloads import Workload
from hpctrain.parallel.data_parallel import DataParallel
from hpctrain.parallel.program import Objective
from hpctrain.parallel.state import ModelState
from hpctrain.parallel.work import Options, Work

__all__ = ["run"]

Name = Literal["mlp", "resnet20", "lstm", "gpt", "cosmo", "lenet"]
WARM_UP = 5


def run(argv: Sequence[str]) -> int:
    """Run a benchmark; collective over all ranks that were started."""
    call({"step": step, "memory": memory, "fusion": fusion}, argv, "bench")
    return 0


def step(  # noqa: PLR0913 (its flags)
    workload: Annotated[Name, tyro.conf.Positional],
    steps: int = 30,
    batch: int = 0,
    threads: int = 1,
    overlap: Literal["auto", "on", "off"] = "auto",
    slice_mib: float = 1.0,
    fuse: Literal["auto", "on", "off"] = "auto",
) -> None:
    """Time the training step of a workload with made-up inputs, SGD with momentum, float32.

    Args:
        workload: which model.
        steps: steps that count, after 5 to warm up.
        batch: samples of one rank; that of the workload if 0.
        threads: threads of one rank.
        overlap: exchange on a communication thread; auto: where a core is free for it.
        slice_mib: size of the pieces in which gradients travel, MiB.
        fuse: one kernel for neighbouring element-wise operations; auto: where LLVM is.
    """
    with start() as world:
        cores = limit_threads(world, threads)[1]
        spread = cores > threads if overlap == "auto" else overlap == "on"
        work = models.workload(workload, batch)
        with engine.create() as lanes:
            line = _measure(
                work, world, lanes, steps, Options(spread, fuse=fuses(fuse)), slice_mib
            )
        if world.rank == 0:
            print(json.dumps(line), flush=True)


def _measure(
    work: Workload,
    world: World,
    lanes: engine.Engine,
    steps: int,
    options: Options,
    slice_mib: float,
) -> dict[str, Any]:
    trainer = _trainer(work, world, lanes, options, slice_mib)
    inputs, labels = work.make(np.random.default_rng(world.rank))
    part = Work((inputs,), (labels,), work.batch, work.batch * world.size)
    begun = perf_counter()
    trainer.prepare(*part.specs())
    prepared = perf_counter() - begun
    times, exposed, loss = [], [], 0.0
    for _ in range(WARM_UP + steps):
        trainer.meter.take()
        begun = perf_counter()
        number = trainer.step(part)
        lanes.wait_all()
        times.append(perf_counter() - begun)
        exposed.append(trainer.meter.take()[1].sum())
        loss = trainer.result(number).loss
    figures = np.array([median(times[WARM_UP:]), median(exposed[WARM_UP:])])
    world.control.allreduce(figures, "max")
    seconds, waiting = (float(f) for f in figures)
    return {
        "peer": "hpctrain",
        "workload": work.name,
        "ranks": world.size,
        "batch_per_rank": work.batch,
        "ms_per_step": round(seconds * 1e3, 3),
        "samples_per_s": round(work.batch * world.size / seconds, 1),
        "peak_rss_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
        "loss": round(loss, 4),
        "exposed_comm_ms": round(waiting * 1e3, 3),
        "first_step_ms": round((prepared + times[0]) * 1e3, 3),
    }


def _trainer(
    work: Workload, world: World, lanes: engine.Engine, options: Options, slice_mib: float
) -> DataParallel:
    device = backend.choose(local_rank=world.local_rank)
    work.net.initialize(ctx=device)
    optimizer = optim.SGD(momentum=0.9)
    state = ModelState(work.net.collect_params(), optimizer, round(slice_mib * 2**20))
    state.broadcast(world.control)
    goal = Objective(work.net, work.loss)
    schedule = optim.Constant(base_lr=1e-3)
    return DataParallel(goal, state, optimizer, schedule, lanes, world.group, options)
