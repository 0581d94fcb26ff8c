"""Messages from one rank to one other, cut into pieces that MPI can count."""

from mpi4py import MPI

from hpctrain.backend import Array
from hpctrain.comm.buffers import Buffer, pieces
from hpctrain.comm.request import Handle, call
from hpctrain.errors import CommError


def isend(comm: MPI.Intracomm, array: Array, dest: int, tag: int, limit: int) -> Handle:
    """Start to send ``array``; pieces keep their order, as MPI's messages of one pair do."""
    what = f"send to rank {dest} (tag {tag})"
    flat = Buffer(what, array, written=False).flat
    # An empty array sends an empty message, so that it is received like any other.
    parts = pieces(flat.size, limit) or [slice(0, 0)]
    return Handle(what, [call(what, comm.Isend, flat[part], dest, tag) for part in parts])


def irecv(comm: MPI.Intracomm, array: Array, source: int, tag: int, limit: int) -> Handle:
    """Start to receive into ``array`` a message of exactly its size."""
    what = f"recv from rank {source} (tag {tag})"
    buffer = Buffer(what, array)
    flat = buffer.flat
    parts = pieces(flat.size, limit) or [slice(0, 0)]
    requests = [call(what, comm.Irecv, flat[part], source, tag) for part in parts]
    kind = MPI.Datatype.fromcode(flat.dtype.char)

    def finish(statuses: list[MPI.Status]) -> None:
        got = sum(status.Get_count(kind) for status in statuses)
        if got != flat.size:
            raise CommError(
                f"{what}: got {got} elements, needed {flat.size} of {array.dtype}; "
                "both sides must pass arrays of the same size"
            )
        buffer.finish()

    return Handle(what, requests, finish)
