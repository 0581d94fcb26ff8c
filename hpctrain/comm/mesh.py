"""The ranks as a grid: data × pipeline × tensor."""

import math
from typing import NamedTuple

from hpctrain.comm.freed import Freed
from hpctrain.comm.group import Group
from hpctrain.errors import ConfigError


class Shape(NamedTuple):
    """How many ranks lie along each axis of the grid, or where one rank lies on each."""

    data: int
    pipeline: int
    tensor: int


def shape_of(size: int, data: int | None = None, pipeline: int = 1, tensor: int = 1) -> Shape:
    """Return the grid of ``size`` ranks; ``data`` is what is left, if it is None.

    Raises
    ------
    ConfigError
        If the three do not multiply to ``size``.

    Examples
    --------
    >>> shape_of(8, pipeline=4)
    Shape(data=2, pipeline=4, tensor=1)
    """
    for name, count in (("data", data), ("pipeline", pipeline), ("tensor", tensor)):
        if count is not None and count < 1:
            raise ConfigError(f"mesh: {name} is {count}, needed at least 1")
    replica = pipeline * tensor
    if data is None:
        if size % replica == 0:
            return Shape(size // replica, pipeline, tensor)
        fits = [str(n) for n in (size // replica * replica, -(-size // replica) * replica) if n]
        raise ConfigError(
            f"mesh: pipeline ({pipeline}) x tensor ({tensor}) = {replica} does not divide "
            f"{size} ranks; start mpirun -n {' or '.join(fits)} or change [parallel]"
        )
    if data * replica != size:
        raise ConfigError(
            f"mesh: data ({data}) x pipeline ({pipeline}) x tensor ({tensor}) = "
            f"{data * replica} does not match {size} ranks; start mpirun -n {data * replica} "
            "or change [parallel]"
        )
    return Shape(data, pipeline, tensor)


def coordinates(rank: int, shape: Shape) -> Shape:
    """Return where ``rank`` lies: tensor varies fastest, data slowest.

    So the ranks that talk most, along tensor, are neighbours on one host, and a replica is
    spread over as few hosts as possible.

    Examples
    --------
    >>> coordinates(5, Shape(2, 2, 2))
    Shape(data=1, pipeline=0, tensor=1)
    """
    if not 0 <= rank < math.prod(shape):
        raise ConfigError(f"mesh: rank {rank} is outside a grid of {math.prod(shape)} ranks")
    rest, tensor = divmod(rank, shape.tensor)
    data, pipeline = divmod(rest, shape.pipeline)
    return Shape(data, pipeline, tensor)


class Mesh(Freed):
    """The place of this rank in the grid, and the groups of its row along each axis.

    Parameters
    ----------
    group : Group
        All ranks; collective.
    data : int, optional
        Replicas of the model; what is left of the ranks if not given.
    pipeline, tensor : int
        Stages of a replica, and ranks that share each layer.

    Attributes
    ----------
    shape, place : Shape
        The size of the grid, and where this rank lies in it.
    whole : Group
        All ranks, as given.
    data, pipeline, tensor : Group
        The ranks that differ from this one along that axis only; in each, the rank is the
        coordinate.
    replica : Group
        The ranks with the same part of each batch: all stages, and all that share a layer.

    Raises
    ------
    ConfigError
        If the numbers do not fit the ranks.
    """

    def __init__(
        self, group: Group, data: int | None = None, pipeline: int = 1, tensor: int = 1
    ) -> None:
        self.shape = shape_of(group.size, data, pipeline, tensor)
        self.place = coordinates(group.rank, self.shape)
        self.whole = group
        self.data, self.pipeline, self.tensor = (self._row(group, axis) for axis in range(3))
        self.replica = group.split(self.place.data, group.rank)

    def _row(self, group: Group, axis: int) -> Group:
        # Ranks whose other two coordinates are equal make a row; its number names them.
        at, size = list(self.place), list(self.shape)
        at[axis], size[axis] = 0, 1
        row = (at[0] * size[1] + at[1]) * size[2] + at[2]
        return group.split(row, self.place[axis])

    def free(self) -> None:
        """Free the groups; collective."""
        for group in (self.data, self.pipeline, self.tensor, self.replica):
            group.free()
