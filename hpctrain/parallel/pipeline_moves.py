"""What the items of a pipeline's step are about, and what its ranks have in common."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from hpctrain.comm.group import Group
from hpctrain.parallel.actions import Turn
from hpctrain.parallel.bound_stage import BoundStage
from hpctrain.parallel.parcels import Box
from hpctrain.parallel.pipeline_recipe import Berth, Deed
from hpctrain.parallel.pipeline_schedule import Action
from hpctrain.parallel.pipeline_stages import RankStages, Recipe
from hpctrain.parallel.work import Work

__all__ = ["Move", "Ties", "moves_of"]

Awaited = tuple[Box | None, Box | None]


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
    awaits : (box or None, box or None)
        What the next action waits for: a message, and that one has left; see `Parcels`.
    expected : mapping of int to sequence of int
        For the first item: bytes of the messages that will come, by rank.
    boxes : int
    """

    action: Action | None = None
    stage: BoundStage | None = None
    slot: int = 0
    inbox: Berth | None = None
    outbox: Berth | None = None
    awaits: Awaited = (None, None)
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


def moves_of(
    made: Recipe, stages: RankStages, micros: Sequence[Work], end: Move
) -> list[tuple[Deed, Move]]:
    """Return the deeds of a step with what each is about.

    Parameters
    ----------
    made : Recipe
    stages : RankStages
    micros : sequence of Work
        The micro-batches of the step.
    end : Move
        What all that is no action is about.
    """
    bound = [stages.bound(work.specs()) for work in micros]
    found: list[tuple[Deed, Move]] = []
    awaits: Awaited = None, None
    for deed in reversed(made.deeds):
        move, action = end, deed.action
        if action is not None:
            move = Move(
                end.number,
                micros[action.micro],
                stop=end.stop,
                action=action,
                stage=bound[action.micro][action.stage],
                slot=stages.slot(action),
                inbox=deed.inbox,
                outbox=deed.outbox,
                awaits=awaits,
            )
        elif deed.item.verb == "open":
            move = replace(end, expected=made.expected, boxes=made.boxes, awaits=awaits)
        found.append((deed, move))
        if deed.item.verb in ("forward", "backward", "weigh"):
            awaits = _box(deed.inbox), _box(deed.outbox)
    return found[::-1]


def _box(berth: Berth | None) -> Box | None:
    return None if berth is None else (berth.rank, berth.place)
