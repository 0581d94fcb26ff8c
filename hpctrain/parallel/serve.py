"""Serving a training run: from the first order of the workers to the last."""

import time
from collections.abc import Callable
from typing import Any

from hpctrain import optim
from hpctrain.comm.group import Group
from hpctrain.comm.post import Post
from hpctrain.comm.words import hear
from hpctrain.engine import Engine
from hpctrain.errors import CommError
from hpctrain.optim import Optimizer, Schedule, schedule
from hpctrain.parallel.losses import Losses
from hpctrain.parallel.near import shared
from hpctrain.parallel.placement import place
from hpctrain.parallel.served import Parts
from hpctrain.parallel.server import Server
from hpctrain.parallel.state import ModelState
from hpctrain.parallel.terms import Terms
from hpctrain.parallel.trade import STATE_TAG
from hpctrain.parallel.work import Options
from hpctrain.trace import Recorder

__all__ = ["serve"]


class _Service:
    """Carries out the orders that are not about single slices."""

    def __init__(self, parts: Parts, post: Post) -> None:
        self.parts = parts
        self._post = post

    def orders(self) -> dict[str, Callable[[dict[str, Any]], Any]]:
        return {
            "start": self.start,
            "fetch": self.fetch,
            "store": self.store,
            "change": self.change,
            "figures": self.figures,
            "record": self.record,
            "clock": self.clock,
            "events": self.events,
        }

    def start(self, words: dict[str, Any]) -> bool:
        """Go on at a step of a run."""
        self.parts.start(words["step"])
        self.parts.scale.load(words["scale"])
        return True

    def fetch(self, words: dict[str, Any]) -> None:
        """Send this server's part of the optimizer's state to the first worker."""
        self.parts.settle()
        for array in self.parts.state.optimizer.values():
            self._post.group.send(array, self.parts.workers[0], STATE_TAG)

    def store(self, words: dict[str, Any]) -> bool:
        """Take parameters and the optimizer's state from the first worker."""
        state, source = self.parts.state, self.parts.workers[0]
        room = state.flat.weights[: sum(b - a for a, b in self.parts.spans)].copy()
        self._post.group.recv(room, source, STATE_TAG)
        for a, b, place_ in state.parts:
            state.flat.weights[a:b] = room[place_ : place_ + b - a]
        for array in state.optimizer.values():
            self._post.group.recv(array, source, STATE_TAG)
        self.parts.forget()
        return True

    def change(self, words: dict[str, Any]) -> bool:
        """Go on with other settings."""
        parts = self.parts
        if words["clip_norm"] is not None:
            parts.clip_norm = words["clip_norm"]
        if words["schedule"] is not None:
            parts.schedule = schedule.from_description(words["schedule"])
        if words["optimizer"] is not None:
            parts.settle()
            parts.optimizer = optim.create(**words["optimizer"])
            before, total = parts.state.optimizer, sum(b - a for a, b in parts.spans)
            fresh = parts.optimizer.make_state(total, parts.state.flat.dtype)
            parts.state.optimizer = {name: before.get(name, fresh[name]) for name in fresh}
            if set(fresh) - set(before):
                parts.begin_anew()
            parts.look_ahead()
        return True

    def figures(self, words: dict[str, Any]) -> dict[str, Any]:
        """Return what this server did since it was last asked."""
        return self.parts.tally.take()

    def record(self, words: dict[str, Any]) -> bool:
        """Begin or end to record what this server does."""
        if self.parts.recorder is not None:
            self.parts.recorder.enabled = words["on"]
        return True

    def clock(self, words: dict[str, Any]) -> int:
        """Return the time here."""
        return time.perf_counter_ns()

    def events(self, words: dict[str, Any]) -> list[Any]:
        """Return what was recorded."""
        return [] if self.parts.recorder is None else self.parts.recorder.events()


def serve(  # noqa: PLR0913 (the parts that meet here)
    state: ModelState,
    optimizer: Optimizer,
    lr: Schedule,
    options: Options,
    terms: Terms,
    post: Post,
    peers: Group,
    engine: Engine,
    wish: Callable[[], bool] = lambda: False,
    losses: Losses | None = None,
    recorder: Recorder | None = None,
) -> dict[str, Any]:
    """Keep a part of a model's parameters and update them, until the workers end.

    Parameters
    ----------
    state : ModelState
        The model's first parameters, the same on all ranks.
    optimizer : Optimizer
    lr : Schedule
    options : Options
        As the workers have them.
    terms : Terms
    post : Post
        Over all ranks; this one is below ``terms.servers``.
    peers : Group
        The servers.
    engine : Engine
        With the lanes of `hpctrain.parallel.server.lanes_of_server`.
    wish : callable
        Returns whether this server has been asked to stop.
    losses : Losses, optional
        Workers that die while the others go on.
    recorder : Recorder, optional
        The engine's: the workers let it record.

    Returns
    -------
    dict
        The words of the workers' last order.
    """
    near = shared(post, state, options, terms)
    source, words = hear(post)
    if words["do"] != "open":
        raise CommError(f"server: rank {source} says {words['do']} first, needed open")
    tables = {int(which): width for which, width in words["tables"]}
    state.flat.keep_whole(tables, words["limit"])
    alone = {s.parameters[0]: s.index for s in state.flat.slices if len(s.parameters) == 1}
    widths = {alone[which]: width for which, width in tables.items()}
    places = place(state.flat.slices, terms.servers, widths)
    state.shard(lambda piece: places[piece.index][post.rank])
    parts = Parts(state, optimizer, lr, options, terms, places, post, near, widths, recorder)
    service = _Service(parts, post)
    server = Server(parts, engine, peers, service.orders(), wish, losses)
    words = server.run()
    near.free()
    return words
