"""Gradients for parameters: the exchange of a worker with servers."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from hpctrain import backend
from hpctrain.comm.bundle import Bundle
from hpctrain.comm.compress import Codec
from hpctrain.comm.letter import Header, Letter, Op
from hpctrain.comm.post import PUSH, reply_tag
from hpctrain.comm.progress import Log
from hpctrain.comm.request import Handle
from hpctrain.comm.transfer import Pending
from hpctrain.comm.watched import noted
from hpctrain.parallel.asked import AskedRows
from hpctrain.parallel.debts import Debts
from hpctrain.parallel.flat import FlatParameters, Slice
from hpctrain.parallel.near import NEAR
from hpctrain.parallel.terms import CODED, body_bytes
from hpctrain.parallel.trade import Trade
from hpctrain.parallel.work import CORRECT, COUNT, LOSS, Work

__all__ = ["Traded"]

KEPT = 8  # steps whose shares are remembered: more than are under way


class Traded:
    """Pushes slices of the gradient; `land` takes what servers have made of the parameters.

    Parameters
    ----------
    trade : Trade
        Opened already.
    buffer : array, shape (total,)
        Where the gradients of this rank are, riders first.
    flat : FlatParameters
    names : sequence of str
        Of the slices, for the report of a stall.
    log : Log or None
        Where it is noted what is under way.
    rows : AskedRows
        Slices of which only rows travel.
    """

    def __init__(
        self,
        trade: Trade,
        buffer: Any,
        flat: FlatParameters,
        names: Sequence[str],
        log: Log | None,
        rows: AskedRows,
    ) -> None:
        self.stop_at = 0  # steps to be made in all, once a worker wishes to stop
        self.behind = False  # whether something was pushed since all was fetched
        self._trade, self._post = trade, trade.post
        self._buffer, self._flat = buffer, flat
        self._names, self._log, self.rows = names, log, rows
        self._codec: Codec | None = trade.terms.codec()
        self._landing: Codec | None = trade.terms.codec()  # used by another thread
        self._near = [not trade.is_far(s) for s in range(trade.terms.servers)]
        self.debts = Debts(trade)
        self._shares: dict[int, float] = {}
        self._scales: dict[int, float] = {}
        self._values: dict[int, list[tuple[int, Letter]]] = {}
        self._receives: dict[int, list[Handle]] = {}

    def note(self, work: Work, number: int) -> None:
        """Add up which share of the samples of a step this rank has."""
        share = work.count / max(work.global_count, 1)
        self._shares[number] = self._shares.get(number, 0.0) + share

    def share(self, number: int) -> float:
        """Return which share of the samples of a step this rank has."""
        return self._shares.get(number, 0.0)

    def leave(self, number: int, scale: float, skip: bool) -> None:
        """Note the loss scale of the gradient of a step, or that it does not count."""
        self._scales[number] = scale
        if skip:
            self._shares[number] = 0.0

    def begin(self, piece: Slice, number: int = 0) -> Pending | None:
        """Push a slice; make room for what will come of it."""
        array = backend.to_host(self._buffer[piece.start : piece.stop])
        share = self._shares.get(number, 0.0)  # none for a rank without a sample
        for kept in self._shares, self._scales:
            kept.pop(number - KEPT, None)
        letters, receives, sends, values = [], [], [], []
        for server, (a, b) in enumerate(self._trade.places[piece.index]):
            if a == b:
                continue
            if self.rows.has(piece.index, server):
                scale = self._scales.get(number, 0.0)
                letter = self.rows.packed(piece, server, number, share, scale)
            else:
                part = array[a - piece.start : b - piece.start]
                letter = self._packed(part, piece.index, a, server, number, share)
                values.append((server, self._room(piece.index, server)))
                tag = reply_tag(piece.index)
                receives.append(self._post.receive(values[-1][1], server, tag))
            sends.append(self._post.send(letter, server, PUSH))
            letters.append(letter)
        self.rows.forget(piece.index, number)
        self.behind = True
        self._values[piece.index] = values
        self._receives[piece.index] = receives
        pending = Bundle(sends, letters)
        return noted(pending, self._log, piece.index, self._names[piece.index])

    def gather(self, piece: Slice) -> Pending | None:
        """Await what comes of a slice: not before all are pushed, which servers may need."""
        pending = Bundle(self._receives.pop(piece.index))
        name = f"{self._names[piece.index]}, the new parameters"
        return noted(pending, self._log, ~piece.index, name)

    def ask(self, piece: Slice, number: int) -> Pending | None:
        """Ask for the rows of a slice that a step reads; `AskedRows.take` brings them there."""
        pending, index = self.rows.ask(piece, number), piece.index
        key = len(self._flat.slices) + 1 + index  # noted apart from the slice's other messages
        return noted(pending, self._log, key, f"{self._names[index]}, the rows of a step")

    def _exact(self, index: int, server: int) -> int:
        a, b = self._trade.places[index][server]
        return len(self._flat.riders) if index == 0 and a == 0 and b > 0 else 0

    def _room(self, index: int, server: int) -> Letter:
        """Return room for the parameters of a part, encoded or not."""
        a, b = self._trade.places[index][server]
        exact = self._exact(index, server)
        if self._near[server]:
            return self._post.room(exact * self._flat.dtype.itemsize)
        most = max(
            body_bytes(codec, b - a, exact, self._flat.dtype) for codec in (None, self._codec)
        )
        return self._post.room(most)

    def _packed(
        self, part: Any, index: int, start: int, server: int, number: int, share: float
    ) -> Letter:
        """Return a letter with a part of the gradient."""
        exact, codec = self._exact(index, server), self._codec
        near = self._near[server]
        count = 0 if near else part.size
        letter = self._post.room(body_bytes(codec, count, exact if count else 0, part.dtype))
        if near:
            self._trade.near.sync()
        elif codec is None:
            letter.view(part.dtype, part.size)[:] = part
        else:
            letter.view(part.dtype, exact)[:] = part[:exact]
            rest, owed = part[exact:], None
            if not (share or self._trade.terms.sync):
                rest = np.zeros_like(rest)  # does not count: what is owed stays owed
            elif codec.residual:
                owed = self.debts.of(index, server, rest.size)
            codec.encode(rest, letter.body[exact * part.itemsize :], owed)
        letter.seal(
            Header(
                Op.PUSH, index, number, start, part.size, part.dtype.char,
                flags=NEAR * near, share=share, scale=self._scales.get(number, 0.0),
            ),
            self._post.debug,
        )  # fmt: skip
        return letter

    def land(self, piece: Slice) -> None:
        """Bring the parameters that have come to their place, and the riders."""
        for server, letter in self._values.pop(piece.index):
            header = letter.open(f"value from rank {server}")
            exact = self._exact(piece.index, server)
            a, b = self._trade.places[piece.index][server]
            head = letter.view(self._flat.dtype, exact)
            if exact:
                self._land_riders(head)
                self.stop_at = header.number
            target = self._flat.weights[a + exact : b]
            if header.flags & NEAR:
                self._trade.near.sync()
            elif header.flags & CODED:
                self._add(letter, head.nbytes, header.scale, target)
            else:
                body = letter.view(self._flat.dtype, b - a - exact, head.nbytes)
                target[...] = backend.module_of(target).asarray(body)
            letter.close()

    def _land_riders(self, head: Any) -> None:
        for buffer in (self._flat.grads, self._buffer):
            buffer[: head.size] = backend.module_of(buffer).asarray(head)

    def _add(self, letter: Letter, start: int, scale: float, target: Any) -> None:
        """Add an encoded change to parameters, in the same arithmetic as the server's."""
        codec = self._landing
        assert codec is not None, "changes are encoded where there is a codec"
        data = letter.body[start : start + codec.nbytes(target.size)]
        here = backend.to_host(target)
        codec.add(data, here, scale)
        if here is not target:
            target[...] = backend.module_of(target).asarray(here)

    def catch_up(self) -> tuple[float, float, int]:
        """Fetch all parameters as the servers have them, when all workers are here.

        Collective over the workers, on the main thread, with nothing under way.

        Returns
        -------
        (float, float, int)
            Losses, right answers and samples of other workers that were not told yet.
        """
        terms, riders = self._trade.terms, self._flat.riders
        slices = self._flat.slices
        if terms.sync and self._codec is None:
            slices = [slices[index] for index in self.rows.slices]
        if not slices:
            return 0.0, 0.0, 0
        self.rows.flush()
        self.behind = False
        self._trade.group.barrier()
        before = backend.to_host(riders).copy()
        for piece in slices:
            self._pull(piece)
        told = backend.to_host(riders).copy()
        riders[:] = backend.module_of(riders).asarray(before)
        self._trade.group.barrier()
        if terms.sync:
            return 0.0, 0.0, 0
        return float(told[LOSS]), float(told[CORRECT]), round(float(told[COUNT]))

    def _pull(self, piece: Slice) -> None:
        values = []
        for server, (a, b) in enumerate(self._trade.places[piece.index]):
            if a == b:
                continue
            letter, value = self._post.room(0), self._room(piece.index, server)
            letter.seal(Header(Op.PULL, piece.index, 0, a, b - a), self._post.debug)
            receiving = self._post.receive(value, server, reply_tag(piece.index))
            self._post.send(letter, server, PUSH).wait()
            receiving.wait()
            letter.close()
            values.append((server, value))
        self._values[piece.index] = values
        self.land(piece)

    def nbytes(self, piece: Slice) -> int:
        """Return how many bytes this rank sends for a slice."""
        if piece.index in self.rows.slices:
            return self.rows.nbytes(piece.index)
        return body_bytes(self._codec, piece.stop - piece.start, 0, self._buffer.dtype)

    def own(self, piece: Slice) -> tuple[int, int]:
        """Return nothing of ``piece``: the servers update it."""
        return piece.start, piece.start

    def rescale(self, factor: float) -> None:
        """Scale what compression owes, which is in units of the gradient."""
        self.debts.rescale(factor)
