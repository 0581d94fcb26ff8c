"""Small JSON messages: what ranks tell each other in words.

JSON and not pickle: a message can hold facts, but it cannot run code.  Tuples arrive as lists,
and the keys of a mapping as text.
"""

import json
from typing import Any

import numpy as np
from mpi4py import MPI

from hpctrain.comm.request import call
from hpctrain.errors import CommError

LIMIT_BYTES = 2**30
"""The most that one such message, from all ranks together, may hold; arrays have other ways."""


def alone(what: str, value: Any) -> Any:
    """Return ``value`` as it would come back from another rank."""
    return json.loads(_encode(what, value).tobytes())


def bcast(comm: MPI.Intracomm, value: Any, root: int) -> Any:
    """Return the value of rank ``root`` on every rank."""
    data = _encode("bcast_obj", value) if comm.rank == root else np.empty(0, np.uint8)
    length = np.array([data.size], np.int64)
    call("bcast_obj", comm.Bcast, length, root)
    if comm.rank != root:
        data = np.empty(length[0], np.uint8)
    call("bcast_obj", comm.Bcast, data, root)
    return json.loads(data.tobytes())


def gather(comm: MPI.Intracomm, value: Any, root: int) -> list[Any] | None:
    """Return the values of all ranks, in their order, on rank ``root``; None on the others."""
    data = _encode("gather_obj", value)
    lengths = np.empty(comm.size, np.int64)
    call("gather_obj", comm.Gather, np.array([data.size], np.int64), lengths, root)
    if comm.rank != root:
        call("gather_obj", comm.Gatherv, data, None, root)
        return None
    text = _room("gather_obj", lengths)
    call("gather_obj", comm.Gatherv, data, [text, lengths.tolist()], root)
    return _decode(text, lengths)


def allgather(comm: MPI.Intracomm, value: Any) -> list[Any]:
    """Return the values of all ranks, in their order, on every rank."""
    data = _encode("allgather_obj", value)
    lengths = np.empty(comm.size, np.int64)
    call("allgather_obj", comm.Allgather, np.array([data.size], np.int64), lengths)
    text = _room("allgather_obj", lengths)
    call("allgather_obj", comm.Allgatherv, data, [text, lengths.tolist()])
    return _decode(text, lengths)


def _encode(what: str, value: Any) -> np.ndarray[Any, np.dtype[np.uint8]]:
    try:
        text = json.dumps(value)
    except (TypeError, ValueError) as error:
        raise CommError(f"{what}: the value cannot be written as JSON: {error}") from error
    data = np.frombuffer(text.encode(), np.uint8)
    if data.size > LIMIT_BYTES:
        raise CommError(
            f"{what}: the message has {data.size:,} bytes, at most {LIMIT_BYTES:,} are "
            "possible; send arrays by bcast or allgather"
        )
    return data


def _room(
    what: str, lengths: np.ndarray[Any, np.dtype[np.int64]]
) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return memory for the texts of all ranks; every rank that sees the lengths agrees."""
    total = int(lengths.sum())
    if total > LIMIT_BYTES:
        raise CommError(
            f"{what}: the ranks' messages have {total:,} bytes together, at most "
            f"{LIMIT_BYTES:,} are possible; send arrays by allgather"
        )
    return np.empty(total, np.uint8)


def _decode(
    text: np.ndarray[Any, np.dtype[np.uint8]], lengths: np.ndarray[Any, np.dtype[np.int64]]
) -> list[Any]:
    ends = np.cumsum(lengths)
    return [
        json.loads(text[end - length : end].tobytes())
        for end, length in zip(ends, lengths, strict=True)
    ]
