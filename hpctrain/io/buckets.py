"""Sentences of unequal length, sorted into buckets: all of a batch are padded to one length."""

import logging
from collections.abc import Sequence

import numpy as np

from hpctrain.autograd import Tensor
from hpctrain.errors import ConfigError
from hpctrain.io.batches import DataBatch, DataDesc, DataIter
from hpctrain.io.sampler import part

__all__ = ["BucketSentenceIter"]

_LOG = logging.getLogger("hpctrain.io")


class BucketSentenceIter(DataIter):
    """Batches of sentences, and of the same one token later, for language models.

    Parameters
    ----------
    sentences : sequence of sequences of int
    batch_size : int
        Rows of a batch on each part.
    buckets : sequence of int, optional
        Lengths; a sentence goes into the smallest that it fits into. If None, all lengths of
        which there are enough sentences for a batch.
    invalid_label : int
        Label of padding, and of the last step, which nothing follows. Padding of the data is
        the same, or 0 if it is negative.
    data_name, label_name : str
    dtype : dtype
    layout : {"NT", "TN"}
        Whether rows or steps are the first axis.
    last_batch_handle : {"pad", "discard"}
        What becomes of sentences that fill no batch of their bucket: filled up with rows of
        padding, which ``pad`` counts; or left out.
    num_parts, part_index : int
        How many ranks read together, and which of them this one is: ``kv.num_workers``,
        ``kv.rank``.
    seed : int
        Of the order, the same on all parts.

    Attributes
    ----------
    discarded : int
        Sentences that are longer than the longest bucket.

    Notes
    -----
    The order of an epoch is a function of seed and epoch. All parts take the same bucket at
    each step, and divide a batch of ``num_parts * batch_size`` sentences, so they have equally
    many batches of one shape.
    """

    def __init__(  # noqa: PLR0913 (MXNet's signature)
        self,
        sentences: Sequence[Sequence[int]],
        batch_size: int,
        buckets: Sequence[int] | None = None,
        invalid_label: int = -1,
        data_name: str = "data",
        label_name: str = "softmax_label",
        dtype: str = "float32",
        layout: str = "NT",
        last_batch_handle: str = "pad",
        num_parts: int = 1,
        part_index: int = 0,
        seed: int = 0,
    ) -> None:
        super().__init__(batch_size)
        if layout not in ("NT", "TN") or last_batch_handle not in ("pad", "discard"):
            raise ConfigError(
                f"BucketSentenceIter: got layout {layout!r} and last_batch_handle "
                f"{last_batch_handle!r}, needed NT or TN, and pad or discard"
            )
        lengths = np.array([len(sentence) for sentence in sentences], np.int64)
        self.buckets = sorted(buckets or _frequent(lengths, batch_size * num_parts))
        if not self.buckets:
            raise ConfigError(
                "BucketSentenceIter: got no length with sentences enough for a batch; give "
                "buckets"
            )
        self._names = data_name, label_name
        self._dtype, self._layout, self._invalid = np.dtype(dtype), layout, invalid_label
        self._parts, self._part, self._seed = num_parts, part_index, seed
        self._discard = last_batch_handle == "discard"
        homes = np.searchsorted(self.buckets, lengths)
        self.discarded = int(np.sum(homes == len(self.buckets)))
        if self.discarded:
            _LOG.warning("%d sentences are longer than the longest bucket", self.discarded)
        self._rows = [
            _padded(
                [sentences[int(i)] for i in np.flatnonzero(homes == place)],
                length,
                invalid_label,
            )
            for place, length in enumerate(self.buckets)
        ]
        self._epoch = 0
        self._start_epoch()

    @property
    def default_bucket_key(self) -> int:
        """The longest bucket."""
        return int(self.buckets[-1])

    @property
    def steps(self) -> int:
        """Batches of an epoch, the same number on all parts."""
        return len(self._plan)

    def _start_epoch(self) -> None:
        """Draw the order of sentences in each bucket, and that of the batches."""
        rng = np.random.default_rng(
            np.random.SeedSequence(self._seed, spawn_key=(self._epoch,))
        )
        whole = self.batch_size * self._parts
        plan: list[tuple[int, np.ndarray]] = []
        for place, rows in enumerate(self._rows):
            order = rng.permutation(len(rows))
            stop = len(order) - len(order) % whole if self._discard else len(order)
            plan += [(place, order[i : i + whole]) for i in range(0, stop, whole)]
        self._plan = [plan[i] for i in rng.permutation(len(plan))]
        self._cursor = 0

    def reset(self) -> None:
        """Begin the next epoch, in another order."""
        self._epoch += 1
        self._start_epoch()

    def next(self) -> DataBatch:
        """Return the next batch."""
        if self._cursor == len(self._plan):
            raise StopIteration
        place, ids = self._plan[self._cursor]
        self._cursor += 1
        mine = ids[part(len(ids), self._part, self._parts)]
        length = self.buckets[place]
        labels = np.full((self.batch_size, length), self._invalid)
        data = np.full((self.batch_size, length), max(self._invalid, 0))
        rows = self._rows[place][mine]
        data[: len(mine)] = np.where(rows < 0, data[: len(mine)], rows)
        labels[: len(mine), :-1] = rows[:, 1:]
        return DataBatch(
            [self._tensor(data)], [self._tensor(labels)], self.batch_size - len(mine), mine,
            [self._described(0, length)], [self._described(1, length)], int(length),
        )  # fmt: skip

    def _tensor(self, rows: np.ndarray) -> Tensor:
        turned = rows if self._layout == "NT" else rows.T
        return Tensor(np.array(turned, self._dtype, order="C"))

    def _described(self, which: int, length: int) -> DataDesc:
        shape = (self.batch_size, int(length))
        if self._layout == "TN":
            shape = shape[::-1]
        return DataDesc(self._names[which], shape, self._dtype, self._layout)

    @property
    def provide_data(self) -> list[DataDesc]:
        """Name and shape of the data of the longest bucket."""
        return [self._described(0, self.default_bucket_key)]

    @property
    def provide_label(self) -> list[DataDesc]:
        """Name and shape of the labels of the longest bucket."""
        return [self._described(1, self.default_bucket_key)]


def _frequent(lengths: np.ndarray, least: int) -> list[int]:
    """Return the lengths of which there are at least so many sentences."""
    return [int(n) for n in np.flatnonzero(np.bincount(lengths) >= least) if n]


def _padded(sentences: Sequence[Sequence[int]], length: int, invalid: int) -> np.ndarray:
    rows = np.full((len(sentences), length), invalid, np.int64)
    for row, sentence in zip(rows, sentences, strict=True):
        row[: len(sentence)] = sentence
    return rows
