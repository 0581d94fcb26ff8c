"""Where an array becomes something that MPI can send.

MPI wants flat host memory of a type that it knows.  A NumPy array of such a type is sent from
where it is; what lies on a GPU, and halves that are to be added, pass through a host copy.
"""

from typing import Any

import numpy as np
from mpi4py import MPI

from hpctrain import backend
from hpctrain.errors import CommError

LIMIT = 2**31 - 1
"""The most elements in one message: a C ``int`` counts them in MPI before version 4."""

_OPS = {"sum": MPI.SUM, "max": MPI.MAX, "min": MPI.MIN, "prod": MPI.PROD}
# Truth values are bytes 0 and 1: their sum is "any" and their product "all", as in NumPy.
_BOOL_OPS = {"sum": MPI.MAX, "max": MPI.MAX, "min": MPI.MIN, "prod": MPI.MIN}


def op_of(what: str, op: str, dtype: np.dtype[Any]) -> MPI.Op:
    """Return MPI's operation for the name ``op`` on elements of ``dtype``."""
    if op not in _OPS:
        raise CommError(f"{what}: got op {op!r}, needed one of {', '.join(_OPS)}")
    if dtype.kind == "c" and op in ("max", "min"):
        raise CommError(
            f"{what}: {op} of {dtype} is not defined; complex numbers have no order"
        )
    return (_BOOL_OPS if dtype.kind == "b" else _OPS)[op]


def check(what: str, array: backend.Array, written: bool) -> None:
    """Refuse an array that MPI cannot send from, or receive into, where it lies."""
    dtype = getattr(array, "dtype", None)
    if dtype is None:
        raise CommError(f"{what}: got a {type(array).__name__}, needed an array")
    if dtype.kind not in "biufc":
        raise CommError(f"{what}: dtype {dtype} cannot be sent; send numbers or truth values")
    if not dtype.isnative:
        raise CommError(
            f"{what}: dtype {dtype.str} has foreign byte order; "
            f"convert it with astype({dtype.newbyteorder('=').str!r})"
        )
    if not array.flags.c_contiguous:
        raise CommError(
            f"{what}: array of shape {array.shape} and strides {array.strides} is not "
            "C-contiguous; pass numpy.ascontiguousarray of it"
        )
    if written and not getattr(array.flags, "writeable", True):
        raise CommError(f"{what}: the array is read-only; pass a copy")


class Buffer:
    """An array as MPI sees it.

    Parameters
    ----------
    what : str
        The call, for messages.
    array : ndarray, any shape, C-contiguous, on any device
        What is sent or received.
    written : bool
        Whether the result goes into ``array``; `finish` brings it there.
    added : bool
        Whether elements are combined.  Halves are then combined in float32: a sum over many
        ranks would lose what float16 cannot hold.

    Attributes
    ----------
    flat : ndarray, shape (n,), on the host
        A view of ``array`` where that is possible, else a copy.
    """

    __slots__ = ("_array", "_host", "flat")

    def __init__(
        self, what: str, array: backend.Array, *, written: bool = True, added: bool = False
    ) -> None:
        check(what, array, written)
        self._array = array
        self._host = backend.to_host(array)
        flat = self._host.reshape(-1)
        if flat.dtype == np.bool_:
            flat = flat.view(np.uint8)
        elif flat.dtype == np.float16:
            flat = flat.astype(np.float32) if added else flat.view(np.uint16)
        self.flat: np.ndarray[Any, np.dtype[Any]] = flat

    def finish(self) -> None:
        """Bring the result into the array, if it is not there already."""
        if self.flat.dtype == np.float32 and self._host.dtype == np.float16:
            with np.errstate(
                over="ignore"
            ):  # a sum too large for float16 is inf, as on one rank
                self._host.reshape(-1)[:] = self.flat
        if self._host is not self._array:
            self._array[...] = backend.module_of(self._array).asarray(self._host)


def pieces(count: int, limit: int) -> list[slice]:
    """Cut ``count`` elements into slices of at most ``limit``.

    Examples
    --------
    >>> pieces(5, 2)
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    return [slice(start, min(start + limit, count)) for start in range(0, count, limit)]
