"""The server of key-value stores: values by key, in rounds or at once."""

import time
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from hpctrain import optim
from hpctrain.autograd import Tensor
from hpctrain.comm.compress import Codec, codec
from hpctrain.comm.letter import Header, Letter, Op
from hpctrain.comm.post import CONTROL, PUSH, Post, reply_tag
from hpctrain.comm.request import Handle
from hpctrain.comm.words import read, say
from hpctrain.errors import CommError
from hpctrain.parallel.rounds import Rounds
from hpctrain.parallel.updater import Key, Updater

__all__ = ["KEEP", "WHOLE", "KeyServer"]

PAUSE_S = 1e-4
WHOLE, KEEP = 1, 2  # flags: rows, not all of a part; a sum that leaves the stored value alone

Flat = np.ndarray[Any, np.dtype[Any]]
_Push = tuple[int, Header, Letter]


class KeyServer:
    """Keeps its parts of all values; made and run on a rank that serves.

    Parameters
    ----------
    post : Post
        Over all ranks.
    servers : int
        The first ranks; the others work.
    sync : bool
        One update for the pushes of all workers, else one for each as it comes.
    """

    def __init__(self, post: Post, servers: int, sync: bool) -> None:
        self.updater: Updater | None = None
        self._post, self._sync = post, sync
        self._workers = range(servers, post.size)
        self._rounds = Rounds(self._workers)
        self._names: list[Key] = []
        self._values: list[Tensor] = []
        self._closed: list[int] = []  # rounds of each key
        self._waiting: list[tuple[int, Header, Letter]] = []  # pulls, for a round
        self._codec: Codec | None = None
        self._coming: deque[tuple[int, Letter, Handle]] = deque()
        self._orders: dict[str, Callable[[int, dict[str, Any]], Any]] = {
            "init": self._init, "optimizer": self._optimize, "compress": self._compress,
            "save": self._save, "load": self._load, "put": self._put,
        }  # fmt: skip

    def run(self) -> None:
        """Serve until the workers close the store."""
        while True:
            heard = self._listen()
            if heard is False:
                return
            self._coming += self._post.arrivals(PUSH)
            moved = heard is not None
            while self._coming and self._coming[0][2].test():
                source, letter, _ = self._coming.popleft()
                self._take(source, letter)
                moved = True
            if not moved:
                time.sleep(PAUSE_S)

    def _listen(self) -> bool | None:
        """Obey an order; None if there is none, False if it is the last."""
        for source, letter, handle in self._post.arrivals(CONTROL, most=1):
            handle.wait()
            words = read(letter, source)
            if words["do"] == "stop":
                return False
            say(self._post, source, self._orders[words["do"]](source, words))
            return True
        return None

    def _receive(self, source: int, array: Flat) -> None:
        self._post.group.recv(array, source, CONTROL + 1)

    def _init(self, source: int, words: dict[str, Any]) -> bool:
        """Take first values of new keys."""
        for name, count, width, kind in words["keys"]:
            array = np.empty(count, np.dtype(kind))
            self._receive(source, array)
            self._names.append(name)
            self._values.append(Tensor(array.reshape(-1, width) if width else array))
            self._closed.append(0)
        return True

    def _put(self, source: int, words: dict[str, Any]) -> bool:
        """Take another value of a key; nothing is updated."""
        value = self._values[words["key"]].array
        array = np.empty(value.size, value.dtype)
        self._receive(source, array)
        value[...] = array.reshape(value.shape)
        return True

    def _optimize(self, source: int, words: dict[str, Any]) -> bool:
        """Update from now on by these settings; state that fits goes on."""
        made = Updater(optim.create(**words["optimizer"]))
        before = self.updater
        if before is not None and before.optimizer.state_names == made.optimizer.state_names:
            made.restore(before.state(), dict(zip(self._names, self._values, strict=True)))
        made.wd_mult.update(dict(words["wd_mult"]))
        self.updater = made
        return True

    def _compress(self, source: int, words: dict[str, Any]) -> bool:
        self._codec = codec(words["type"], threshold=words["threshold"])
        return True

    def _save(self, source: int, words: dict[str, Any]) -> list[Any]:
        """Send the optimizer's state: what is there now, then the arrays."""
        state = {} if self.updater is None else self.updater.state()
        say(self._post, source, [[n, a.dtype.str, a.size] for n, a in state.items()])
        for array in state.values():
            self._post.group.send(array.reshape(-1), source, CONTROL + 1)
        return []

    def _load(self, source: int, words: dict[str, Any]) -> list[Any]:
        """Take the optimizer's state."""
        found = {}
        for name, kind, count in words["arrays"]:
            found[name] = np.empty(count, np.dtype(kind))
            self._receive(source, found[name])
            if name.endswith("/steps"):
                found[name] = found[name].reshape(())
        assert self.updater is not None, "state belongs to an optimizer"
        self.updater.restore(found, dict(zip(self._names, self._values, strict=True)))
        return []

    def _take(self, source: int, letter: Letter) -> None:
        header = letter.open(f"letter from rank {source}")
        if header.key >= len(self._values):
            raise CommError(
                f"kvstore: rank {source} names key {header.key}, which is not there"
            )
        if header.op == Op.PULL:
            self._waiting.append((source, header, letter))
        elif self._sync:
            closed = self._rounds.push(header.key, source, (source, header, letter))
            if closed is not None:
                self._close(header.key, closed)
        else:
            self._close(header.key, [(source, header, letter)])
        self._answer_pulls()

    def _close(self, key: int, pushes: list[_Push]) -> None:
        """Sum some pushes, in worker order, and update."""
        self._closed[key] += 1
        value, first = self._values[key], pushes[0][1]
        kinds = {header.flags for _, header, _ in pushes}
        if len(kinds) > 1:
            raise CommError(
                f"kvstore: in a round of {self._names[key]!r} workers push in different ways, "
                "needed push, pushpull or row_sparse_push on all"
            )
        if WHOLE in kinds:
            self._update_rows(key, pushes)
        else:
            total = self._sum(value.array, [letter for _, _, letter in pushes])
            if first.flags & KEEP:
                for source, header, _ in pushes:
                    self._send(source, header, total)
            elif self.updater is None:
                value.array[...] = total
            else:
                self._set(first)
                self.updater(self._names[key], Tensor(total), value)
        for _, _, letter in pushes:
            letter.close()

    def _set(self, header: Header) -> None:
        """Take rate and scale from the worker: its schedule counts its own steps."""
        assert self.updater is not None, "it is asked for before"
        self.updater.lr, self.updater.scale = header.scale, header.share

    def _sum(self, like: Flat, letters: list[Letter]) -> Flat:
        total = np.zeros(like.size, like.dtype)
        for letter in letters:
            if self._codec is not None and like.dtype == np.float32 and like.size:
                self._codec.add(letter.body[: self._codec.nbytes(like.size)], total)
            else:
                total += letter.view(like.dtype, like.size)
        return total.reshape(like.shape)

    def _update_rows(self, key: int, pushes: list[_Push]) -> None:
        """Update the rows that any of the pushes has; the others and their state stay."""
        value = self._values[key].array
        parts = []
        for _, header, letter in pushes:
            ids = letter.view(np.int64, header.number)
            rows = letter.view(value.dtype, header.number * value.shape[1], ids.nbytes)
            parts.append((ids, rows.reshape(-1, value.shape[1])))
        touched = np.unique(np.concatenate([ids for ids, _ in parts]))
        total = np.zeros((touched.size, value.shape[1]), value.dtype)
        for ids, rows in parts:
            np.add.at(total, np.searchsorted(touched, ids), rows)
        if self.updater is None:
            value[...] = 0
            value[touched] = total
        else:
            self._set(pushes[0][1])
            self.updater.rows(self._names[key], touched, total, self._values[key])

    def _answer_pulls(self) -> None:
        """Answer pulls whose round is over: those of a worker follow its last push."""
        left = []
        for source, header, letter in self._waiting:
            if self._sync and self._closed[header.key] < header.version:
                left.append((source, header, letter))
                continue
            value = self._values[header.key].array
            if header.flags & WHOLE:
                value = value[letter.view(np.int64, header.number)]
            self._send(source, header, value)
            letter.close()
        self._waiting = left

    def _send(self, dest: int, header: Header, value: Flat) -> None:
        answer = self._post.room(value.nbytes)
        answer.view(value.dtype, value.size)[:] = value.reshape(-1)
        sealed = header._replace(op=Op.VALUE, flags=0, dtype=value.dtype.char)
        answer.seal(sealed, self._post.debug)
        self._post.send(answer, dest, reply_tag(header.key)).wait()
        answer.close()
