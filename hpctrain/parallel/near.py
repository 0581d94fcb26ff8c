"""Workers and servers on one host: gradients and parameters stay in memory that both see."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from hpctrain.backend import CPU
from hpctrain.comm.post import Post
from hpctrain.comm.transfer import Flat
from hpctrain.comm.window import PAGE, Window, hosts_of, room_bytes, share
from hpctrain.parallel.state import ModelState
from hpctrain.parallel.terms import Terms
from hpctrain.parallel.work import Options

__all__ = ["NEAR", "Near", "nobody", "shared"]

NEAR = 2  # flag of a letter: what it stands for lies in memory that both sides see


class Near:
    """Buffers of the workers on this host.

    A server reads gradients where the worker has computed them, and writes parameters where
    the worker reads them; only the header of a letter travels. When a worker pushes a slice it
    has done with the parameters of that slice, and it leaves the gradient alone until the
    answer: so who may touch what follows from the letters.

    Parameters
    ----------
    window : Window or None
        Of the ranks of this host; None if nothing is shared.
    here : sequence of int
        The ranks of this host, in the order of the window.
    workers : sequence of int
        Those whose buffers lie there.
    total : int
        Elements of a buffer.
    dtype : dtype
    """

    def __init__(
        self,
        window: Window | None,
        here: Sequence[int],
        workers: Sequence[int],
        total: int,
        dtype: Any,
    ) -> None:
        self._window, self._here = window, frozenset(here)
        self._grads: dict[int, Flat] = {}
        self._weights: dict[int, Flat] = {}
        for rank in workers:
            assert window is not None, "who shares has a window"
            both = window.of(here.index(rank)).view(dtype)
            self._grads[rank], self._weights[rank] = both[:total], both[total : 2 * total]

    def __contains__(self, rank: int) -> bool:
        return rank in self._grads

    @property
    def workers(self) -> list[int]:
        """The workers whose buffers lie here."""
        return list(self._grads)

    def reaches(self, server: int) -> bool:
        """Whether a server sees what lies here."""
        return server in self._here

    def grads(self, rank: int) -> Flat:
        """Return the gradients of a worker, shape (total,)."""
        return self._grads[rank]

    def weights(self, rank: int) -> Flat:
        """Return the parameters of a worker, shape (total,)."""
        return self._weights[rank]

    def weights_of(self, workers: Sequence[int]) -> list[Flat]:
        """Return the parameters of those of some workers that lie here."""
        return [self._weights[worker] for worker in workers if worker in self]

    def sync(self) -> None:
        """Make own writes visible, and see those of others that a letter has told of."""
        if self._window is not None:
            self._window.sync()

    def free(self) -> None:
        """Give the memory back; collective over the host; a second call does nothing."""
        self._grads, self._weights = {}, {}
        window, self._window = self._window, None
        if window is not None:
            window.free()


def nobody() -> Near:
    """Return that of a rank that shares nothing."""
    return Near(None, (), (), 0, np.float32)


def shared(post: Post, state: ModelState, options: Options, terms: Terms) -> Near:
    """Return what servers and workers of this host share; collective over all ranks.

    Where memory is short, or travels in another form than it lies in, nothing is shared.
    Gradients and parameters of a worker must move there afterwards.

    Parameters
    ----------
    post : Post
        Over all ranks.
    state : ModelState
        The same on all ranks, but for where it lies.
    options : Options
    terms : Terms
    """
    flat = state.flat
    need = 2 * flat.total * flat.dtype.itemsize
    # Who dies leaves memory behind that nobody may free.
    plain = terms.shared and not (options.shard or terms.tolerate) and terms.codec() is None
    facts = post.rank >= terms.servers and plain and state.device == CPU, room_bytes()
    told = post.group.allgather_obj(facts)
    hosts = hosts_of(post.group)
    here = [rank for rank, host in enumerate(hosts) if host == hosts[post.rank]]
    workers = [rank for rank in here if told[rank][0]]
    room = need * len(workers) + (len(here) + 1) * PAGE
    served = any(rank < terms.servers for rank in here)
    group = share(post.group, hosts[post.rank])
    # The ranks have looked one after the other: go by what one of them has seen.
    free = told[here[0]][1]
    if not workers or not served or (free is not None and free < room):
        group.free()
        return nobody()
    with group:
        window = Window(group, need if post.rank in workers else 0)
    return Near(window, here, workers, flat.total, flat.dtype)
