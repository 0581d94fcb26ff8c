"""What parameters hold before the first update.

An initializer is a callable ``(rng, shape, fans) -> array``: a pure function of the state of
``rng``, of the shape, and of the numbers of inputs and outputs that an element of the weight
connects. `initial_value` gives it a generator of its own for each parameter, keyed by the
seed and the parameter's name: so a value does not depend on the order of initialisation, on
the rank, or on which other parameters exist there.
"""

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpctrain.errors import ConfigError, ShapeError

__all__ = [
    "Constant", "Initializer", "Kaiming", "LSTMBias", "MSRAPrelu", "Normal", "One",
    "Orthogonal", "RandomStream", "Uniform", "Xavier", "Zero", "create", "fans_of",
    "initial_value",
]  # fmt: skip

Shape = tuple[int, ...]
Fans = tuple[int, int]  # inputs, outputs
Initializer = Callable[[np.random.Generator, Shape, Fans], Any]


def fans_of(shape: Shape, out_axis: int = 0, in_axis: int = 1) -> Fans:
    """Return how many inputs and outputs each element of a weight connects.

    Parameters
    ----------
    shape : tuple of int
        Of a weight; its axes but two are the window of a convolution.
    out_axis, in_axis : int
        The axes that count outputs and inputs.

    Returns
    -------
    (int, int)
        Inputs times window, outputs times window. A vector counts as a row of outputs.
    """
    if len(shape) < 2:
        return 1, math.prod(shape)
    window = math.prod(shape) // max(1, shape[out_axis] * shape[in_axis])
    return shape[in_axis] * window, shape[out_axis] * window


def initial_value(
    init: Initializer, shape: Shape, dtype: Any, seed: int, name: str, fans: Fans | None = None
) -> np.ndarray:
    """Return the first value of a parameter: a pure function of the arguments.

    Parameters
    ----------
    init : Initializer
    shape : tuple of int
    dtype : dtype
        Random numbers are drawn in double precision, then rounded to it.
    seed : int
    name : str
        Structural name of the parameter in the whole model.
    fans : (int, int), optional
        Inputs and outputs; of axes 1 and 0 if None.

    Returns
    -------
    ndarray, shape ``shape``, C-contiguous, on the host
    """
    digest = hashlib.blake2b(f"{seed}:{name}".encode(), digest_size=16).digest()
    rng = np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "little")))
    value = np.asarray(init(rng, shape, fans or fans_of(shape)))
    if value.shape != shape:
        raise ShapeError(
            f"initializer: {init} gave an array of shape {value.shape} for the parameter "
            f"{name!r} of shape {shape}"
        )
    return np.ascontiguousarray(value, dtype).reshape(shape)


@dataclass(frozen=True)
class Constant:
    """Set every element to ``value``, or to those of an array of the parameter's shape."""

    value: Any = 0.0

    def __call__(self, rng: np.random.Generator, shape: Shape, fans: Fans) -> Any:
        """Return the value, broadcast to ``shape``."""
        return np.broadcast_to(np.asarray(self.value), shape)


@dataclass(frozen=True)
class Zero(Constant):
    """Set every element to 0."""

    value: Any = 0.0


@dataclass(frozen=True)
class One(Constant):
    """Set every element to 1."""

    value: Any = 1.0


@dataclass(frozen=True)
class Uniform:
    """Draw from (-scale, scale)."""

    scale: float = 0.07

    def __call__(self, rng: np.random.Generator, shape: Shape, fans: Fans) -> Any:
        """Return an array of ``shape``."""
        return rng.uniform(-self.scale, self.scale, shape)


@dataclass(frozen=True)
class Normal:
    """Draw from the normal distribution with mean 0 and standard deviation ``sigma``."""

    sigma: float = 0.01

    def __call__(self, rng: np.random.Generator, shape: Shape, fans: Fans) -> Any:
        """Return an array of ``shape``."""
        return rng.standard_normal(shape) * self.sigma


@dataclass(frozen=True)
class Xavier:
    """Keep the variance from layer to layer: ``magnitude / fan`` by the chosen fan.

    Parameters
    ----------
    rnd_type : {"uniform", "gaussian"}
    factor_type : {"avg", "in", "out"}
        Which fan divides: the mean of both, the inputs, or the outputs.
    magnitude : float
        3 gives the uniform distribution the variance ``1 / fan``; the normal distribution
        has the variance ``magnitude / fan``.

    References
    ----------
    Glorot and Bengio, "Understanding the difficulty of training deep feedforward neural
    networks", AISTATS 2010.
    """

    rnd_type: str = "uniform"
    factor_type: str = "avg"
    magnitude: float = 3.0

    def __post_init__(self) -> None:
        if self.rnd_type not in ("uniform", "gaussian"):
            raise ConfigError(
                f"Xavier: got rnd_type {self.rnd_type!r}, needed uniform or gaussian"
            )
        if self.factor_type not in ("avg", "in", "out"):
            raise ConfigError(
                f"Xavier: got factor_type {self.factor_type!r}, needed avg, in or out"
            )

    def __call__(self, rng: np.random.Generator, shape: Shape, fans: Fans) -> Any:
        """Return an array of ``shape``."""
        fan_in, fan_out = fans
        fan = {"avg": (fan_in + fan_out) / 2, "in": fan_in, "out": fan_out}[self.factor_type]
        scale = math.sqrt(self.magnitude / max(1, fan))
        if self.rnd_type == "uniform":
            return rng.uniform(-scale, scale, shape)
        return rng.standard_normal(shape) * scale


def MSRAPrelu(factor_type: str = "in", slope: float = 0.0) -> Xavier:  # noqa: N802 (MXNet's)
    """Return the initializer for layers before a rectifier with ``slope`` below zero.

    References
    ----------
    He et al., "Delving deep into rectifiers", ICCV 2015.
    """
    return Xavier("gaussian", factor_type, 2.0 / (1 + slope**2))


Kaiming = MSRAPrelu


@dataclass(frozen=True)
class Orthogonal:
    """Draw a random matrix with orthonormal rows or columns, times ``scale``.

    References
    ----------
    Saxe, McClelland and Ganguli, "Exact solutions to the nonlinear dynamics of learning in
    deep linear neural networks", ICLR 2014.
    """

    scale: float = math.sqrt(2)

    def __call__(self, rng: np.random.Generator, shape: Shape, fans: Fans) -> Any:
        """Return an array of ``shape``, a matrix of its first axis against the others."""
        rows, columns = shape[0], math.prod(shape[1:])
        q, r = np.linalg.qr(rng.standard_normal((max(rows, columns), min(rows, columns))))
        q = q * np.sign(np.diag(r))  # makes the distribution uniform over such matrices
        return (q if rows >= columns else q.T).reshape(shape) * self.scale


@dataclass(frozen=True)
class LSTMBias:
    """Zeros, but ``forget_bias`` for the forget gates, the second quarter.

    References
    ----------
    Jozefowicz, Zaremba and Sutskever, "An empirical exploration of recurrent network
    architectures", ICML 2015.
    """

    forget_bias: float = 1.0

    def __call__(self, rng: np.random.Generator, shape: Shape, fans: Fans) -> Any:
        """Return an array of shape (4 H,)."""
        value = np.zeros(shape)
        value[shape[0] // 4 : shape[0] // 2] = self.forget_bias
        return value


@dataclass(frozen=True)
class RandomStream:
    """The state of a stream of random numbers: a key, and the counter and row 0."""

    def __call__(self, rng: np.random.Generator, shape: Shape, fans: Fans) -> Any:
        """Return three unsigned numbers of 64 bits."""
        return np.array([rng.integers(2**64, dtype=np.uint64), 0, 0], np.uint64)


_KINDS: dict[str, Callable[[], Initializer]] = {
    "zeros": Zero, "zero": Zero, "ones": One, "one": One, "uniform": Uniform, "normal": Normal,
    "xavier": Xavier, "msraprelu": MSRAPrelu, "kaiming": Kaiming, "orthogonal": Orthogonal,
    "lstmbias": LSTMBias,
}  # fmt: skip


def create(init: str | float | Sequence[Any] | np.ndarray | Initializer | None) -> Initializer:
    """Return the initializer that ``init`` names; ``Xavier()`` if None.

    Parameters
    ----------
    init : str, number, array, Initializer or None
        A number or an array stands for `Constant`. The default differs from MXNet's
        ``Uniform(0.07)``, which does not know the width of the layer.

    Raises
    ------
    ConfigError
        If the name is unknown.
    """
    if init is None:
        return Xavier()
    if isinstance(init, str):
        if init.lower() not in _KINDS:
            raise ConfigError(f"initializer: got {init!r}, needed one of {', '.join(_KINDS)}")
        return _KINDS[init.lower()]()
    return init if callable(init) else Constant(init)
