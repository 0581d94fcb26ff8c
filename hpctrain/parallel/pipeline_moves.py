"""What the items of a pipeline's step are about, and what its ranks have in common."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hpctrain.comm.group import Group
from hpctrain.parallel.actions import Turn
from hpctrain.parallel.bound_stage import BoundStage
from hpctrain.parallel.pipeline_recipe import Berth
from hpctrain.parallel.pipeline_schedule import Action

__all__ = ["Move", "Ties"]


@dataclass(frozen=True, slots=True)
class Move(Turn):
    """What one item of a pipeline's step is about.

    Attributes
    ----------
    action : Action or None
    stage : BoundStage or None
        Of the action, for the shape of its micro-batch.
    slot : int
        Where the stage keeps the micro-batch.
    inbox, outbox : Berth or None
    expected : mapping of int to sequence of int
        For the first item: bytes of the messages that will come, by rank.
    boxes : int
    """

    action: Action | None = None
    stage: BoundStage | None = None
    slot: int = 0
    inbox: Berth | None = None
    outbox: Berth | None = None
    expected: Mapping[int, Sequence[int]] = field(default_factory=dict)
    boxes: int = 1


@dataclass(frozen=True, slots=True)
class Ties:
    """Parameters that are on several ranks of a pipeline.

    Attributes
    ----------
    groups : mapping of int to Group
        By the slice of such a parameter: the ranks that have it.
    elsewhere : frozenset of int
        Those of these slices that an earlier rank counts in the norm of the gradient.
    numbers : tuple of int
        Of the trained parameters of this rank within the whole model; -1 for those that
        another rank of its team counts.
    count : int
        How many numbers there are.
    """

    groups: Mapping[int, Group] = field(default_factory=dict)
    elsewhere: frozenset[int] = frozenset()
    numbers: tuple[int, ...] = ()
    count: int = 0
