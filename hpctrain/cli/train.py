"""``train``: a run, from the configuration to its last checkpoint."""

import os
import sys
import warnings
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

from hpctrain import backend, engine
from hpctrain.cli import build, pipeline, serving, tensor
from hpctrain.cli.defaults import DEFAULT
from hpctrain.cli.exchange import PAUSE_S, lanes_for, overlaps, way_of
from hpctrain.cli.failure import end_all, naming
from hpctrain.cli.fitting import batch_specs, check_test
from hpctrain.cli.room import Room
from hpctrain.cli.threads import limit_threads, told
from hpctrain.cli.tune import traffic_of
from hpctrain.comm import guard
from hpctrain.comm.agree import agree
from hpctrain.comm.crew import Crew
from hpctrain.comm.mesh import Mesh
from hpctrain.comm.stall import Watch
from hpctrain.comm.world import World, start
from hpctrain.config import NOT_COUNTED, Config, check_ranks, digest, load, split, to_toml
from hpctrain.graph.fused import prepare
from hpctrain.graph.marks import AGAIN
from hpctrain.graph.native import fuses
from hpctrain.io.sampler import part
from hpctrain.ops import dnnl
from hpctrain.parallel.data_parallel import DataParallel
from hpctrain.parallel.evaluate import Evaluator
from hpctrain.parallel.pipeline import Pipeline
from hpctrain.parallel.pipeline_evaluate import PipelineEvaluator
from hpctrain.parallel.state import ModelState
from hpctrain.trace import Activity, Recorder
from hpctrain.train.console import Console
from hpctrain.train.metrics import RecordWriter
from hpctrain.train.profile import Profile, parse_steps
from hpctrain.train.report import Report
from hpctrain.train.rundir import RunDir, versions
from hpctrain.train.saver import Saver
from hpctrain.train.signals import EXIT_STOPPED, StopFlag, time_left
from hpctrain.train.trainer import Outcome, Settings, Trainer

__all__ = ["run"]

RUN_AHEAD = 4096  # tasks of a step are all pushed at once; the results bound the steps


def run(argv: Sequence[str]) -> int:
    """Train as the command line says; collective over all ranks that were started."""
    # The trainer looks whether numbers are finite, and says so once for all ranks.
    warnings.filterwarnings(
        "ignore", "(overflow|invalid value|divide by zero) encountered", RuntimeWarning
    )
    with start() as world:
        config = guard.agreed(world.control, lambda: _configured(argv, world.size))
        if config.exchange.kind == "server":
            outcome = serving.train(config, world, _train, _facts)
        else:
            outcome = _train(config, world)
        if not outcome.finished:
            world.guard.leave(EXIT_STOPPED)
    return 0


def _configured(argv: Sequence[str], ranks: int) -> Config:
    words, flags = split(argv)
    config = load(words or [DEFAULT], flags, os.environ)[0]
    check_ranks(config, ranks)
    return config


def _train(config: Config, world: World) -> Outcome:
    given = limit_threads(world.whole, build.threads(config), config.device.pin)
    dnnl.choose(config.device.kernels)
    device = backend.choose(config.device.kind, world.local_rank)
    mesh = pipeline.mesh_of(config, world)
    data = build.open_data(config, world)
    traffic, tuning = traffic_of(config, world, data.train, (device, given.cores), mesh)
    with ExitStack() as stack:
        recorder = Recorder(enabled=False)
        lanes = stack.enter_context(
            engine.create(
                config.device.engine,
                {**lanes_for(traffic, readers=2), **pipeline.lanes(config, traffic.eager_s)},
                run_ahead=RUN_AHEAD,
                recorder=recorder,
                on_failure=lambda error: end_all(error, world, data),
            )
        )
        activity = data.train.activity = data.test.activity = Activity()
        limits = config.exchange.stall_s, config.exchange.abort_s
        watch = Watch(world, *limits, activity, lanes.running)
        share = pipeline.replica(mesh, world)
        train, test = (
            build.loader(config, records, world, lanes, training, share)
            for records, training in ((data.train, True), (data.test, False))
        )
        step, evaluator = _step(
            config, world, mesh, lanes, train, (device, given.cores, watch, traffic)
        )
        check_test(config, world, train, test, evaluator if mesh is None else None)
        run_dir = _run_dir(config, world, stack)  # when nothing is left that could be refused
        console = stack.enter_context(Console(world.rank, log=run_dir.log if run_dir else None))
        console.facts(
            f"hpctrain: run {config.run.name}",
            _banner(world, step, train, told(given, lanes), (traffic.waiting, tuning)),
        )
        pipeline.tell(console, step, recorder)
        saver = Saver(
            step,
            world,
            run_dir,
            config.run.keep,
            {"optimizer": step.optimizer.describe(), "schedule": step.schedule.describe()},
            activity,
        )
        records = stack.enter_context(RecordWriter(run_dir.metrics)) if run_dir else None
        trainer = Trainer(
            step,
            evaluator,
            train,
            test,
            world,
            saver,
            Report(world, console, _total(config, train), records, serving.in_step(config)),
            Profile(
                parse_steps(config.run.profile),
                recorder,
                lanes,
                world,
                run_dir.trace / "trace.json" if run_dir else None,
                partial(pipeline.count_idle, step, recorder),
                serving.servers_of(step),
            ),
            _settings(config),
        )
        stop_file = run_dir.stop_file if run_dir else None
        limit = time_left(config.run.time_limit, os.environ)
        with StopFlag(stop_file, limit) as stop, watch, naming(data):
            outcome = trainer.fit(stop)
            serving.end(step, outcome)
        _tell(console, run_dir, outcome, stop.reason)
    step.way.free()
    return outcome


def _run_dir(config: Config, world: World, stack: ExitStack) -> Any:
    """Open the run directory on rank 0; the others, and a dry run, have none."""

    def opened() -> RunDir | None:
        if world.rank or config.run.dry_run:
            return None
        found = RunDir.open(
            config.run.dir,
            config.run.name,
            to_toml(config),
            digest(config),
            config.run.resume,
            NOT_COUNTED,
        )
        stack.enter_context(found)
        found.describe(
            [sys.executable, *sys.orig_argv[1:]], {**versions(), "mpi": world.library}
        )
        return found

    return guard.agreed(world.control, opened)


def _step(
    config: Config,
    world: World,
    mesh: Mesh | None,
    lanes: engine.Engine,
    loader: Any,
    place: tuple[Any, ...],
) -> tuple[DataParallel, Any]:
    """Build the model, the training step and the evaluation, alike on every rank."""
    device, cores, watch, traffic = place
    if mesh is not None:
        where = pipeline.Place(device, cores, watch.logs, traffic)
        if mesh.shape.pipeline == 1:
            return tensor.step_of(config, world, mesh, lanes, loader, where, _facts)
        made = pipeline.step_of(config, world, mesh, lanes, loader, where, _facts)
        return made, PipelineEvaluator(made)
    pause_s = PAUSE_S if cores < 1 else 0.0
    together = build.together(config, world.group, pause_s, watch.inside)
    room = Room(world, config)
    net, goal = room.objective(config, loader, device, together)
    optimizer = build.optimizer(config)
    parameters = net.collect_params()
    state = ModelState(parameters, optimizer, traffic.slice_bytes(parameters))
    agree(world.control, _facts(config, state))
    state.broadcast(world.control)
    options = build.options(config, overlaps(traffic, world, cores), pause_s)
    schedule = build.schedule(config, build.steps_per_epoch(config, loader.plan))
    if isinstance(world, Crew):
        facts = _facts(config, state)
        step: DataParallel = serving.worker(
            config, world, goal, state, optimizer, schedule, lanes, options, watch.log, facts
        )
    else:
        way = replace(way_of(traffic, world, state, options), log=watch.log)
        step = DataParallel(
            goal, state, optimizer, schedule, lanes, world.control, options, way
        )
    share = part(loader.plan.batch, world.rank, world.size, loader.unit)
    count = options.shard or share.stop - share.start
    step.prepare(*batch_specs(loader, min(count, loader.plan.batch)))
    room.planned(step)
    return step, Evaluator(goal, state, options.fuse, options.memory.budget)


def _facts(config: Config, state: ModelState) -> dict[str, str]:
    """Collect what must be equal on all ranks."""
    facts = {f"version of {name}": value for name, value in versions().items()}
    lines = to_toml(config).splitlines()
    section = ""
    for line in lines:
        if line.startswith("["):
            section = line.strip("[]")
        elif "=" in line and not line.startswith("#"):
            name, _, value = line.partition("=")
            facts[f"{section}.{name.strip()}"] = value.strip()
    facts["fused kernels"] = str(fuses(config.graph.fuse))
    facts["kernels"] = dnnl.provider()
    return {**facts, **state.facts(), "parameters at the start": state.digest()}


def _total(config: Config, loader: Any) -> int:
    total = config.run.epochs * build.steps_per_epoch(config, loader.plan)
    return min(total, _max_steps(config) or total)


def _max_steps(config: Config) -> int:
    return 1 if config.run.dry_run else config.run.max_steps


def _settings(config: Config) -> Settings:
    run_ = config.run
    return Settings(
        epochs=run_.epochs,
        max_steps=_max_steps(config),
        log_every=run_.log_every,
        checkpoint_every=run_.checkpoint_every,
    )


def _banner(
    world: World, step: DataParallel, loader: Any, threads: str, how: tuple[str, str]
) -> dict[str, Any]:
    if isinstance(step, Pipeline):
        return pipeline.banner(world, step, loader, threads, how[1])
    plan = (bound := step.of_first_shape()).plan
    kernels = prepare(plan.graph)
    again = sum(AGAIN in node.marks for node in plan.graph.nodes)
    return {
        "ranks": serving.ranks(world),
        "device": f"{step.state.device}, {threads}"
        + (f", kernels of {dnnl.describe(True)}" if step.state.device.kind == "cpu" else ""),
        "parameters": sum(step.state.flat.sizes),
        "memory plan": f"{bound.working_bytes / 2**20:.1f} MiB a rank for activations "
        f"({plan.naive_bytes / 2**20:.1f} without sharing)"
        + (f", {again} of {len(plan.graph.nodes)} operations run again" if again else ""),
        "kernels": f"{kernels.kernels} fused, {kernels.compiled} of them compiled now, "
        f"{kernels.seconds:.2f} s"
        if kernels.kernels
        else None,
        "records": loader.records.n,
        "batch": f"{loader.plan.batch} over all ranks, {loader.plan.steps} an epoch"
        + (f", {step.options.accumulate} to a step" if step.options.accumulate > 1 else ""),
        "exchange": f"{len(step.state.flat.slices)} slice(s), path {step.way.kind}, "
        f"{'overlapping' if step.options.overlap else 'after the backward pass'}"
        f", by a thread that is {'; '.join(word for word in how if word)}"
        if world.size > 1
        else None,
        **tensor.facts_of(step),
    }


def _tell(console: Console, run_dir: Any, outcome: Outcome, reason: str) -> None:
    """Say how the run ended, and write it down."""
    if not outcome.finished:
        why = reason or "another rank's wish"
        console.line(f"stopped ({why}), state saved; the same command goes on from here")
        return
    values = {name.replace("_", " "): f"{v:.4f}" for name, v in outcome.values.items()}
    if run_dir:
        run_dir.finish(outcome.values)
        values["run directory"] = str(run_dir.path)
    console.facts("done", values)
