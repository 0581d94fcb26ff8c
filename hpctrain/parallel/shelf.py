"""Arrays that lie in a file until they are looked at: for more than a rank has memory for."""

import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["Shelf", "Shelved"]


class Shelved:
    """An array in a file; each look reads it anew.

    Parameters
    ----------
    shape : sequence of int
    dtype : dtype
    read : callable
        Returns the array.
    """

    def __init__(self, shape: Sequence[int], dtype: Any, read: Callable[[], Any]) -> None:
        self.shape, self.dtype = tuple(shape), np.dtype(dtype)
        self._read = read

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return np.asarray(self._read(), dtype)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> Any:
        return self._read()[index]

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return self.dtype.itemsize

    @property
    def size(self) -> int:
        """Number of elements."""
        return int(np.prod(self.shape, dtype=np.int64))

    def copy(self) -> "Shelved":
        """Return itself: nothing changes what is in the file."""
        return self


class Shelf:
    """A file without a name, to which arrays are added; it is gone with the last of them.

    Parameters
    ----------
    folder : path
        On a disk with room for them; made if missing.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file, self._end = _File(folder), 0

    def add(self, array: Any) -> Shelved:
        """Put away a C-contiguous array."""
        file, start, shape, dtype = self._file, self._end, array.shape, array.dtype
        file.write(array.reshape(-1).view(np.uint8).data, start)
        self._end += array.nbytes

        def read() -> Any:
            found = np.empty(shape, dtype)
            file.read(found.reshape(-1).view(np.uint8).data, start)
            return found

        return Shelved(shape, dtype, read)


class _File:
    """A file that is removed at once and closed with its last user; any thread."""

    def __init__(self, folder: Path) -> None:
        self._handle, name = tempfile.mkstemp(dir=folder)
        os.unlink(name)

    def __del__(self) -> None:
        os.close(self._handle)

    def write(self, data: memoryview, start: int) -> None:
        done = 0
        while done < len(data):
            done += os.pwrite(self._handle, data[done:], start + done)

    def read(self, data: memoryview, start: int) -> None:
        done = 0
        while done < len(data):
            done += os.preadv(self._handle, [data[done:]], start + done)
