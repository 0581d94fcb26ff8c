"""The way of the gradients of a model: a path for their buffers, and the buffers on it."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hpctrain.backend import CPU
from hpctrain.comm import paths
from hpctrain.comm.compress import Codec
from hpctrain.comm.group import Group
from hpctrain.comm.link import bytes_sent, measure
from hpctrain.comm.progress import Log
from hpctrain.comm.rows import Rows
from hpctrain.comm.timeline import Link
from hpctrain.comm.transport import MpiTransport, Transport
from hpctrain.errors import ConfigError
from hpctrain.graph.native import available
from hpctrain.parallel.flat import FlatParameters
from hpctrain.parallel.near import shared
from hpctrain.parallel.shards import Sums
from hpctrain.parallel.state import ModelState
from hpctrain.parallel.trade import Trade
from hpctrain.parallel.work import Options

__all__ = ["Way", "connect", "plain", "to_servers"]


@dataclass(frozen=True, slots=True)
class Way:
    """How gradients travel.

    Attributes
    ----------
    transport : Transport or None
        None for a single rank.
    sums : Sums or None
        Where gradients of the parts of a step are added up.
    path : Path or None
        What has to be freed at the end.
    codec : Codec or None
    rows : Rows or None
        For slices of which only rows travel; None if there are to be none.
    log : Log or None
        Where exchanges are noted; see `hpctrain.comm.stall.Watch`.
    link : Link or None
        What connects the ranks, if its speed matters for the order of the exchange.
    trade : Trade or None
        With servers, if gradients go to these.
    """

    transport: Transport | None
    sums: Sums | None
    path: paths.Path | None = None
    codec: Codec | None = None
    rows: Rows | None = None
    link: Link | None = None
    log: Log | None = None
    trade: Trade | None = None

    @property
    def kind(self) -> str:
        """The name of the path."""
        if self.trade is not None:
            return "server"
        return self.path.kind if self.path else "none" if self.transport is None else "mpi"

    def early(self, options: Options) -> bool:
        """Return whether large gradients had better be computed slice by slice.

        Over a link they leave sooner by that. Products in strips may round differently, so not
        where bits must not depend on the size of the slices.
        """
        return self.link is not None and options.overlap and not options.shard

    def free(self) -> None:
        """Free what the path stands on; collective; its buffers must not be used afterwards."""
        if self.path is not None:
            self.path.free()

    def wire_bytes(self, count: int, itemsize: int) -> int:
        """Return how many bytes a rank sends over the link for a slice of ``count``."""
        if self.path is None:
            return bytes_sent(count * itemsize, self.transport.size if self.transport else 1)
        if self.link is None:
            return 0  # through memory
        across = self.path.groups[-1].size
        local = (self.transport.size if self.transport else 1) // across
        part = -(-count // local)
        nbytes = part * itemsize if self.codec is None else self.codec.nbytes(part)
        return bytes_sent(nbytes, across)


def plain(group: Group, state: ModelState, options: Options) -> Way:
    """Return the way by MPI's own collectives on ``group``."""
    several = group.size > 1
    return Way(MpiTransport(group) if several else None, _sums(state.flat, options))


def to_servers(trade: Trade, state: ModelState, options: Options) -> Way:
    """Return the way to servers; this rank then keeps no state of the optimizer.

    Collective over all ranks: the servers are in `hpctrain.parallel.serve`. Where these are
    on this host, parameters and what is sent of the gradients move to memory that they see.
    """
    trade.terms.check(options)
    state.shard(lambda piece: (piece.start, piece.start))
    trade.near, rank = shared(trade.post, state, options, trade.terms), trade.post.rank
    near = rank in trade.near
    sums = _sums(state.flat, options, trade.near.grads(rank) if near else None)
    if near:
        grads = trade.near.grads(rank) if sums is None else None
        state.flat.move(trade.near.weights(rank), grads)
    return Way(None, sums, trade=trade)


def connect(
    kind: str,
    group: Group,
    state: ModelState,
    options: Options,
    codec: Codec | None = None,
    in_flight: int = 4,
) -> Way:
    """Make a path for the gradients of a model; collective, on the main thread.

    Parameters
    ----------
    kind : str
        One of `hpctrain.comm.paths.KINDS`.
    group : Group
        The data-parallel ranks; the path has groups of its own.
    state : ModelState
        Where ranks share memory its buffers move there.
    options : Options
    codec : Codec, optional
    in_flight : int
        How many slices will be under way at a time.

    Raises
    ------
    ConfigError
        If these ranks cannot have that path, or the codec does not take this dtype.
    """
    flat = state.flat
    dtype = _sent_dtype(flat, options)
    if codec is not None and dtype != np.float32:
        raise ConfigError(
            f"exchange: got {codec.name} for sums in {dtype}, needed float32; compress nothing"
        )
    if group.size == 1:
        return Way(None, _sums(flat, options))
    on_host = state.device == CPU
    sent = dtype.itemsize * flat.total
    weights = flat.dtype.itemsize * flat.total if options.sharded else 0
    need = sent + weights if on_host else 0
    path = paths.make(kind, group, codec, nbytes=need, staging=0 if on_host else sent)
    buffer = None
    if path.window is not None and on_host:
        memory = path.window.mine
        buffer = memory[:sent].view(dtype)
        if weights:
            flat.move(weights=memory[sent : sent + weights].view(flat.dtype))
    sums = _sums(flat, options, buffer)
    if sums is None and buffer is not None:
        flat.move(grads=buffer)
    link = _link(group, path, in_flight)
    rows = None
    if on_host:
        path.groups.insert(0, group.dup())
        rows = Rows(path.groups[0])
    return Way(path.transport, sums, path, codec, rows, link)


def _link(group: Group, path: paths.Path, in_flight: int) -> Link | None:
    """Measure what connects the ranks of ``group``, unless all share memory; equal on all."""
    across = path.groups[-1]
    if path.kind == "node" and len(path.groups) == 1:
        return None  # before the group for rows is added
    mine = measure(across, 1 if across.size == 2 else 2, in_flight)
    # The ranks of a host measure in groups of their own, but plan one order together.
    worst = np.array([mine.latency_s, -mine.bytes_per_s, mine.cpu_s_per_byte])
    group.allreduce(worst, "max", name="link")
    latency, rate, cpu = (float(number) for number in worst)
    return replace(mine, latency_s=latency, bytes_per_s=-rate, cpu_s_per_byte=cpu)


def _sent_dtype(flat: FlatParameters, options: Options) -> np.dtype[Any]:
    return np.dtype(np.float64) if options.shard else flat.dtype


def _sums(flat: FlatParameters, options: Options, buffer: Any = None) -> Sums | None:
    """Return where gradients of several parts are added up, if there may be several."""
    if options.shard or options.accumulate > 1:
        compiled = bool(options.shard) and options.fuse and available()
        return Sums(flat, _sent_dtype(flat, options), buffer, compiled)
    return None
