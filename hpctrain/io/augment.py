"""Random changes of records that depend on seed, epoch and record, and on nothing else.

The same record in the same epoch is changed the same way on any rank and in any batch, so
augmented training, too, is the same on any number of ranks.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from hpctrain.errors import ConfigError, ShapeError

__all__ = ["RandomShift", "random_bits"]

Ids = npt.NDArray[np.int64]


def random_bits(ids: Ids, seed: int, epoch: int, draw: int) -> npt.NDArray[np.uint64]:
    """Return 64 random bits for each record.

    Parameters
    ----------
    ids : ndarray, shape (k,), int64
        Record numbers.
    seed, epoch, draw : int
        Whose random numbers; ``draw`` counts the numbers that one record needs.

    Returns
    -------
    ndarray, shape (k,), uint64

    References
    ----------
    Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014:
    the mixing function is SplitMix64's, applied to a counter.
    """
    key = np.random.SeedSequence(seed, spawn_key=(2, epoch, draw)).generate_state(1, np.uint64)
    with np.errstate(over="ignore"):
        z = _mixed(ids.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + key)
        return _mixed(z ^ key)


def _mixed(z: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


class RandomShift:
    """Shift images by whole pixels, each record by its own random amount.

    Parameters
    ----------
    pixels : int
        Largest shift, up or down and left or right; each amount is equally likely.
    seed : int
        Of the random numbers.
    fields : sequence of str, optional
        Which fields are images, (rows, columns, channels); all shift alike, so an image
        and its mask stay together.  By default every field with three axes.
    fill : float
        What comes in at the edge.

    Notes
    -----
    Called with arrays as `Records.read` fills them, and changes them in place.
    """

    def __init__(
        self, pixels: int, seed: int = 0, fields: Sequence[str] | None = None, fill: float = 0
    ) -> None:
        if pixels < 0:
            raise ConfigError(f"RandomShift: got {pixels} pixels, needed at least 0")
        self.pixels = pixels
        self.seed = seed
        self.fields = fields
        self.fill = fill

    def __call__(self, arrays: Mapping[str, npt.NDArray[Any]], ids: Ids, epoch: int) -> None:
        """Shift the images of a batch, shape (k, rows, columns, channels)."""
        names = self.fields
        if names is None:
            names = [name for name, array in arrays.items() if array.ndim == 4]
        down, right = self.amounts(ids, epoch)
        for name in names:
            if arrays[name].ndim != 4:
                raise ShapeError(
                    f"RandomShift: field {name} has records of shape {arrays[name].shape[1:]}, "
                    "needed (rows, columns, channels)"
                )
            _shift(arrays[name], down, right, self.pixels, self.fill)

    def amounts(self, ids: Ids, epoch: int) -> tuple[Ids, Ids]:
        """Return how far down and how far right each record moves, shape (k,), int64."""
        span = np.uint64(2 * self.pixels + 1)
        down, right = (random_bits(ids, self.seed, epoch, draw) % span for draw in (0, 1))
        return down.astype(np.int64) - self.pixels, right.astype(np.int64) - self.pixels


def _shift(images: npt.NDArray[Any], down: Ids, right: Ids, most: int, fill: float) -> None:
    k, rows, columns, channels = images.shape
    padded = np.full((k, rows + 2 * most, columns + 2 * most, channels), fill, images.dtype)
    padded[:, most : most + rows, most : most + columns] = images
    # Rows of pixels with all channels in one axis: each image is copied in long runs.
    lines = padded.reshape(k, rows + 2 * most, -1)
    windows = sliding_window_view(lines, (rows, columns * channels), axis=(1, 2))
    chosen = windows[np.arange(k), most - down, (most - right) * channels]
    images[...] = chosen.reshape(images.shape)
