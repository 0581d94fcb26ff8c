"""Arrays that two programs can make alike: sines of the index."""

import math

import numpy as np


def wave(shape, phase=0.0):
    """Return an array of ``shape`` whose elements look random, from -1 to 1."""
    index = np.arange(math.prod(shape), dtype=np.float64)
    return np.sin(index * 1.7 + 0.3 * index**1.5 + phase).reshape(shape)


def fill(place, shape):
    """Return the value of the parameter number ``place``."""
    return wave(shape, 10.0 + place) / math.sqrt(max(1, math.prod(shape[1:])))
