"""A server alone in this process: a post that keeps what it sends, and gets what is put in."""

from collections import deque

import numpy as np
from replicas import SCHEDULE

from hpctrain.comm.letter import Header, Letter, Op
from hpctrain.comm.post import CONTROL, PUSH
from hpctrain.comm.request import Handle
from hpctrain.comm.transfer import Pool
from hpctrain.comm.words import say
from hpctrain.errors import LostRankError
from hpctrain.optim import SGD
from hpctrain.parallel.near import nobody
from hpctrain.parallel.placement import place
from hpctrain.parallel.serve import _Service
from hpctrain.parallel.served import Parts
from hpctrain.parallel.server import Server
from hpctrain.parallel.state import ModelState
from hpctrain.parallel.work import RIDERS, Options


class Dead:
    """A message of, or to, a rank that has died."""

    def test(self):
        raise LostRankError("letter: a rank has died")

    wait = test


class Held:
    """A message that leaves when its post lets it."""

    def __init__(self, post):
        self.post = post

    def test(self):
        return not self.post.held


class FakePost:
    """The post of rank 0 of several; while it is ``held``, nothing that is sent arrives."""

    def __init__(self, size, lasts=False):
        self.rank, self.size, self.debug, self.group = 0, size, False, None
        self.deaths = (lambda: ()) if lasts else None
        self.sent, self.dead, self.held, self.pool = [], set(), False, Pool()
        self.coming = {PUSH: deque(), CONTROL: deque()}

    def room(self, nbytes):
        return Letter.room(nbytes, self.pool)

    def send(self, letter, dest, tag):
        if dest in self.dead:
            return Dead()
        body = None if tag == CONTROL else letter.body.copy()
        self.sent.append((dest, tag, letter.open("a test"), body))
        return Held(self)

    def arrivals(self, tag, most=16):
        for _ in range(min(most, len(self.coming[tag]))):
            yield self.coming[tag].popleft()


class Served:
    """A server and what a test does to it.

    ``step`` turns its loop once; `answers` are those that have left since the last call.
    """

    def __init__(
        self,
        model,
        terms,
        workers,
        engine,
        options=None,
        optimizer=None,
        schedule=SCHEDULE,
        whole=(),
        widths=None,
        **more,
    ):
        self.post = FakePost(terms.servers + workers, terms.tolerate > 0)
        state = ModelState(model.parameters, optimizer or SGD(), 200)
        state.flat.keep_whole(whole)
        places = place(state.flat.slices, terms.servers, widths)
        state.shard(lambda piece: places[piece.index][0])
        parts = Parts(
            state, optimizer or SGD(), schedule, options or Options(), terms, places, self.post,
            nobody(), widths,
        )  # fmt: skip
        self.state, self.engine, self.spans = state, engine, parts.spans
        peers = type("Peers", (), {"size": 1, "rank": 0})()
        service = _Service(parts, self.post)
        self.server = Server(parts, engine, peers, service.orders(), **more)
        service.server = self.server

    def push(
        self, worker, version, index=0, value=0.0, share=0.5, whole=True, scale=0.0, **riders
    ):
        """Let a worker push a slice, all of whose elements are ``value``."""
        a, b = self.spans[index]
        dtype = self.state.flat.dtype
        letter = self.post.room((b - a) * dtype.itemsize)
        body = letter.view(dtype, b - a)
        body[:] = value
        if index == 0:
            body[:RIDERS] = 0
            for place_, each in riders.items():
                body[int(place_[1:])] = each
        letter.seal(
            Header(Op.PUSH, index, version, a, b - a, dtype.char, share=share, scale=scale)
        )
        handle = Handle() if whole else Dead()
        self.post.coming[PUSH].append((worker, letter, handle))

    def order(self, source, **words):
        """Let a worker send words."""
        other = FakePost(2)
        say(_Tube(other, self.post, source), 0, words)

    def step(self):
        """Do what there is to do."""
        self.server._look_around()
        while self.server._receive() or self.server._listen():
            pass
        self.engine.wait_all()

    def answers(self):
        """Who was answered, with the step and slice of the push: (worker, version, slice)."""
        found = [(d, h.version, h.key) for d, t, h, _ in self.post.sent if t != CONTROL]
        self.post.sent.clear()
        return found

    @property
    def weights(self):
        """The parameters, without riders."""
        return np.array(self.state.flat.weights[RIDERS:])


class _Tube(FakePost):
    """Carries what is said to another post."""

    def __init__(self, pool_of, to, source):
        super().__init__(2)
        self.to, self.source = to, source

    def send(self, letter, dest, tag):
        copy = self.to.room(letter.nbytes)
        copy.memory[: 64 + letter.nbytes] = letter.memory[: 64 + letter.nbytes]
        self.to.coming[tag].append((self.source, copy, Handle()))
        return Handle()
