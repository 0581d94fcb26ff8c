"""Open files and decoded blocks, both kept as long as there is room for them.

A *block* is what one call reads: whole chunks of one field, about 1 MiB.  Picking single
rows through HDF5 costs some 20 µs each and decodes the chunk every time, so rows are picked
from decoded blocks, or from the mapped file where the layout is contiguous.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from hpctrain.errors import DataError
from hpctrain.io import hdf5
from hpctrain.io.manifest import Field

__all__ = ["BlockCache", "FieldReader", "OpenFiles", "Part"]

BLOCK_BYTES = 1 << 20
# One block larger than this would push everything else out of memory.
MAX_BLOCK_BYTES = 1 << 30
MAX_OPEN = 64


@dataclass(frozen=True, slots=True)
class Part:
    """One file of a data set: where it is, and how many records it holds.

    ``whole`` is true where the file is a single record and its datasets have no record axis.
    """

    path: Path
    records: int
    whole: bool = False


class FieldReader:
    """One field of one open file.

    Attributes
    ----------
    block : int
        Records of one block.
    mapped : ndarray, shape (n, *field.shape), or None
        The rows in the mapped file, if they lie there contiguous and unfiltered.
    """

    def __init__(self, part: Part, field: Field, dset: h5py.Dataset) -> None:
        self.where = f"{part.path}:{field.where}"
        self.records = part.records
        self._dset = dset
        self._whole = part.whole
        shape = field.shape if part.whole else (part.records, *field.shape)
        if dset.shape != shape or dset.dtype != field.stored:
            raise DataError(
                f"{self.where}: got {dset.dtype.str} {dset.shape}, needed {field.dtype} "
                f"{shape} as in the rest of the data; make the file again"
            )
        self.block = self._block_records(field)
        self.mapped = self._map(part.path, shape)

    def _block_records(self, field: Field) -> int:
        """Return the least multiple of the chunk's records that reaches 1 MiB."""
        if self._whole:
            return 1
        row = max(field.record_bytes, 1)
        chunk = self._dset.chunks[0] if self._dset.chunks else 1
        block = min(chunk * max(1, -(-BLOCK_BYTES // (row * chunk))), max(self.records, 1))
        if block * row > MAX_BLOCK_BYTES:
            raise DataError(
                f"{self.where}: one chunk of {chunk} records makes {block * row:,} bytes, "
                f"needed at most {MAX_BLOCK_BYTES:,}; rewrite it with fewer records a chunk"
            )
        return block

    def _map(self, path: Path, shape: tuple[int, ...]) -> npt.NDArray[Any] | None:
        start, size = self._dset.id.get_offset(), self._dset.nbytes
        if self._dset.chunks is not None or start is None or size == 0:
            return None
        # A mapped page beyond the end of the file would end the process by a signal.
        if path.stat().st_size < start + size:
            raise DataError(
                f"{self.where}: needed {start + size:,} bytes of file, got "
                f"{path.stat().st_size:,}; the file is cut off, copy it again"
            )
        rows = np.asarray(np.memmap(path, self._dset.dtype, "r", start, shape))
        return rows[None] if self._whole else rows

    def load(self, index: int) -> npt.NDArray[Any]:
        """Read and decode block ``index``; native byte order, shape (rows, *field.shape)."""
        first = index * self.block
        last = min(first + self.block, self.records)
        shape = self._dset.shape if self._whole else (last - first, *self._dset.shape[1:])
        rows = np.empty(shape, self._dset.dtype.newbyteorder("="))
        try:
            if rows.size:
                self._dset.read_direct(rows, () if self._whole else np.s_[first:last])
        except OSError as error:
            raise DataError(
                f"{self.where}: records {first} to {last - 1} cannot be decoded ({error}); the "
                "file is damaged, copy or make it again"
            ) from error
        return rows[None] if self._whole else rows


class OpenFiles:
    """Checked columns of the most recently used files; older files are closed."""

    def __init__(self, parts: tuple[Part, ...], limit: int = MAX_OPEN) -> None:
        self._parts = parts
        self._limit = limit
        self._files: OrderedDict[int, tuple[h5py.File, dict[str, FieldReader]]] = OrderedDict()

    def column(self, part: int, field: Field) -> FieldReader:
        """Return one field of file number ``part``, opened and checked on first use."""
        if part not in self._files:
            while len(self._files) >= self._limit:
                self._files.popitem(last=False)[1][0].close()
            self._files[part] = (hdf5.open_read(self._parts[part].path), {})
        self._files.move_to_end(part)
        file, columns = self._files[part]
        if field.name not in columns:
            columns[field.name] = FieldReader(
                self._parts[part], field, hdf5.dataset(file, field.where)
            )
        return columns[field.name]

    def close(self) -> None:
        """Close every file."""
        while self._files:
            self._files.popitem()[1][0].close()


class BlockCache:
    """Decoded blocks, the most recently used ones up to a number of bytes."""

    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self.held_bytes = 0
        self.misses = 0
        self._blocks: OrderedDict[Hashable, npt.NDArray[Any]] = OrderedDict()

    def get(self, key: Hashable, load: Callable[[], npt.NDArray[Any]]) -> npt.NDArray[Any]:
        """Return the block under ``key``, loaded if it is not there."""
        if key in self._blocks:
            self._blocks.move_to_end(key)
            return self._blocks[key]
        self.misses += 1
        block = load()
        while self._blocks and self.held_bytes + block.nbytes > self.budget_bytes:
            self.held_bytes -= self._blocks.popitem(last=False)[1].nbytes
        self._blocks[key] = block
        self.held_bytes += block.nbytes
        return block

    def clear(self) -> None:
        """Forget every block."""
        self._blocks.clear()
        self.held_bytes = 0
