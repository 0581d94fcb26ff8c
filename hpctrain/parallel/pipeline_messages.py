"""What an action of a pipeline needs, and the messages that follow from it.

    F of stage s    needs F of stage s - 1
    B of stage s    needs F of stage s, and B of stage s + 1
    W of stage s    needs B of stage s

all of one micro-batch; BW needs what B needs. Where the other stage is on another rank, a
message carries the result. All messages from one rank to another, activations and cotangents
alike, are one *channel*: they are sent in the order in which the sender makes them, and the
receiver posts its receives in that order. So both sides know the order beforehand.
"""

from collections.abc import Mapping
from typing import Literal, NamedTuple

from hpctrain.errors import EngineError
from hpctrain.parallel.pipeline_schedule import Action, PipelineSchedule

__all__ = ["Channel", "Message", "home_of", "message_of", "messages", "needs", "parts"]

Channel = tuple[int, int]  # from rank, to rank


class Message(NamedTuple):
    """The activation of a micro-batch for the next stage, or its cotangent for the one before.

    Attributes
    ----------
    kind : {"activation", "cotangent"}
    stage : int
        The stage that needs it.
    micro : int
    source, dest : int
        Ranks.
    """

    kind: Literal["activation", "cotangent"]
    stage: int
    micro: int
    source: int
    dest: int

    def __str__(self) -> str:
        return f"{self.kind} of micro-batch {self.micro} for stage {self.stage}"

    @property
    def carried(self) -> Action:
        """The F or B whose result this is."""
        if self.kind == "activation":
            return Action("F", self.stage - 1, self.micro)
        return Action("B", self.stage + 1, self.micro)


def parts(action: Action) -> tuple[Action, ...]:
    """Return an action as its single parts: BW as B and W, every other as itself."""
    kinds: tuple[Literal["F", "B", "W", "BW"], ...] = (action.kind,)
    if action.kind == "BW":
        kinds = "B", "W"
    return tuple(Action(kind, action.stage, action.micro) for kind in kinds)


def needs(action: Action, last: int) -> tuple[Action, ...]:
    """Return what must be done before ``action``; ``last`` is the number of the last stage."""
    kind, stage, micro = action
    if kind == "F":
        return (Action("F", stage - 1, micro),) if stage else ()
    if kind == "W":
        return (Action("B", stage, micro),)
    after = (Action("B", stage + 1, micro),) if stage < last else ()
    return (Action("F", stage, micro), *after)


def home_of(schedule: PipelineSchedule) -> dict[int, int]:
    """Return the rank of each stage.

    Raises
    ------
    EngineError
        If a stage is on two ranks.
    """
    home: dict[int, int] = {}
    for rank, actions in enumerate(schedule):
        for _, stage, _ in actions:
            if home.setdefault(stage, rank) != rank:
                raise EngineError(
                    f"verify: got stage {stage} on ranks {home[stage]} and {rank}, needed all "
                    "of its work on one"
                )
    return home


def message_of(action: Action, home: Mapping[int, int]) -> Message | None:
    """Return what is sent when ``action`` is done; None if nothing leaves the rank."""
    kind, stage, micro = action
    to = {"F": stage + 1, "B": stage - 1, "BW": stage - 1}.get(kind, -1)
    if to not in home or home[to] == home[stage]:
        return None
    carries: Literal["activation", "cotangent"] = "activation" if kind == "F" else "cotangent"
    return Message(carries, to, micro, home[stage], home[to])


def messages(schedule: PipelineSchedule) -> dict[Channel, tuple[Message, ...]]:
    """Return the messages of each channel, in the order of sending and of receiving.

    Parameters
    ----------
    schedule : PipelineSchedule

    Returns
    -------
    dict of (source, dest) to tuple of Message
        A rank sends as it goes through its actions, so the order of its sends over all
        channels is that of its actions; it posts receives channel by channel, in this order.

    Examples
    --------
    >>> from hpctrain.parallel.pipeline_schedule import schedule
    >>> for (source, dest), found in messages(schedule("1f1b", 2, 2)).items():
    ...     print(source, dest, *found, sep="; ")
    0; 1; activation of micro-batch 0 for stage 1; activation of micro-batch 1 for stage 1
    1; 0; cotangent of micro-batch 0 for stage 0; cotangent of micro-batch 1 for stage 0
    """
    home, found = home_of(schedule), dict[Channel, list[Message]]()
    for actions in schedule:
        for action in actions:
            sent = message_of(action, home)
            if sent is not None:
                found.setdefault((sent.source, sent.dest), []).append(sent)
    return {channel: tuple(sent) for channel, sent in found.items()}
