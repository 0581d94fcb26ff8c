"""What stores with servers say and send: values in parts, rows, state of an optimizer."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from hpctrain.autograd import Tensor
from hpctrain.backend import to_host
from hpctrain.comm.compress import Codec
from hpctrain.comm.letter import Header, Letter, Op
from hpctrain.comm.post import CONTROL, PUSH, Post, reply_tag
from hpctrain.comm.request import Handle
from hpctrain.comm.words import hear, say
from hpctrain.errors import CheckpointError
from hpctrain.parallel.flat import Slice
from hpctrain.parallel.keyserver import WHOLE
from hpctrain.parallel.placement import place
from hpctrain.parallel.updater import Key

__all__ = ["KeyLinks"]

ROWS_EACH = 8  # a value with so many rows for each server is divided between rows

Flat = np.ndarray[Any, np.dtype[Any]]


class KeyLinks:
    """The links of a worker with the servers of a store.

    Parameters
    ----------
    post : Post
        Over all ranks.
    servers : int
    leads : bool
        Whether this worker gives the orders.

    Attributes
    ----------
    widths : dict of key to int
        The length of a row, of values divided between rows; else 0.
    codec : Codec or None
        For float32.
    """

    def __init__(self, post: Post, servers: int, leads: bool) -> None:
        self.post, self.servers, self.leads = post, servers, leads
        self.widths: dict[Key, int] = {}
        self.codec: Codec | None = None
        self._specs: dict[Key, Any] = {}
        self._index: dict[Key, int] = {}
        self._parts: dict[Key, list[tuple[int, int]]] = {}
        self._owed: dict[tuple[Key, int], Any] = {}

    def ask(self, do: str, **words: Any) -> None:
        """Let the worker that leads give an order to all servers, and wait for them."""
        for server in range(self.servers) if self.leads else ():
            say(self.post, server, {"do": do, **words})
            hear(self.post)

    def add(self, values: Mapping[Key, Tensor]) -> None:
        """Divide new values among the servers, and send the first worker's."""
        for name, value in values.items():
            self._cut(name, value)
        for server in range(self.servers) if self.leads else ():
            keys = [
                [name, b - a, self.widths[name], value.dtype.str]
                for name, value in values.items()
                for a, b in [self._parts[name][server]]
            ]
            say(self.post, server, {"do": "init", "keys": keys})
            for name, value in values.items():
                self._send_part(name, value, server)
            hear(self.post)

    def put(self, name: Key, value: Tensor) -> None:
        """Send another value, that of the first worker."""
        for server in range(self.servers) if self.leads else ():
            say(self.post, server, {"do": "put", "key": self._index[name]})
            self._send_part(name, value, server)
            hear(self.post)

    def _cut(self, name: Key, value: Tensor) -> None:
        rows = value.shape[0] if len(value.shape) > 1 else 0
        width = value.size // rows if rows >= ROWS_EACH * self.servers else 0
        whole = [Slice(0, 0, value.size, ())]
        self._parts[name] = place(whole, self.servers, {0: width} if width else None)[0]
        self.widths[name], self._index[name] = width, len(self._index)
        self._specs[name] = value.spec

    def _send_part(self, name: Key, value: Tensor, server: int) -> None:
        a, b = self._parts[name][server]
        flat = to_host(value.array).reshape(-1)
        self.post.group.send(np.ascontiguousarray(flat[a:b]), server, CONTROL + 1)

    def push(self, name: Key, flat: Flat, header: Header) -> None:
        """Send a gradient to the servers, and wait until they have it."""
        sent = []
        for server, (a, b) in enumerate(self._parts[name]):
            if self.codec is None or flat.dtype != np.float32 or a == b:
                letter = self.post.room((b - a) * flat.itemsize)
                letter.view(flat.dtype, b - a)[:] = flat[a:b]
            else:
                letter = self.post.room(self.codec.nbytes(b - a))
                owed = self._owed.setdefault((name, server), np.zeros(b - a, np.float32))
                self.codec.encode(np.ascontiguousarray(flat[a:b]), letter.body, owed)
            own = header._replace(key=self._index[name], offset=a, length=b - a)
            sent.append((self._send(server, letter, own), letter))
        for handle, letter in sent:
            handle.wait()
            letter.close()

    def _send(self, server: int, letter: Letter, header: Header) -> Handle:
        letter.seal(header, self.post.debug)
        return self.post.send(letter, server, PUSH)

    def expect(self, name: Key) -> list[tuple[Letter, Handle]]:
        """Make room for what all servers will answer about a key."""
        found = []
        for server, (a, b) in enumerate(self._parts[name]):
            letter = self.post.room((b - a) * self._specs[name].dtype.itemsize)
            tag = reply_tag(self._index[name])
            found.append((letter, self.post.receive(letter, server, tag)))
        return found

    def collect(self, name: Key, rooms: list[tuple[Letter, Handle]]) -> Flat:
        """Wait for the answers, and return the value."""
        spec = self._specs[name]
        found = np.empty(spec.shape, spec.dtype)
        flat = found.reshape(-1)
        for (a, b), (letter, handle) in zip(self._parts[name], rooms, strict=True):
            handle.wait()
            flat[a:b] = letter.view(flat.dtype, b - a)
            letter.close()
        return found

    def fetch(self, name: Key, version: int) -> Flat:
        """Return a value as the servers have it after so many pushes of this worker."""
        rooms = self.expect(name)
        for server in range(self.servers):
            letter = self.post.room(0)
            self._send(server, letter, Header(Op.PULL, self._index[name], version)).wait()
            letter.close()
        return self.collect(name, rooms)

    def flush(self, name: Key, version: int) -> None:
        """Wait until the servers have taken in so many pushes of this worker."""
        header = Header(Op.PULL, self._index[name], version, flags=WHOLE)
        for server in range(self.servers):
            room, letter = self.post.room(0), self.post.room(0)
            handle = self.post.receive(room, server, reply_tag(self._index[name]))
            self._send(server, letter, header).wait()  # no row is asked for
            handle.wait()
            letter.close()
            room.close()

    def push_rows(self, name: Key, numbers: Flat, values: Flat, header: Header) -> None:
        """Send rows to the servers that keep them; to each a letter, empty or not."""
        for server, mine, local in self._by_server(name, numbers):
            rows = values[mine]
            letter = self.post.room(local.nbytes + rows.nbytes)
            letter.view(np.int64, local.size)[:] = local
            letter.view(rows.dtype, rows.size, local.nbytes)[:] = rows.reshape(-1)
            own = header._replace(key=self._index[name], flags=WHOLE, number=local.size)
            self._send(server, letter, own).wait()
            letter.close()

    def fetch_rows(self, name: Key, numbers: Flat, version: int) -> Flat:
        """Return rows as the servers have them."""
        spec, width = self._specs[name], self.widths[name]
        found = np.empty((numbers.size, width), spec.dtype)
        header = Header(Op.PULL, self._index[name], version, flags=WHOLE)
        for server, mine, local in self._by_server(name, numbers):
            room = self.post.room(local.size * width * spec.dtype.itemsize)
            handle = self.post.receive(room, server, reply_tag(self._index[name]))
            letter = self.post.room(local.nbytes)
            letter.view(np.int64, local.size)[:] = local
            self._send(server, letter, header._replace(number=local.size)).wait()
            handle.wait()
            found[mine] = room.view(spec.dtype, local.size * width).reshape(-1, width)
            letter.close()
            room.close()
        return found.reshape(numbers.size, *spec.shape[1:])

    def _by_server(self, name: Key, numbers: Flat) -> Iterator[tuple[int, Any, Flat]]:
        """Yield each server, which of the numbers it keeps, and their places there."""
        width = self.widths[name]
        for server, (a, b) in enumerate(self._parts[name]):
            mine = (numbers >= a // width) & (numbers < b // width)
            yield server, mine, numbers[mine] - a // width

    def state(self) -> dict[str, Flat]:
        """Return the optimizer's state from all servers, on the worker that leads."""
        parts = [self._state_of(server) for server in range(self.servers)]
        return {
            name: array
            if name.endswith("/steps")
            else np.concatenate([part[name] for part in parts])
            for name, array in parts[0].items()
        }

    def _state_of(self, server: int) -> dict[str, Flat]:
        say(self.post, server, {"do": "save"})
        found = {}
        for name, kind, count in hear(self.post)[1]:
            found[name] = np.empty(count, np.dtype(kind))
            self.post.group.recv(found[name], server, CONTROL + 1)
            if name.endswith("/steps"):
                found[name] = found[name].reshape(())
        hear(self.post)
        return found

    def load(self, arrays: Mapping[str, Any]) -> None:
        """Send the optimizer's state to all servers, from the worker that leads."""
        for server in range(self.servers):
            self._send_state(server, arrays)

    def _send_state(self, server: int, arrays: Mapping[str, Any]) -> None:
        keys = {str(key): key for key in self._index}
        cut = {}
        for name, array in arrays.items():
            key = keys.get(name.rpartition("/")[0])
            if key is None:
                raise CheckpointError(
                    f"optimizer states: got {name!r}, which fits no key; load the states of "
                    "the same model"
                )
            a, b = self._parts[key][server]
            flat = np.ascontiguousarray(array).reshape(-1)
            cut[name] = flat if name.endswith("/steps") else np.ascontiguousarray(flat[a:b])
        listing = [[name, array.dtype.str, array.size] for name, array in cut.items()]
        say(self.post, server, {"do": "load", "arrays": listing})
        for array in cut.values():
            self.post.group.send(array, server, CONTROL + 1)
        hear(self.post)
