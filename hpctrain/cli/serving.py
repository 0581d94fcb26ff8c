"""Runs with servers: who serves, what a server does, and the step of a worker."""

import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

from hpctrain import engine
from hpctrain.backend import CPU
from hpctrain.cli import build
from hpctrain.cli.exchange import Traffic
from hpctrain.cli.threads import limit_threads
from hpctrain.comm.agree import agree
from hpctrain.comm.compress import codec
from hpctrain.comm.crew import Crew
from hpctrain.comm.guard import agreed
from hpctrain.comm.lasting import check_tolerance
from hpctrain.comm.post import Post
from hpctrain.comm.progress import Log
from hpctrain.comm.stall import Watch
from hpctrain.comm.world import World
from hpctrain.config import Config
from hpctrain.engine import Engine
from hpctrain.graph.native import available, compiler
from hpctrain.optim import Optimizer, Schedule
from hpctrain.parallel.data_parallel import DataParallel
from hpctrain.parallel.losses import Losses, nobody_dies
from hpctrain.parallel.program import Objective
from hpctrain.parallel.recorded import Servers
from hpctrain.parallel.serve import serve
from hpctrain.parallel.served_parallel import ServedParallel
from hpctrain.parallel.server import lanes_of_server
from hpctrain.parallel.state import ModelState
from hpctrain.parallel.terms import Terms
from hpctrain.parallel.trade import Trade
from hpctrain.parallel.ways import to_servers
from hpctrain.parallel.work import Options
from hpctrain.trace import Recorder
from hpctrain.train.signals import StopFlag, time_left
from hpctrain.train.trainer import Outcome

__all__ = ["end", "in_step", "ranks", "servers_of", "terms_of", "train", "worker"]

EVERY = 2**62  # exchanges that a server counts as started: it is never the one waited for
Facts = Callable[[Config, ModelState], dict[str, str]]


def terms_of(config: Config) -> Terms:
    """Return what workers and servers agree on."""
    e = config.exchange
    return Terms(
        servers=e.servers,
        mode=e.mode,
        staleness=e.staleness,
        compensation=e.delay_factor if e.compensation == "delay" else 0.0,
        ahead=e.compensation in ("auto", "momentum"),
        debug=e.checksum,
        shared=e.path in ("auto", "node"),
        tolerate=e.tolerate,
        codec=partial(
            codec,
            e.wire,
            threshold=e.threshold,
            ratio=e.ratio,
            compiler=compiler if available() else None,
        ),
    )


def in_step(config: Config) -> bool:
    """Return whether all ranks that train do so in step."""
    return config.exchange.kind != "server" or terms_of(config).sync


def ranks(world: World) -> str:
    """Say how many ranks train, by which MPI, and who serves them."""
    text = f"{world.size} on {len(world.hosts)} host(s), {world.library}"
    return f"{text}; served by {world.described}" if isinstance(world, Crew) else text


def train(
    config: Config, world: World, work: Callable[[Config, World], Outcome], facts: Facts
) -> Outcome:
    """Let the first ranks serve and the others train; collective over all ranks.

    Parameters
    ----------
    config : Config
    world : World
    work : callable
        Trains on the ranks of the world that it is given.
    facts : callable
        Returns what must be equal on all ranks.
    """
    tolerate = config.exchange.tolerate
    if tolerate:
        check_tolerance(world.library, os.environ)
    crew = Crew(world, config.exchange.servers, lasts=tolerate > 0)
    outcome = _serve(config, crew, facts) if crew.serves else work(config, crew)
    crew.free()
    return outcome


def worker(  # noqa: PLR0913 (the parts that meet here)
    config: Config,
    crew: Crew,
    goal: Objective,
    state: ModelState,
    optimizer: Optimizer,
    schedule: Schedule,
    lanes: Engine,
    options: Options,
    log: Log,
    facts: dict[str, str],
) -> ServedParallel:
    """Return the step of a worker; collective over all ranks."""
    agree(crew.whole.control, facts)
    terms = terms_of(config)
    post, losses = _post(crew, terms)
    trade = Trade(post, terms, crew.control, losses)
    way = replace(to_servers(trade, state, options), log=log)
    return ServedParallel(goal, state, optimizer, schedule, lanes, crew.control, options, way)


def _post(crew: Crew, terms: Terms) -> tuple[Post, Losses]:
    """Return what carries letters, and knows whom they no longer reach."""
    post = Post(crew.post, terms.debug, crew.deaths)
    if crew.deaths is None:
        return post, nobody_dies()
    return post, Losses(crew.deaths, crew.servers, terms.tolerate, crew.host_of)


def servers_of(step: DataParallel) -> Servers | None:
    """Return what lets the servers record, if there are any."""
    return Servers(step.trade) if isinstance(step, ServedParallel) else None


def end(step: DataParallel, outcome: Outcome) -> None:
    """Let the servers end, if there are any, as this worker does."""
    if isinstance(step, ServedParallel):
        step.close(finished=outcome.finished)


def _serve(config: Config, crew: Crew, facts: Facts) -> Outcome:
    """Serve a run from its beginning to its end."""
    threads = limit_threads(crew.whole, config.device.threads).threads
    traffic, terms = Traffic.of(config), terms_of(config)
    # The workers look whether the files are whole.
    data = build.open_data(config, crew, verify=False)
    recorder = Recorder(enabled=False)
    with ExitStack() as stack:
        lanes = stack.enter_context(
            engine.create(
                config.device.engine,
                lanes_of_server(threads, traffic.in_flight),
                run_ahead=2**20,
                recorder=recorder,
                on_failure=lambda error: crew.guard.fail(error.__cause__ or error, "engine"),
            )
        )
        watch = Watch(
            crew, config.exchange.stall_s, config.exchange.abort_s, None, lanes.running
        )
        watch.log.started = watch.inside.started = crew.control.calls = EVERY
        loader = build.loader(config, data.train, crew, lanes, training=True)
        net, _ = agreed(crew.control, lambda: build.objective(config, loader, CPU))
        optimizer = build.optimizer(config)
        state = ModelState(net.collect_params(), optimizer)
        agree(crew.whole.control, facts(config, state))
        post, losses = _post(crew, terms)
        limit = time_left(config.run.time_limit, os.environ)
        with StopFlag(None, limit) as stop, watch:
            words: dict[str, Any] = serve(
                state,
                optimizer,
                build.schedule(config, build.steps_per_epoch(config, loader.plan)),
                build.options(config, True, 0.0),
                terms,
                post,
                crew.group,
                lanes,
                stop.requested,
                losses,
                recorder,
            )
    return Outcome(words["finished"], {})
