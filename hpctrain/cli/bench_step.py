"""``bench step``: the time of a training step, beside what the simulator says of it."""

import json
import resource
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Annotated, Any, Literal

import numpy as np
import tyro

from hpctrain import backend, engine, models, optim
from hpctrain.cli.exchange import PAUSE_S, Traffic, lanes_for, overlaps, settled, way_of
from hpctrain.cli.pace import pace, straggler
from hpctrain.cli.threads import limit_threads
from hpctrain.comm.compress import Codec, codec
from hpctrain.comm.crew import Crew
from hpctrain.comm.post import Post
from hpctrain.comm.world import World, start
from hpctrain.errors import ConfigError
from hpctrain.graph.native import available, compiler, fuses
from hpctrain.models.workloads import Workload
from hpctrain.ops.dnnl_narrow import lacking
from hpctrain.parallel.data_parallel import DataParallel
from hpctrain.parallel.program import Objective
from hpctrain.parallel.serve import serve
from hpctrain.parallel.served_parallel import ServedParallel
from hpctrain.parallel.server import lanes_of_server
from hpctrain.parallel.state import ModelState
from hpctrain.parallel.terms import Terms
from hpctrain.parallel.trade import Trade
from hpctrain.parallel.ways import Way, to_servers
from hpctrain.parallel.work import Options, Work

__all__ = ["step", "trainer_of"]

Name = Literal["mlp", "resnet20", "lstm", "gpt", "cosmo", "lenet"]
WARM_UP = 12  # the order is planned after 8


def step(  # noqa: PLR0913 (its flags)
    workload: Annotated[Name, tyro.conf.Positional],
    steps: int = 30,
    batch: int = 0,
    threads: int = 1,
    pin: Literal["auto", "none"] = "auto",
    overlap: Literal["auto", "on", "off"] = "auto",
    slice_mib: float = 0.0,
    fuse: Literal["auto", "on", "off"] = "auto",
    path: Literal["auto", "mpi", "direct", "node"] = "auto",
    wire: Literal["none", "fp16", "bf16", "2bit", "topk"] = "none",
    in_flight: int = 8,
    waiting: Literal["auto", "blocking", "polling"] = "auto",
    pause_ms: float = 0.0,
    order: Literal["planned", "backward", "forward"] = "planned",
    sharded: bool = False,
    exchange: bool = True,
    kind: Literal["allreduce", "server"] = "allreduce",
    servers: int = 1,
    mode: Literal["sync", "async", "bounded"] = "sync",
    staleness: int = 2,
    threshold: float = 0.5,
    slow: str = "",
    sleep_ms: float = 50.0,
    precision: Literal["float32", "bf16"] = "float32",
) -> None:
    """Time the training step of a workload with made-up inputs, SGD with momentum, float32.

    Args:
        workload: which model.
        steps: steps that count, after 12 to warm up.
        batch: samples of one rank; that of the workload if 0.
        threads: threads of one rank.
        pin: threads to cores, where a run does it.
        overlap: exchange on a communication thread; auto: as a run does.
        slice_mib: size of the pieces in which gradients travel, MiB; 0: as a run chooses.
        fuse: one kernel for neighbouring element-wise operations; auto: where LLVM is.
        path: how slices travel; auto: through memory on one host, else between pairs.
        wire: compression.
        in_flight: slices under way at a time.
        waiting: of the communication thread, inside MPI or by looking; auto: as a run does.
        pause_ms: between two looks of the communication thread, ms; 0: as a run chooses.
        order: planned by what was measured, as gradients become ready, or as they are needed.
        sharded: each rank updates its part only.
        exchange: off, each rank trains alone: the time of computation beside the others.
        kind: server: the first ranks serve, the others train.
        servers: how many serve.
        mode: one update for all workers, one for each as it comes, or within bounds.
        staleness: how many steps a worker may get ahead, bounded.
        threshold: what 2bit sends of a value at a time.
        slow: RANK:FACTOR, a worker that sleeps so much longer; turn:FACTOR: each for 4 steps.
        sleep_ms: how long the other workers sleep then, as if a device computed, ms.
        precision: bf16: factors of products are bfloat16.
    """
    with start() as whole:
        world: World = whole
        shared = path in ("auto", "node")
        codecs = partial(_codec, wire, threshold)
        terms = Terms(servers, mode, staleness, ahead=True, codec=codecs, shared=shared)
        if kind == "server":
            world = Crew(whole, servers)
        cores = limit_threads(whole, threads, pin).cores
        traffic = Traffic(path, wire, slice_mib, in_flight, pause_ms * 1e-3, overlap)
        served = kind == "server"
        traffic = replace(traffic, waiting="polling" if served else waiting, served=served)
        traffic = settled(traffic, world, cores)
        options = Options(
            overlaps(traffic, world, cores),
            pause_s=PAUSE_S if cores < 1 else 0.0,
            sharded=sharded and exchange,
            fuse=fuses(fuse),
        )
        work = replace(models.workload(workload, batch), narrow=precision == "bf16")
        if isinstance(world, Crew) and world.serves:
            _serve(work, world, options, traffic, terms)
        else:
            with engine.create(lanes=lanes_for(traffic), run_ahead=4096) as lanes:
                used = traffic if exchange else None
                trainer = trainer_of(work, world, lanes, options, used, terms)
                sleeps = straggler(slow, sleep_ms * 1e-3, world.control) if slow else None
                line = _measure(trainer, work, world, steps, order, sleeps)
                if isinstance(trainer, ServedParallel):
                    line["servers"] = trainer.trade.ask("figures")
                    trainer.close()
            if world.rank == 0:
                print(json.dumps(line), flush=True)


def _codec(wire: str, threshold: float) -> Codec | None:
    return codec(wire, threshold=threshold, compiler=compiler if available() else None)


def _serve(
    work: Workload, crew: Crew, options: Options, traffic: Traffic, terms: Terms
) -> None:
    """Serve the workers."""
    work.net.initialize(ctx=backend.CPU)
    optimizer = optim.SGD(momentum=0.9)
    state = ModelState(work.net.collect_params(), optimizer)
    state.broadcast(crew.whole.control)
    parts = state, optimizer, optim.Constant(base_lr=1e-3), options, terms
    with engine.create(lanes=lanes_of_server(1, traffic.in_flight), run_ahead=2**20) as lanes:
        serve(*parts, Post(crew.post), crew.group, lanes)


def _measure(
    trainer: DataParallel,
    work: Workload,
    world: World,
    steps: int,
    order: str,
    sleeps: Callable[[int], float] | None = None,
) -> dict[str, Any]:
    inputs, labels = work.make(np.random.default_rng(world.rank))
    part = Work((inputs,), (labels,), work.batch, work.batch * world.size)
    begun = perf_counter()
    trainer.prepare(*part.specs())
    trainer.result(trainer.step(part))
    first = perf_counter() - begun
    if order == "forward":
        trainer.fix(sorted(trainer.order))
    elif order == "backward":
        trainer.fix(trainer.order)
    found = pace(trainer, part, world.control, steps, WARM_UP, sleeps)
    together = isinstance(trainer, ServedParallel) and not trainer.trade.terms.sync
    rate = found.rate if together or sleeps else world.size / found.step_s
    return {
        "peer": "hpctrain",
        "workload": work.name,
        "precision": "bf16" if work.narrow else "float32",
        "ranks": world.size,
        "batch_per_rank": work.batch,
        "ms_per_step": round(found.step_s * 1e3, 3),
        "samples_per_s": round(work.batch * rate, 1),
        "peak_rss_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
        "loss": round(found.loss, 4),
        "exposed_comm_ms": round((found.exposed_s - found.uneven_s) * 1e3, 3),
        "uneven_ms": round(found.uneven_s * 1e3, 3),
        "first_step_ms": round(first * 1e3, 3),
        **_predicted(trainer),
    }


def _predicted(trainer: DataParallel) -> dict[str, Any]:
    """Return what the simulator says, from the times of this run."""
    link = trainer.way.link
    if link is None:
        return {"path": trainer.way.kind, "overlap": trainer.options.overlap}
    plan = trainer.forecast(link)
    return {
        "path": trainer.way.kind,
        "overlap": trainer.options.overlap,
        "link_mb_per_s": round(link.bytes_per_s / 1e6, 1),
        "compute_ms": round(plan.timeline().compute_s * 1e3, 3),
        "predicted_ms": round(plan.timeline(trainer.order).step_s * 1e3, 3),
        "best_ms": round(plan.timeline().step_s * 1e3, 3),
        "backward_ms": round(plan.timeline(plan.backward).step_s * 1e3, 3),
        "order": list(trainer.order),
    }


def trainer_of(
    work: Workload,
    world: World,
    lanes: engine.Engine,
    options: Options,
    traffic: Traffic | None,
    terms: Terms,
) -> DataParallel:
    """Build the training step of a workload; collective."""
    device = backend.choose(local_rank=world.local_rank)
    work.net.initialize(ctx=device)
    optimizer = optim.SGD(momentum=0.9)
    parameters = work.net.collect_params()
    nbytes = (traffic or Traffic(slice_mib=1.0)).slice_bytes(parameters)
    state = ModelState(parameters, optimizer, nbytes)
    state.broadcast(world.whole.control)
    if work.narrow and (missing := lacking(device)):
        raise ConfigError(f"precision: got bf16 on {device}, needed {missing}")
    goal = Objective(work.net, work.loss, narrow=work.narrow)
    schedule = optim.Constant(base_lr=1e-3)
    parts = goal, state, optimizer, schedule, lanes, world.control, options
    if isinstance(world, Crew):
        trade = Trade(Post(world.post), terms, world.control)
        return ServedParallel(*parts, to_servers(trade, state, options))
    way = Way(None, None) if traffic is None else way_of(traffic, world, state, options)
    return DataParallel(*parts, way)
