"""Which ranks have which groups of a symbol: ``group2ctx`` with numbers of ranks.

with hpctrain.AttrScope(ctx_group="embed"): ...
Module(symbol, group2ctx={"embed": 0, "decode": 1})
Module(symbol, group2ctx={"embed": [0, 2], "decode": [1, 3]})    # two copies
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from hpctrain.autograd import Spec
from hpctrain.backend import Device, module_of, to_host
from hpctrain.comm.agree import agree
from hpctrain.comm.group import Group
from hpctrain.comm.progress import Log
from hpctrain.errors import ConfigError
from hpctrain.io.sampler import part
from hpctrain.parallel.keyed import buckets
from hpctrain.parallel.kvstore import everyone, watch
from hpctrain.parallel.scattered_run import Wire
from hpctrain.symbol import Symbol
from hpctrain.symbol.placing import groups_of

__all__ = ["Places", "as_places", "gathered"]

_TAG = 1


class Places:
    """The ranks of the groups of a symbol.

    Parameters
    ----------
    columns : mapping of str to sequence of int
        By group: its rank in each copy of the model.
    group : Group
        All ranks.
    watches : bool
        Whether it is that of `everyone`, so that stalls can be reported.

    Attributes
    ----------
    by_group : dict of str to int
        The place of each group; groups on the same ranks have one place.
    rest : int
        The place of what has no group.
    copies : int
        How often the model is there.
    copy : int or None
        Which copy this rank has a part of.
    """

    def __init__(
        self, columns: Mapping[str, Sequence[int]], group: Group, watches: bool = False
    ) -> None:
        found = list(dict.fromkeys(tuple(ranks) for ranks in columns.values()))
        self.by_group = {name: found.index(tuple(ranks)) for name, ranks in columns.items()}
        self.copies, self.rest = len(found[0]), 0
        if self.copies == 1:
            found += [] if (0,) in found else [(0,)]
            self.rest = found.index((0,))
        self.columns, self.group = found, group
        mine = [c for c in range(self.copies) for ranks in found if ranks[c] == group.rank]
        self.copy = mine[0] if mine else None
        self._joined: tuple[Wire, Group | None] | None = None
        self._watches, self._log = watches, Log()

    @property
    def ranks(self) -> list[int]:
        """The ranks of the places in this rank's copy, or in the first."""
        return [ranks[self.copy or 0] for ranks in self.columns]

    def rows(self, count: int) -> slice:
        """Return which of ``count`` rows this rank's copy takes."""
        return slice(0, 0) if self.copy is None else part(count, self.copy, self.copies)

    def join(self, facts: Mapping[str, str]) -> None:
        """Compare facts and make the communicators, once; collective.

        Raises
        ------
        ConfigError
            On all ranks, if the facts differ.
        """
        agree(self.group, {**facts, "group2ctx": f"{self.by_group} of {self.columns}"})
        if self._joined is not None:
            return
        sums = None
        if self.copies > 1:
            where = [i for i, ranks in enumerate(self.columns) if self.group.rank in ranks]
            sums = self.group.split(where[0] if where else len(self.columns), self.group.rank)
        self._joined = Wire(self.group.dup()), sums

    @property
    def wire(self) -> Wire:
        """What carries messages between the places."""
        assert self._joined is not None, "join comes first"
        return self._joined[0]

    @contextmanager
    def watched(self, stall_s: float, abort_s: float) -> Iterator[None]:
        """Report who keeps others waiting while the block runs; collective, after `join`.

        Parameters
        ----------
        stall_s, abort_s : float, s
            See `hpctrain.comm.stall.Watch`.
        """
        if not self._watches:
            yield
            return
        assert self._joined is not None, "join comes first"
        watching, sums = watch(stall_s, abort_s), self._joined[1]
        self.wire.watch(watching.logs)
        if sums is not None:
            self._log = watching.logs.among(sums, "sum over copies")
        with watching:
            yield
        self.wire.watch(None)
        self._log = Log()

    def any(self, here: object) -> bool:
        """Return whether something is true on any rank; collective."""
        found = np.array([bool(here)], np.int64)
        self.group.allreduce(found, "max")
        return bool(found[0])

    def add(self, arrays: Sequence[Any]) -> None:
        """Sum arrays over the copies in place, small ones together; collective among them."""
        assert self._joined is not None, "join comes first"
        group = self._joined[1]
        if group is None:
            return
        for number, bucket in enumerate(buckets(arrays)):
            xp = module_of(bucket[0])
            packed = xp.concatenate([array.reshape(-1) for array in bucket])
            self._log.posted(number, self._log.sequence)
            group.allreduce(packed)
            self._log.completed(number)
            start = 0
            for array in bucket:
                array[...] = packed[start : start + array.size].reshape(array.shape)
                start += array.size

    def joined(self, mine: Mapping[str, Any], specs: Mapping[str, Spec]) -> list[np.ndarray]:
        """Return arrays of all copies, rows joined, on every rank; collective.

        Parameters
        ----------
        mine : mapping of str to array
            What this rank's copy has here.
        specs : mapping of str to Spec
            By the same names, but for the rows.
        """
        own = {f"{name} {self.copy}": to_host(array) for name, array in mine.items()}
        every, found = gathered(self.group, own), []
        for name, spec in specs.items():
            keys = [f"{name} {copy}" for copy in range(self.copies)]
            there = [every[key] for key in keys if key in every]
            empty = np.empty((0, *spec.shape[1:]), spec.dtype)
            found.append(np.concatenate(there) if len(there) > 1 else [*there, empty][0])
        return found


def as_places(
    group2ctx: Mapping[str, Any] | None, symbol: Symbol, group: Group | None = None
) -> Places | None:
    """Return the places that a user has named; None for devices of this rank alone.

    Parameters
    ----------
    group2ctx : mapping of str to (int, sequence of int, or Device)
    symbol : Symbol
    group : Group, optional
        What the numbers count; all ranks, with MPI started here, if None.

    Raises
    ------
    ConfigError
        For groups that the symbol has not, ranks that are not there, unequal copies, and
        several GPUs.
    """
    if not group2ctx:
        return None
    known = groups_of(symbol.heads)
    for name in group2ctx:
        if name not in known:
            raise ConfigError(
                f"group2ctx: got the group {name!r}, needed one of the symbol's: "
                f"{', '.join(known) or 'none; name them by AttrScope(ctx_group=...)'}"
            )
    devices = [value for value in group2ctx.values() if isinstance(value, Device)]
    if len(devices) == len(group2ctx) and all(d.kind == "cpu" for d in devices):
        return None
    watches, group = group is None, everyone() if group is None else group
    columns = {name: _ranks(name, value, group.size) for name, value in group2ctx.items()}
    first = next(iter(columns))
    for name, ranks in columns.items():
        if len(ranks) != len(columns[first]):
            raise ConfigError(
                f"group2ctx: got {len(ranks)} ranks for {name!r} and {len(columns[first])} "
                f"for {first!r}, needed as many for each, one for each copy"
            )
    _check_apart(columns)
    return Places(columns, group, watches)


def _ranks(name: str, value: Any, size: int) -> list[int]:
    listed = list(value) if isinstance(value, list | tuple) else [value]
    for rank in listed or [value]:
        whole = isinstance(rank, int | np.integer) and not isinstance(rank, bool)
        if not whole:
            raise ConfigError(
                f"group2ctx: got {rank!r} for {name!r}, needed the number of a rank, or a "
                "list of them; start one rank for each device"
            )
        if not 0 <= rank < size:
            raise ConfigError(
                f"group2ctx: got rank {rank} for {name!r}, needed 0 to {size - 1}; start more "
                "ranks with mpirun -n"
            )
    return [int(rank) for rank in listed]


def _check_apart(columns: Mapping[str, Sequence[int]]) -> None:
    """Raise unless each rank is in one copy, and the copies are divided alike."""
    owner: dict[int, tuple[str, tuple[int, ...]]] = {}
    for name, ranks in columns.items():
        for rank in ranks:
            other, column = owner.setdefault(rank, (name, tuple(ranks)))
            if column != tuple(ranks) or ranks.count(rank) > 1:
                raise ConfigError(
                    f"group2ctx: got rank {rank} in {list(column)} of {other!r} and in "
                    f"{list(ranks)} of {name!r}, needed each rank in one copy, with the same "
                    "groups in each copy"
                )


def gathered(
    group: Group, mine: Mapping[str, np.ndarray], root: int | None = None
) -> dict[str, np.ndarray]:
    """Return the named arrays of all ranks; collective.

    Parameters
    ----------
    group : Group
    mine : mapping of str to ndarray
        On the host; no name on two ranks.
    root : int, optional
        The only rank that gets them; all do if None.
    """
    heads = group.allgather_obj([[n, str(a.dtype), list(a.shape)] for n, a in mine.items()])
    found: dict[str, np.ndarray] = {}
    for rank, rows in enumerate(heads):
        for name, dtype, shape in rows:
            if root not in (None, group.rank):
                if rank == group.rank:
                    group.send(np.ascontiguousarray(mine[name]), root or 0, _TAG)
                continue
            own = rank == group.rank
            found[name] = np.array(mine[name], order="C") if own else np.empty(shape, dtype)
            if root is None:
                group.bcast(found[name], rank)
            elif not own:
                group.recv(found[name], rank, _TAG)
    return found
