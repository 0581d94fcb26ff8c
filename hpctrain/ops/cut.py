"""How an axis is divided over the ranks of a team: equal blocks, each cut into spans of units.

A vector of n features is one block of n units. The queries, keys and values of H heads of width
D, side by side, are three blocks of H units of D elements: each rank has some heads of each.
Rows of pixels with C channels, made one axis, are as many blocks of C units.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from hpctrain.autograd import Spec

__all__ = ["ONE", "Cut", "Place", "Seat", "Team"]


class Place(Protocol):
    """A rank among those that share layers."""

    @property
    def rank(self) -> int:
        """Its number."""

    @property
    def size(self) -> int:
        """How many there are."""


class Team(Place, Protocol):
    """The ranks that share layers; see `hpctrain.comm.team`. Hashable."""

    def swap(self, sent: Sequence[Any], received: Sequence[Any], name: str) -> None:
        """Send an array to each rank, and receive one from each; ``name`` says what for."""


@dataclass(frozen=True)
class Seat:
    """A place in a team: another rank's, say."""

    rank: int
    size: int


@dataclass(frozen=True)
class _One(Seat):
    """A team of one rank, which has everything."""

    rank: int = 0
    size: int = 1

    def swap(self, sent: Any, received: Any, name: str) -> None:
        """Send nothing."""

    def __repr__(self) -> str:
        return "1 rank"


ONE: Team = _One()


@dataclass(frozen=True, slots=True)
class Cut:
    """How an array is divided along one axis.

    Attributes
    ----------
    axis : int
    blocks : int
        Equal parts of the axis, each of which is divided over the ranks.
    unit : int
        Elements that stay together.
    """

    axis: int
    blocks: int = 1
    unit: int = 1

    def __str__(self) -> str:
        more = f" in {self.blocks} blocks" if self.blocks > 1 else ""
        return f"axis {self.axis}{more}" + (f" by {self.unit}" if self.unit > 1 else "")

    def along(self, axis: int) -> "Cut":
        """Return the same cut of another axis."""
        return Cut(axis, self.blocks, self.unit)

    def units(self, length: int) -> int:
        """Return the units in a block of an axis of ``length``; 0 if it does not fit."""
        whole = self.blocks * self.unit
        return length // whole if length % whole == 0 else 0

    def span(self, length: int, team: Place, rank: int = -1) -> tuple[int, int]:
        """Return the first unit of a block that a rank has (this one), and the end."""
        place = team.rank if rank < 0 else rank
        least, more = divmod(self.units(length), team.size)
        start = place * least + min(place, more)
        return start, start + least + (place < more)

    def length(self, length: int, team: Place) -> int:
        """Return how many elements of an axis of ``length`` this rank has."""
        start, stop = self.span(length, team)
        return self.blocks * (stop - start) * self.unit

    def shape(self, shape: tuple[int, ...], team: Place) -> tuple[int, ...]:
        """Return the shape of this rank's part of an array."""
        here = self.length(shape[self.axis], team)
        return (*shape[: self.axis], here, *shape[self.axis + 1 :])

    def spec(self, spec: Spec, team: Place) -> Spec:
        """Return the spec of this rank's part of an array."""
        return spec.with_shape(self.shape(spec.shape, team))

    def parts(self, array: Any, team: Place) -> list[Any]:
        """Return the parts of a whole contiguous array by rank: views (blocks, units, rest)."""
        length = array.shape[self.axis]
        rows = math.prod(array.shape[: self.axis]) * self.blocks
        flat = array.reshape(rows, self.units(length), -1)
        spans = (self.span(length, team, rank) for rank in range(team.size))
        return [flat[:, start:stop] for start, stop in spans]

    def part(self, array: Any, team: Place) -> Any:
        """Return this rank's part of a whole contiguous array, in its shape; may be a copy."""
        part = self.parts(array, team)[team.rank]
        return part.reshape(self.shape(array.shape, team))
