"""What workers and servers agree on, and how a part of a slice is written."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from hpctrain.comm.compress import Codec
from hpctrain.comm.letter import Header, Letter
from hpctrain.errors import ConfigError
from hpctrain.parallel.work import Options

__all__ = ["CODED", "MODES", "ROWS", "Push", "Terms", "body_bytes"]

CODED = 1  # flag of a value: an encoded change
ROWS = 4  # flag of a push or pull: first come numbers of rows, as many as its header says
MODES = ("sync", "async", "bounded")


class Push(NamedTuple):
    """A letter of a worker: a gradient, where it lies, or which rows are asked for."""

    header: Header
    source: int
    letter: Letter


def _plain() -> Codec | None:
    return None


@dataclass(frozen=True, slots=True)
class Terms:
    """How gradients are traded for parameters.

    Attributes
    ----------
    servers : int
        The first ranks of all; the others work.
    mode : {"sync", "async", "bounded"}
        One update for the gradients of all workers; one for each as it comes; the same, but no
        worker gets further ahead of the slowest than ``staleness`` steps.
    staleness : int
    compensation : float
        Factor of the correction of late gradients, where updates do not wait; 0 for none. See
        `hpctrain.parallel.lateness.delayed`.
    ahead : bool
        Whether each worker has a momentum of its own, if the optimizer has one, where updates
        do not wait; see `hpctrain.parallel.lateness.Ahead`.
    debug : bool
        Whether letters have checksums.
    codec : callable
        Makes a codec for what travels, or returns None. Each is used by one thread.
    shared : bool
        Whether ranks of one host share memory, where nothing is encoded.
    tolerate : int
        How many workers may die while the others go on; not in mode ``sync``.
    """

    servers: int = 1
    mode: str = "sync"
    staleness: int = 2
    compensation: float = 0.0
    ahead: bool = False
    debug: bool = False
    codec: Callable[[], Codec | None] = _plain
    shared: bool = True
    tolerate: int = 0

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ConfigError(
                f"exchange.mode: got {self.mode!r}, needed one of {', '.join(MODES)}"
            )
        if self.servers < 1 or self.staleness < 0 or self.compensation < 0:
            raise ConfigError(
                f"exchange: got {self.servers} servers, staleness {self.staleness} and "
                f"compensation {self.compensation:g}, needed at least 1, 0 and 0"
            )
        if self.tolerate and self.sync:
            raise ConfigError(
                f"exchange.tolerate: got {self.tolerate} where rounds need every worker, "
                "needed async, or bounded with a staleness above 0; choose one, or tolerate 0"
            )

    @property
    def sync(self) -> bool:
        """Whether all workers have the same parameters, as if the staleness is 0."""
        return self.mode == "sync" or self.bound == 0

    @property
    def bound(self) -> int | None:
        """How many steps a worker may get ahead; None for any number."""
        return self.staleness if self.mode == "bounded" else None

    def check(self, options: Options) -> None:
        """Raise `ConfigError` if servers cannot carry out steps with these options."""
        if options.sharded:
            raise ConfigError(
                "servers: got Options.sharded, but servers keep the optimizer's state already; "
                "set it to False"
            )


def body_bytes(codec: Codec | None, count: int, exact: int, dtype: Any) -> int:
    """Return the bytes of ``count`` elements, the first ``exact`` of them as they are."""
    itemsize = np.dtype(dtype).itemsize
    if codec is None:
        return count * itemsize
    return exact * itemsize + codec.nbytes(count - exact)
