"""A worker's dealings with servers: orders, and what they keep of the optimizer."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from hpctrain.comm.group import Group
from hpctrain.comm.post import Post
from hpctrain.comm.words import hear, say
from hpctrain.optim import Optimizer, Schedule
from hpctrain.parallel.flat import FlatParameters
from hpctrain.parallel.losses import Losses, nobody_dies
from hpctrain.parallel.near import nobody
from hpctrain.parallel.placement import Places, place
from hpctrain.parallel.terms import Terms

__all__ = ["STATE_TAG", "Trade"]

STATE_TAG = 3  # of arrays of the optimizer's state


class Trade:
    """What workers have to do with servers.

    Parameters
    ----------
    post : Post
        Over all ranks.
    terms : Terms
    group : Group
        The workers. The first of them gives the servers orders, when all are ready for it.
    losses : Losses, optional
        Ranks that die while the others go on.

    Attributes
    ----------
    places : Places
        Which server keeps what.
    near : Near
        Memory that is shared with servers of this host.
    """

    def __init__(
        self, post: Post, terms: Terms, group: Group, losses: Losses | None = None
    ) -> None:
        self.post, self.terms, self.group = post, terms, group
        self.losses = losses or nobody_dies()
        self.near = nobody()
        self.places: Places = []
        self._state_names: tuple[str, ...] = ()
        self._dtype = np.dtype(np.float32)
        self._total = 0

    @property
    def leads(self) -> bool:
        """Whether this worker gives the orders."""
        return self.group.rank == 0

    def is_far(self, server: int) -> bool:
        """Return whether this worker shares no memory with a server."""
        return self.post.rank not in self.near or not self.near.reaches(server)

    def open(
        self, flat: FlatParameters, names: Mapping[str, Any], tables: Mapping[int, int]
    ) -> None:
        """Tell the servers how parameters are cut, so that they can begin.

        Parameters
        ----------
        flat : FlatParameters
            Cut already.
        names : mapping
            The arrays of the optimizer, by name.
        tables : mapping of int to int
            Parameters with a slice of their own, and the length of their rows.
        """
        alone = {s.parameters[0]: s.index for s in flat.slices if len(s.parameters) == 1}
        widths = {alone[which]: width for which, width in tables.items()}
        self.places = place(flat.slices, self.terms.servers, widths)
        self._state_names, self._dtype, self._total = tuple(names), flat.dtype, flat.total
        self.order("open", limit=flat.limit, tables=list(tables.items()))

    def order(self, do: str, **words: Any) -> None:
        """Let the first worker tell all servers to do something."""
        if self.leads:
            for server in range(self.terms.servers):
                say(self.post, server, {"do": do, **words})

    def ask(self, do: str, **words: Any) -> list[Any]:
        """Return what all servers say, on the first worker; nothing on the others."""
        self.order(do, **words)
        return self._heard() if self.leads else []

    def _heard(self) -> list[Any]:
        """Return what each server says next."""
        said = dict(hear(self.post, self.losses.news) for _ in range(self.terms.servers))
        return [said[server] for server in sorted(said)]

    def start(self, step: int, scale: Mapping[str, float]) -> None:
        """Tell the servers which step comes next, and the loss scale; collective.

        No worker goes on before all servers have heard of it: its gradients could come first.
        """
        self.ask("start", step=step, scale=dict(scale))
        self.group.barrier()

    def change(
        self,
        optimizer: Optimizer | None = None,
        schedule: Schedule | None = None,
        clip_norm: float | None = None,
    ) -> None:
        """Let the servers go on with other settings; with no step under way, on all workers.

        The optimizer's state goes on where it has the names of before, and else begins anew.
        """
        words: dict[str, Any] = {"clip_norm": clip_norm}
        words["optimizer"] = optimizer and optimizer.describe()
        words["schedule"] = schedule and schedule.describe()
        if optimizer is not None:
            self._state_names = tuple(optimizer.state_names)
        self.ask("change", **words)
        self.group.barrier()

    def fetch(self) -> dict[str, np.ndarray[Any, np.dtype[Any]]]:
        """Return the optimizer's state in whole buffers, on the first worker; collective."""
        self.order("fetch")
        if not self.leads:
            self.group.barrier()  # nobody goes on while the state is read
            return {}
        found = {name: np.zeros(self._total, self._dtype) for name in self._state_names}
        for server, spans in self._spans():
            for array in found.values():
                part = np.empty(sum(b - a for a, b in spans), self._dtype)
                self.post.group.recv(part, server, STATE_TAG)
                start = 0
                for a, b in spans:
                    array[a:b] = part[start : start + b - a]
                    start += b - a
        self.group.barrier()
        return found

    def store(self, arrays: Mapping[str, np.ndarray[Any, np.dtype[Any]]]) -> None:
        """Give the servers ``weights`` and the optimizer's state, in whole buffers.

        Of the first worker; collective over the workers.
        """
        self.order("store")
        for server, spans in self._spans() if self.leads else ():
            for name in ("weights", *self._state_names):
                part = np.concatenate([arrays[name][a:b] for a, b in spans])
                self.post.group.send(part, server, STATE_TAG)
        if self.leads:
            self._heard()  # a gradient of another worker could come first
        self.group.barrier()

    def _spans(self) -> list[tuple[int, list[tuple[int, int]]]]:
        """Return for each server what it keeps, slice by slice."""
        return [
            (server, [parts[server] for parts in self.places])
            for server in range(self.terms.servers)
        ]

    def close(self, **words: Any) -> None:
        """Let the servers end; collective over the workers, with nothing under way."""
        self.group.barrier()
        self.order("stop", **words)
