"""A server: takes in gradients, updates parameters, answers; until it is told to end.

    main thread   receives - - - receives - - - - - - - receives      and pushes what is to do
    compute            sum and update 7 | 6 | 5 ...                   slices side by side
    send                          7 7 6 6 5 5 ...                     what is needed first

The main thread receives, because it alone knows when to end; the engine orders the rest by the
slices.
"""

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from hpctrain.comm.group import Group
from hpctrain.comm.inbox import Inbox
from hpctrain.comm.letter import Letter, Op
from hpctrain.comm.post import CONTROL, PUSH
from hpctrain.comm.words import read, say
from hpctrain.engine import Engine, LaneSpec
from hpctrain.errors import CommError, ConfigError
from hpctrain.parallel.answers import Answers
from hpctrain.parallel.losses import Losses, nobody_dies
from hpctrain.parallel.near import NEAR
from hpctrain.parallel.norm import Norm
from hpctrain.parallel.rounds import Clocks, Release, Rounds
from hpctrain.parallel.served import Parts
from hpctrain.parallel.terms import ROWS, Push

__all__ = ["Server", "lanes_of_server"]

PAUSE_S = 1e-4  # between two looks for letters, when nothing has come


def lanes_of_server(threads: int, in_flight: int = 4) -> Mapping[str, int | LaneSpec]:
    """Return the lanes of the engine of a server with so many threads."""
    return {
        "compute": max(1, threads),
        "send": LaneSpec(in_flight=in_flight, pause_s=PAUSE_S),
        "comm": LaneSpec(ordered=True, pause_s=PAUSE_S),
        "io": 1,
        "copy": 1,
    }


class Server:
    """Serves the workers.

    Parameters
    ----------
    parts : Parts
    engine : Engine
        With the lanes of `lanes_of_server`.
    peers : Group
        All servers, for norms; used by nothing else.
    orders : mapping of str to callable
        What a letter of control may ask for: each takes its words, and returns words for an
        answer, or None. Called with nothing under way.
    wish : callable
        Returns whether this server has been asked to stop.
    losses : Losses, optional
        Workers that die; without it all ranks live, or MPI ends all.
    """

    def __init__(
        self,
        parts: Parts,
        engine: Engine,
        peers: Group,
        orders: Mapping[str, Callable[[dict[str, Any]], Any]],
        wish: Callable[[], bool] = lambda: False,
        losses: Losses | None = None,
    ) -> None:
        self._losses = losses or nobody_dies()
        self.parts, self.engine = parts, engine
        self._post, self._orders, self._wish = parts.post, orders, wish
        self._sync = parts.terms.sync
        self._rounds = Rounds(parts.workers)
        self._clocks = Clocks(parts.workers, parts.terms.bound)
        self._slots = [engine.variable(f"slice {i}") for i in range(len(parts.spans))]
        self._norm = Norm(parts, engine, peers)
        self._mine = [i for i, (a, b) in enumerate(parts.spans) if a < b]
        self._summed: list[int] = []  # slices of the open round whose sum is pushed
        self._asked: dict[int, list[Push]] = {}  # by slice: who waits for rows
        self._answers = Answers(parts.post, engine, self._losses.tolerate > 0)
        self._inbox = Inbox(parts.post, PUSH, parts.recorder)
        self._begun = self._wished = False  # the steps; a stop, by this server or another
        self._words: dict[str, Any] | None = None
        if not self._mine:
            raise ConfigError(
                f"exchange.servers: server {peers.rank} of {peers.size} would have no "
                "parameter of so small a model; start fewer servers"
            )

    def run(self) -> dict[str, Any]:
        """Serve until a letter says ``stop``; return its words."""
        while self._words is None:
            self._look_around()
            if not (self._receive() or self._listen()):
                if self.engine.statistics().failures:
                    self.engine.wait_all()  # raises what a task has raised
                time.sleep(PAUSE_S)
        self.engine.wait_all()
        return self._words

    def _look_around(self) -> None:
        """See who wishes to stop, and which workers have died: nobody waits for them then."""
        if self._begun and not self._wished and self._wish():
            self._wished = True
            if self._post.rank:  # the first server speaks with the workers
                say(self._post, 0, {"do": "wish"})
        self.parts.news.wish = self._wished
        for worker in self._losses.news():
            for index, released in self._clocks.forget(worker).items():
                self._push(self._answer_all, index, released, name="answer")
            for index in self._asked:
                self._answer_asked(index, worker)

    def _receive(self) -> bool:
        """Take in what has come; return whether anything has."""
        letters = self._inbox.take(self._losses.ranks)
        self._begun = self._begun or bool(letters)
        for source, letter in letters:
            self._take(source, letter)
        return bool(letters)

    def _take(self, source: int, letter: Letter) -> None:
        """Decide what a letter leads to."""
        header = letter.open(f"letter from rank {source}")
        index = header.key
        if index >= len(self._slots) or (header.offset, header.length) != self._part(index):
            raise CommError(
                f"server: rank {source} names elements {header.offset} to "
                f"{header.offset + header.length} of slice {index}, which this server does not "
                "keep; start all ranks with the same command"
            )
        if header.flags & NEAR:
            self.parts.near.sync()
        if header.op == Op.PULL and header.flags & ROWS:
            self._asked.setdefault(index, []).append(Push(header, source, letter))
        elif header.op == Op.PULL:
            letter.close()
            self._push(self._pull, index, header.version, source, name="pull")
        elif self._sync:
            pushes = self._rounds.push(index, source, Push(header, source, letter))
            if pushes is not None:
                self._close_round(index, pushes)
        else:
            self._count()
            released = self._clocks.push(index, source, header.version)
            push = Push(header, source, letter)
            newest = self._clocks.newest
            self._push(self._apply, index, push, newest, released, name="update and answer")
        if index in self._asked:
            self._answer_asked(index)

    def _part(self, index: int) -> tuple[int, int]:
        a, b = self.parts.spans[index]
        return a, b - a

    def _count(self) -> None:
        """Note how many tasks lie before a letter."""
        lane = self.engine.statistics().lanes["compute"]
        self.parts.tally.came(lane.queued + lane.running)

    def _push(self, fn: Callable[..., None], index: int, *args: Any, name: str) -> None:
        """Push work on a slice; what workers need first goes first."""
        self.engine.push(
            partial(fn, index, *args),
            writes=(self._slots[index],),
            priority=-index,
            name=f"{name} {index}",
        )

    def _close_round(self, index: int, pushes: list[Push]) -> None:
        """Push what follows when all workers have pushed a slice."""
        versions = [push.header.version for push in pushes]
        if len(set(versions)) > 1:
            raise CommError(
                f"server: the workers push slice {index} of steps {versions}, needed one step"
            )
        self._count()
        if not (self.parts.clip_norm or self.parts.options.skip):
            self._push(self._round, index, versions[0], pushes, name="sum and update")
            return
        self._push(self._sum, index, pushes, name="sum")
        self._summed.append(index)
        if len(self._summed) == len(self._mine):
            self._summed.clear()
            self._push_judged(versions[0])

    def _push_judged(self, version: int) -> None:
        """Push the updates of a step that needs the norm of its whole gradient."""
        self._norm.push([self._slots[i] for i in self._mine])
        for index in sorted(self._mine):
            self.engine.push(
                partial(self._finish, index, version),
                (self._norm.variable,),
                (self._slots[index],),
                priority=-index,
                name=f"update {index}",
            )
        for index in self._asked:
            self._answer_asked(index)

    def _answer_asked(self, index: int, dead: int = -1) -> None:
        """Push answers to those who ask for rows and whose own push is taken in."""
        asked, holder = self._asked[index], self._rounds if self._sync else self._clocks
        self._asked[index] = []
        for push in asked:
            if index in self._summed or holder.holds(index, push.source):
                self._asked[index].append(push)
            elif push.source != dead:
                self._push(self._send_rows, index, push, name="rows")

    def _send_rows(self, index: int, push: Push) -> None:
        self._answers.leave(index, self.parts.rows(index, push), (push.source,))

    def _round(self, index: int, version: int, pushes: list[Push]) -> None:
        """Sum, update and answer."""
        self.parts.round(index, version, pushes)
        self._answer(index, version, tuple(self.parts.workers))

    def _sum(self, index: int, pushes: list[Push]) -> None:
        self._norm.squares[index] = self.parts.add_up(index, pushes)

    def _finish(self, index: int, version: int) -> None:
        """Update and answer, when the norm is known."""
        if not self.parts.news.skip:
            self.parts.update(index, version, self._norm.whole)
        self._answer(index, version, tuple(self.parts.workers))

    def _apply(self, index: int, push: Push, newest: int, released: list[Release]) -> None:
        """Update by the gradient of one worker, and answer those who may go on."""
        self.parts.apply(index, push, newest, [worker for worker, _ in released])
        self._answer_all(index, released)

    def _answer_all(self, index: int, released: list[Release]) -> None:
        """Answer workers that may go on, each its own push."""
        for worker, version in released:
            self._answer(index, version, (worker,))

    def _pull(self, index: int, version: int, worker: int) -> None:
        """Send a worker what it asks for."""
        self.parts.deliver(index, (worker,))
        self._answer(index, version, (worker,), True)

    def _answer(
        self, index: int, version: int, workers: tuple[int, ...], whole: bool = False
    ) -> None:
        """Send a part of the parameters to some workers, as soon as it is its turn."""
        near = tuple(worker for worker in workers if worker in self.parts.near)
        far = tuple(worker for worker in workers if worker not in near)
        if index in self.parts.intake.rows and not whole:
            far = ()  # they ask
        for some in near, far:
            if some:
                self._send(index, version, some, whole)

    def _send(self, index: int, version: int, workers: tuple[int, ...], whole: bool) -> None:
        letter = self.parts.value(index, version, workers[0], whole)
        self._answers.leave(index, letter, workers)

    def _listen(self) -> bool:
        """Obey a letter of control, if one has come, with nothing else under way."""
        for source, letter, handle in self._post.arrivals(CONTROL, most=1):
            handle.wait()
            words = read(letter, source)
            self.engine.wait_all()
            if words["do"] == "wish":
                self._wished = True
                return True
            if words["do"] == "start":
                self._clocks.reset()
            if words["do"] == "stop":
                self._words = words
                return True
            said = self._orders[words["do"]](words)
            if said is not None:
                say(self._post, source, said)
            return True
        return False
