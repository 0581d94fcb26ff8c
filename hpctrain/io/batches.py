"""What MXNet's iterators give: batches, their description, and the protocol itself."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

__all__ = ["DataBatch", "DataDesc", "DataIter", "ResizeIter"]


class DataDesc(NamedTuple):
    """Name and shape of one array of a batch, and which axes these are."""

    name: str
    shape: tuple[int, ...]
    dtype: Any = np.float32
    layout: str = "NCHW"

    @property
    def batch_axis(self) -> int:
        """The axis that counts rows: that of the N in ``layout``, the first without one."""
        return max(0, self.layout.find("N"))


@dataclass(eq=False)
class DataBatch:
    """One batch.

    Attributes
    ----------
    data, label : list of Tensor
    pad : int
        Rows at the end that are there to fill the batch, and count for nothing.
    index : ndarray or None
        Numbers of the records, where they are known.
    bucket_key : Any
        Of a `BucketingModule`: which symbol the batch is for.
    provide_data, provide_label : list of DataDesc, optional
        Names and shapes, where they differ from batch to batch.
    """

    data: list[Any]
    label: list[Any] = field(default_factory=list)
    pad: int = 0
    index: Any = None
    provide_data: list[DataDesc] | None = None
    provide_label: list[DataDesc] | None = None
    bucket_key: Any = None

    @property
    def batch_axis(self) -> int:
        """The axis of the arrays that counts rows."""
        return self.provide_data[0].batch_axis if self.provide_data else 0

    @property
    def count(self) -> int:
        """Rows that are real."""
        return int(self.data[0].shape[self.batch_axis]) - self.pad


class DataIter(ABC):
    """Goes through data batch by batch.

    Parameters
    ----------
    batch_size : int
        Rows of a batch on this rank, or at most so many.
    """

    def __init__(self, batch_size: int = 0) -> None:
        self.batch_size = batch_size

    def __iter__(self) -> "DataIter":
        return self

    def __next__(self) -> DataBatch:
        return self.next()

    @property
    @abstractmethod
    def provide_data(self) -> list[DataDesc]:
        """Names and shapes of the data."""

    @property
    @abstractmethod
    def provide_label(self) -> list[DataDesc]:
        """Names and shapes of the labels."""

    @abstractmethod
    def next(self) -> DataBatch:
        """Return the next batch; raise StopIteration after the last one."""

    @abstractmethod
    def reset(self) -> None:
        """Begin the next epoch."""


class ResizeIter(DataIter):
    """Make epochs of ``size`` batches out of an iterator, which begins anew when it ends.

    Parameters
    ----------
    data_iter : DataIter
    size : int
    reset_internal : bool
        Whether `reset` resets ``data_iter`` as well; otherwise it goes on.
    """

    def __init__(self, data_iter: DataIter, size: int, reset_internal: bool = True) -> None:
        super().__init__(data_iter.batch_size)
        self._inner, self._size, self._reset_inner = data_iter, size, reset_internal
        self._done = 0

    def next(self) -> DataBatch:
        """Return the next batch."""
        if self._done == self._size:
            raise StopIteration
        self._done += 1
        try:
            return self._inner.next()
        except StopIteration:
            self._inner.reset()
            return self._inner.next()

    def reset(self) -> None:
        """Begin the next epoch."""
        self._done = 0
        if self._reset_inner:
            self._inner.reset()

    @property
    def provide_data(self) -> list[DataDesc]:
        """Names and shapes of the data."""
        return self._inner.provide_data

    @property
    def provide_label(self) -> list[DataDesc]:
        """Names and shapes of the labels."""
        return self._inner.provide_label
