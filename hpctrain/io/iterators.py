"""Iterators over batches in MXNet's words: ``NDArrayIter``, ``RecordIter`` and wrappers.

A batch has lists of arrays, ``data`` and ``label``, and says by ``pad`` how many rows at its
end are not real. An iterator goes through its data once; ``reset`` begins the next epoch.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hpctrain.autograd import Tensor
from hpctrain.engine import Engine
from hpctrain.errors import ConfigError
from hpctrain.io.batches import DataBatch, DataDesc, DataIter
from hpctrain.io.layouts import open_records
from hpctrain.io.loader import Batch, Loader
from hpctrain.io.manifest import Field
from hpctrain.io.records import Records
from hpctrain.io.sampler import Plan

__all__ = ["NDArrayIter", "RecordIter"]


Source = np.ndarray | Tensor | Mapping[str, Any] | Sequence[Any] | None


class NDArrayIter(DataIter):
    """Batches of arrays in memory.

    Parameters
    ----------
    data, label : array, list of arrays, or mapping of str to array
        Of equal first lengths. A list gets the names ``data``, or ``_0_data`` and so on.
    batch_size : int
    shuffle : bool
        Draw a new order for each epoch.
    last_batch_handle : {"pad", "discard", "roll_over"}
        What becomes of rows that fill no batch: filled up with the first rows of the order,
        which ``pad`` counts; left out; or put in front of the next epoch.
    data_name, label_name : str
    seed : int
        Of the shuffle; ranks that read the same arrays need different ones to differ.
    """

    def __init__(  # noqa: PLR0913 (MXNet's signature)
        self,
        data: Source,
        label: Source = None,
        batch_size: int = 1,
        shuffle: bool = False,
        last_batch_handle: str = "pad",
        data_name: str = "data",
        label_name: str = "softmax_label",
        seed: int = 0,
    ) -> None:
        super().__init__(batch_size)
        if last_batch_handle not in ("pad", "discard", "roll_over"):
            raise ConfigError(
                f"NDArrayIter: got last_batch_handle {last_batch_handle!r}, needed pad, "
                "discard or roll_over"
            )
        self._data, self._label = _named(data, data_name), _named(label, label_name)
        lengths = {len(array) for array in (*self._data.values(), *self._label.values())}
        if len(lengths) != 1:
            raise ConfigError(f"NDArrayIter: got {sorted(lengths)} rows, needed equal numbers")
        self.num_data = lengths.pop()
        if not 1 <= batch_size <= self.num_data:
            raise ConfigError(
                f"NDArrayIter: got batch_size {batch_size}, needed 1 to {self.num_data}"
            )
        self._shuffle, self._last, self._seed = shuffle, last_batch_handle, seed
        self._epoch, self._kept = 0, np.empty(0, np.int64)
        self._start_epoch()

    def _start_epoch(self) -> None:
        order = np.arange(self.num_data)
        if self._shuffle:
            sequence = np.random.SeedSequence(self._seed, spawn_key=(self._epoch,))
            np.random.default_rng(sequence).shuffle(order)
        self._order = np.concatenate([self._kept, order])
        self._kept = np.empty(0, np.int64)
        self._cursor = 0

    def reset(self) -> None:
        """Begin the next epoch."""
        self._epoch += 1
        self._start_epoch()

    def next(self) -> DataBatch:
        """Return the next batch, of ``batch_size`` rows."""
        ids = self._order[self._cursor : self._cursor + self.batch_size]
        pad = self.batch_size - len(ids)
        if not len(ids) or (pad and self._last != "pad"):
            if self._last == "roll_over":
                self._kept = ids
            self._cursor = len(self._order)
            raise StopIteration
        self._cursor += self.batch_size
        ids = np.concatenate([ids, self._order[:pad]])
        return DataBatch(
            [Tensor(array[ids]) for array in self._data.values()],
            [Tensor(array[ids]) for array in self._label.values()],
            pad,
            ids,
        )

    @property
    def provide_data(self) -> list[DataDesc]:
        """Names and shapes of the data."""
        return self._described(self._data)

    @property
    def provide_label(self) -> list[DataDesc]:
        """Names and shapes of the labels."""
        return self._described(self._label)

    def _described(self, arrays: Mapping[str, np.ndarray]) -> list[DataDesc]:
        return [
            DataDesc(name, (self.batch_size, *array.shape[1:]), array.dtype)
            for name, array in arrays.items()
        ]


def _named(source: Source, name: str) -> dict[str, np.ndarray]:
    """Return host arrays by name; what is not float stays, double precision becomes single."""
    if source is None:
        return {}
    if isinstance(source, Mapping):
        named = dict(source)
    elif isinstance(source, list | tuple):
        single = len(source) == 1
        named = {name if single else f"_{i}_{name}": array for i, array in enumerate(source)}
    else:
        named = {name: source}
    found = {}
    for key, value in named.items():
        array = value.asnumpy() if isinstance(value, Tensor) else np.asarray(value)
        found[key] = array.astype(np.float32) if array.dtype == np.float64 else array
    return found


class RecordIter(DataIter):
    """Batches of records on disk, this rank's part of them.

    Parameters
    ----------
    path : path or Records
        A folder of shards, or whatever `open_records` takes.
    batch_size : int
        Records of a batch on each part; ``num_parts`` times as many are one global batch.
    num_parts, part_index : int
        How many read together, and which of them this one is: ``kv.num_workers``, ``kv.rank``.
    shuffle : bool
    seed : int
        Of the order, the same on all parts.
    data_name, label_name : str
        Of the first input and the first target; further ones keep the names of their fields.
    layout : {"NCHW", "NHWC"}
        How records that are images, stored with channels last, are delivered.
    engine : Engine, optional
        Reads the next batches meanwhile.

    Notes
    -----
    The order of an epoch is a function of seed and epoch; each global batch of it is divided
    over the parts, evenly to one record. So all parts have equally many batches, no record
    is dropped or repeated, and every row is real: ``pad`` is 0. The last batch may be short,
    and on some parts empty.
    """

    def __init__(  # noqa: PLR0913 (MXNet's signature)
        self,
        path: str | Path | Records,
        batch_size: int,
        num_parts: int = 1,
        part_index: int = 0,
        shuffle: bool = False,
        seed: int = 0,
        data_name: str = "data",
        label_name: str = "softmax_label",
        layout: str = "NCHW",
        engine: Engine | None = None,
    ) -> None:
        super().__init__(batch_size)
        if layout not in ("NCHW", "NHWC"):
            raise ConfigError(f"RecordIter: got layout {layout!r}, needed NCHW or NHWC")
        self.records = path if isinstance(path, Records) else open_records(path)
        records = self.records
        plan = Plan(
            records.n, batch_size * num_parts, seed, records.grain, records.window, shuffle
        )
        self._loader = Loader(records, plan, part_index, num_parts, engine)
        self._layout = layout
        self._names = {
            **{f.name: f.name if i else data_name for i, f in enumerate(records.inputs)},
            **{f.name: f.name if i else label_name for i, f in enumerate(records.targets)},
        }
        self._epoch = 0
        self._batches: Iterator[Batch] = self._loader.epoch(0)

    @property
    def steps(self) -> int:
        """Batches of an epoch, the same number on all parts."""
        return self._loader.plan.steps

    def next(self) -> DataBatch:
        """Return the next batch; its arrays are copies and stay valid."""
        batch = next(self._batches)
        found = DataBatch(
            [self._delivered(array) for array in batch.inputs],
            [self._delivered(array) for array in batch.targets],
            0,
            batch.ids,
        )
        batch.release()
        return found

    def _delivered(self, array: np.ndarray) -> Tensor:
        if self._layout == "NCHW" and array.ndim == 4:
            array = array.transpose(0, 3, 1, 2)
        return Tensor(np.array(array, order="C"))

    def reset(self) -> None:
        """Begin the next epoch, with another order if shuffled."""
        self._epoch += 1
        self._batches = self._loader.epoch(self._epoch)

    @property
    def provide_data(self) -> list[DataDesc]:
        """Names and shapes of the inputs."""
        return [self._described(each) for each in self.records.inputs]

    @property
    def provide_label(self) -> list[DataDesc]:
        """Names and shapes of the targets."""
        return [self._described(each) for each in self.records.targets]

    def _described(self, each: Field) -> DataDesc:
        shape = each.shape
        if self._layout == "NCHW" and len(shape) == 3:
            shape = (shape[2], *shape[:2])
        dtype = each.delivered(np.float32)
        return DataDesc(self._names[each.name], (self.batch_size, *shape), dtype, self._layout)
