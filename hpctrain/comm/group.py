"""A set of ranks that exchange arrays and short messages among themselves."""

from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI

from hpctrain.backend import Array
from hpctrain.comm import messages, p2p
from hpctrain.comm.buffers import LIMIT, Buffer, op_of, pieces
from hpctrain.comm.freed import Freed
from hpctrain.comm.request import Handle, call
from hpctrain.comm.wording import spread
from hpctrain.errors import CommError


class Group(Freed):
    """The ranks of one communicator.

    Every method but ``send``, ``recv`` and their kin is *collective*: all ranks of the group
    must call it, in the same order.  Arrays are C-contiguous, in native byte order, of numbers
    or truth values, on any device: what lies on a GPU passes through host memory.  Halves are
    summed in float32; of truth values ``sum`` and ``max`` mean any, ``prod`` and ``min`` mean
    all.  In a group of one rank collectives send nothing and check nothing.

    Parameters
    ----------
    comm : MPI.Intracomm
        The communicator; `free` frees it.
    debug : bool, the same on every rank
        Before each collective compare its number, kind, dtype, count and ``name`` over the
        ranks, and raise `CommError` on all of them if they differ.  Costs two small messages.
    limit : int, the same on every rank
        The most elements in one message of MPI; longer arrays are sent in pieces.

    Attributes
    ----------
    comm, limit
        As given, for the other modules of this package only.

    Notes
    -----
    Threads may use one group at the same time for point-to-point messages only; collectives of
    a group belong to one thread at a time, for their order must be the same on all ranks.
    """

    def __init__(self, comm: MPI.Intracomm, debug: bool = False, limit: int = LIMIT) -> None:
        self.comm = comm
        self._debug = debug
        self.limit = limit
        self.calls = 0  # collectives that this rank has started
        self._freed = False
        self.rank: int = comm.Get_rank()
        self.size: int = comm.Get_size()
        # Errors come back as exceptions; the default would end the process without a word.
        comm.Set_errhandler(MPI.ERRORS_RETURN)

    def __repr__(self) -> str:
        return f"Group(rank {self.rank} of {self.size})"

    def split(self, color: int, key: int = 0) -> "Group":
        """Return the group of the ranks with the same ``color``, ordered by ``key``, then rank.

        Call it on the main thread at the start: making communicators while messages are under
        way on other threads is a known cause of deadlock.
        """
        self._agree("split", "", 0)
        made = call("split", self.comm.Split, color, key)
        return Group(made, self._debug, self.limit)

    def dup(self) -> "Group":
        """Return a group of the same ranks whose messages never meet those of this one."""
        self._agree("dup", "", 0)
        return Group(call("dup", self.comm.Dup), self._debug, self.limit)

    def free(self) -> None:
        """Free the communicator, on all ranks; a second call does nothing."""
        if not self._freed and self.comm not in (MPI.COMM_WORLD, MPI.COMM_SELF):
            call("free", self.comm.Free)
        self._freed = True

    def barrier(self) -> None:
        """Wait until every rank of the group is here."""
        if self.size > 1:
            self._agree("barrier", "", 0)
            call("barrier", self.comm.Barrier)

    def allreduce(self, array: Array, op: str = "sum", *, name: str = "") -> None:
        """Combine ``array`` over the ranks, in place; blocks.

        Parameters
        ----------
        array : ndarray, any shape, the same shape and dtype on every rank
            Overwritten by the result.
        op : {"sum", "max", "min", "prod"}
        name : str
            What the array is, to be compared in debug mode.

        Raises
        ------
        CommError
            If the array cannot be sent, ``op`` is unknown, or (debug) the ranks differ.
        """
        if self.size > 1:
            self._start_allreduce(self.comm.Allreduce, array, op, name)[1].finish()

    def iallreduce(self, array: Array, op: str = "sum", *, name: str = "") -> Handle:
        """Start to combine ``array`` over the ranks, in place; see `allreduce`.

        Returns
        -------
        Handle
            ``array`` must not be touched before its ``wait``.  Handles may be waited for in any
            order, but must be started in the same order on every rank.
        """
        if self.size == 1:
            return Handle()
        requests, buffer = self._start_allreduce(self.comm.Iallreduce, array, op, name)
        return Handle("allreduce", requests, lambda _: buffer.finish())

    def reduce(self, array: Array, root: int, op: str = "sum", *, name: str = "") -> None:
        """Combine ``array`` over the ranks into that of rank ``root``; others keep theirs."""
        if self.size == 1:
            return
        at_root = self.rank == root
        buffer = Buffer("reduce", array, written=at_root, added=True)
        self._agree("reduce", f"{op} {array.dtype} to {root}", buffer.flat.size, name)
        mpi_op = op_of("reduce", op, array.dtype)
        for part in pieces(buffer.flat.size, self.limit):
            send, recv = (
                (MPI.IN_PLACE, buffer.flat[part]) if at_root else (buffer.flat[part], None)
            )
            call("reduce", self.comm.Reduce, send, recv, mpi_op, root)
        if at_root:
            buffer.finish()

    def bcast(self, array: Array, root: int, *, name: str = "") -> None:
        """Overwrite ``array`` on every rank by that of rank ``root``; the same shape on all."""
        if self.size == 1:
            return
        buffer = Buffer("bcast", array, written=self.rank != root)
        self._agree("bcast", f"{array.dtype} from {root}", buffer.flat.size, name)
        for part in pieces(buffer.flat.size, self.limit):
            call("bcast", self.comm.Bcast, buffer.flat[part], root)
        if self.rank != root:
            buffer.finish()

    def reduce_scatter(
        self, array: Array, out: Array, op: str = "sum", *, name: str = ""
    ) -> None:
        """Combine ``array`` over the ranks and leave part ``rank`` of the result in ``out``.

        Parameters
        ----------
        array : ndarray, ``size * n`` elements, the same on every rank
            Not changed, unless ``out`` is a part of it.
        out : ndarray, ``n`` elements, the dtype of ``array``
            Overwritten by elements ``rank * n`` to ``(rank + 1) * n`` of the result.
        """
        self._check_parts("reduce_scatter", whole=array, part=out)
        if self.size == 1:
            _copy(array, out)
            return
        source = Buffer("reduce_scatter", array, written=False, added=True)
        target = Buffer("reduce_scatter", out, added=True)
        self._agree("reduce_scatter", f"{op} {array.dtype}", source.flat.size, name)
        mpi_op = op_of("reduce_scatter", op, array.dtype)
        rows = source.flat.reshape(self.size, target.flat.size)
        for part in pieces(target.flat.size, max(1, self.limit // self.size)):
            send, recv = np.ascontiguousarray(rows[:, part]), target.flat[part]
            if np.may_share_memory(send, recv):  # MPI forbids that send and receive overlap
                send = send.copy()
            call("reduce_scatter", self.comm.Reduce_scatter_block, send, recv, mpi_op)
        target.finish()

    def allgather(self, array: Array, out: Array, *, name: str = "") -> None:
        """Put the arrays of all ranks, in the order of the ranks, into ``out``.

        Parameters
        ----------
        array : ndarray, ``n`` elements, the same shape and dtype on every rank
            May be part ``rank`` of ``out``.
        out : ndarray, ``size * n`` elements, the dtype of ``array``
            Overwritten.
        """
        self._check_parts("allgather", whole=out, part=array)
        if self.size == 1:
            _copy(array, out)
            return
        source, target = Buffer("allgather", array, written=False), Buffer("allgather", out)
        self._agree("allgather", f"{array.dtype}", source.flat.size, name)
        rows = target.flat.reshape(self.size, source.flat.size)
        for part in pieces(source.flat.size, max(1, self.limit // self.size)):
            send, whole = source.flat[part], part.stop - part.start == source.flat.size
            if whole and np.may_share_memory(send, rows):
                send = send.copy()
            recv = rows if whole else np.empty((self.size, send.size), send.dtype)
            call("allgather", self.comm.Allgather, send, recv)
            if not whole:
                rows[:, part] = recv
        target.finish()

    def send(self, array: Array, peer: int, tag: int = 0) -> None:
        """Send ``array`` to rank ``peer``; returns when ``array`` may be overwritten."""
        self.isend(array, peer, tag).wait()

    def recv(self, array: Array, peer: int, tag: int = 0) -> None:
        """Receive from rank ``peer`` into ``array``; blocks.

        Raises
        ------
        CommError
            If the message has not exactly as many elements as ``array``.
        """
        self.irecv(array, peer, tag).wait()

    def isend(self, array: Array, peer: int, tag: int = 0) -> Handle:
        """Start to send ``array`` to rank ``peer``."""
        return p2p.isend(self.comm, array, peer, tag, self.limit)

    def irecv(self, array: Array, peer: int, tag: int = 0) -> Handle:
        """Start to receive from rank ``peer`` into ``array``; see `recv`."""
        return p2p.irecv(self.comm, array, peer, tag, self.limit)

    def bcast_obj(self, value: Any, root: int = 0) -> Any:
        """Return the JSON value of rank ``root`` on every rank; what others pass is ignored."""
        if self.size == 1:
            return messages.alone("bcast_obj", value)
        self._agree("bcast_obj", f"from {root}", 0)
        return messages.bcast(self.comm, value, root)

    def gather_obj(self, value: Any, root: int = 0) -> list[Any] | None:
        """Return the JSON values of all ranks, in order, on rank ``root``; None elsewhere."""
        if self.size == 1:
            return [messages.alone("gather_obj", value)]
        self._agree("gather_obj", f"to {root}", 0)
        return messages.gather(self.comm, value, root)

    def allgather_obj(self, value: Any) -> list[Any]:
        """Return the JSON values of all ranks, in the order of the ranks, on every rank."""
        if self.size == 1:
            return [messages.alone("allgather_obj", value)]
        self._agree("allgather_obj", "", 0)
        return messages.allgather(self.comm, value)

    def _start_allreduce(
        self, function: Callable[..., Any], array: Array, op: str, name: str
    ) -> tuple[list[Any], Buffer]:
        buffer = Buffer("allreduce", array, added=True)
        self._agree("allreduce", f"{op} {array.dtype}", buffer.flat.size, name)
        mpi_op = op_of("allreduce", op, array.dtype)
        parts = [buffer.flat[part] for part in pieces(buffer.flat.size, self.limit)]
        started = [call("allreduce", function, MPI.IN_PLACE, part, mpi_op) for part in parts]
        return started, buffer

    def _agree(self, call_name: str, kind: str, count: int, name: str = "") -> None:
        """In debug mode, raise on every rank if this call is not the same on all."""
        self.calls += 1
        if not self._debug or self.size == 1:
            return
        words = [call_name, kind, f"× {count}" if count else "", f"({name})" if name else ""]
        mine = f"call {self.calls} is " + " ".join(filter(None, words))
        calls = messages.allgather(self.comm, mine)
        if len(set(calls)) > 1:
            raise CommError(
                f"{call_name}: {spread(calls)}; every rank of a group must make the same "
                "calls in the same order"
            )

    def _check_parts(self, what: str, whole: Array, part: Array) -> None:
        if whole.dtype != part.dtype or whole.size != self.size * part.size:
            raise CommError(
                f"{what}: {part.size} elements of {part.dtype} per rank do not make "
                f"{whole.size} of {whole.dtype} over {self.size} ranks"
            )


def _copy(source: Array, out: Array) -> None:
    out.reshape(-1)[...] = source.reshape(-1)
