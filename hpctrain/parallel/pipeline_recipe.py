"""A training step of one rank of a pipeline as data; see `hpctrain.parallel.recipe`.

The actions of a schedule run on the compute lane strictly in their order, since each writes
the arena. A message is started by the action that has made it; its arrival and its departure
are tasks of their own on the lane ``wire``, so that they go on while the next action computes.

    compute   open F0 F1 ........ BW0 F2 BW1 ...     ride | update ... | open F0 ...
    wire         arrive   leave arrive leave ...
    comm                                 exchange ...
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hpctrain.engine import LaneSpec
from hpctrain.graph.segments import Segment
from hpctrain.parallel.parcels import OUTBOXES
from hpctrain.parallel.pipeline_messages import (
    Message,
    home_of,
    message_of,
    messages,
    needs,
    parts,
)
from hpctrain.parallel.pipeline_schedule import Action, PipelineSchedule
from hpctrain.parallel.recipe import (
    ARENA,
    FLAG,
    VERDICT,
    Item,
    Key,
    Rules,
    exchange_items,
    gradients,
    parameters,
)

__all__ = [
    "WIRE", "Berth", "Deed", "StageFacts", "awaited", "berths", "deeds", "end_items",
    "slot_counts", "wire_lane",
]  # fmt: skip

WIRE = "wire"
PATIENCE_S = 2e-3  # between two looks for messages that no action waits for yet
LINE: Key = ("line", 0)  # whoever starts a collective over the pipeline


class Berth(NamedTuple):
    """A message, and the box of the other rank that it is in."""

    rank: int
    place: int
    message: Message


class Deed(NamedTuple):
    """One item of a step, and what it is about."""

    item: Item
    action: Action | None = None
    inbox: Berth | None = None
    outbox: Berth | None = None

    @property
    def label(self) -> str:
        """The name in traces, such as ``F3 stage 1``."""
        if self.action is None:
            return f"{self.item.verb} {self.item.at}"
        kind = {"forward": "F", "backward": "B", "weigh": "W"}.get(self.item.verb)
        what = kind or f"{self.item.verb} "
        return f"{what}{self.action.micro} stage {self.action.stage}"


@dataclass(frozen=True, slots=True)
class StageFacts:
    """What the items of a stage touch.

    Attributes
    ----------
    reads, slices : tuple of int
        Slices of the parameters that it reads, and of the gradient that it writes.
    segments : tuple of Segment
        Of the W of the last micro-batch.
    """

    reads: tuple[int, ...]
    slices: tuple[int, ...]
    segments: tuple[Segment, ...]


def awaited(action: Action, home: Mapping[int, int]) -> Message | None:
    """Return the message that an action needs; None if it needs none."""
    rank = home[action.stage]
    for need in needs(action, max(home)):
        if need.stage != action.stage:
            sent = message_of(need, home)
            assert sent is not None or home[need.stage] == rank, "another rank sends"
            return sent
    return None


def berths(schedule: PipelineSchedule, rank: int, boxes: int) -> dict[Message, int]:
    """Return the number of the box that each message for ``rank`` comes into.

    A box takes the next message that is not posted, in the order of sending, as soon as the
    action that needs what is in it has begun.
    """
    home = home_of(schedule)
    found: dict[Message, int] = {}
    for (_, dest), order in messages(schedule).items():
        if dest != rank:
            continue
        found.update((message, place) for place, message in enumerate(order[:boxes]))
        waiting = deque(order[boxes:])
        for action in schedule[rank]:
            message = awaited(action, home)
            if message in order and waiting:
                found[waiting.popleft()] = found[message]
    return found


def slot_counts(schedule: PipelineSchedule, rank: int) -> dict[int, int]:
    """Return for each stage of ``rank`` how many micro-batches it keeps at once, at most."""
    kept: dict[int, int] = {}
    most: dict[int, int] = {}
    for action in schedule[rank]:
        for kind, stage, _ in parts(action):
            kept[stage] = kept.get(stage, 0) + (kind == "F") - (kind == "W")
            most[stage] = max(most.get(stage, 0), kept[stage])
    return most


def deeds(
    schedule: PipelineSchedule,
    rank: int,
    facts: Mapping[int, StageFacts],
    rules: Rules,
    boxes: int,
) -> list[Deed]:
    """Return what ``rank`` does until its gradient is complete.

    Parameters
    ----------
    schedule : PipelineSchedule
    rank : int
        Within the pipeline.
    facts : mapping of int to StageFacts
        Of the stages of this rank.
    rules : Rules
    boxes : int
        For the messages from each other rank.
    """
    home, place = home_of(schedule), berths(schedule, rank, boxes)
    posts: dict[int, int] = {}  # messages sent so far, by rank
    inboxes = {("inbox " + str(m.source), p) for m, p in place.items()}
    before = (VERDICT,) if rules.checked else ()
    found = [Deed(Item("open", 0, before, (ARENA, *sorted(inboxes))))]
    owner = _last_owners(schedule[rank], facts)
    for action in schedule[rank]:
        message, sent = awaited(action, home), message_of(action, home)
        inbox = None if message is None else Berth(message.source, place[message], message)
        outbox = None
        if sent is not None:
            count = posts[sent.dest] = posts.get(sent.dest, -1) + 1
            outbox = Berth(sent.dest, count % OUTBOXES, sent)
        found += _action(action, inbox, outbox, facts[action.stage], rules)
        if "W" in action.kind:
            last = action.micro == _last_micro(schedule)
            found += _weight(
                action, facts[action.stage], rules, owner if last else None, outbox
            )
        if outbox is not None:
            found += _sent(action, outbox, rules)
    found.append(Deed(Item("ride", 0, (ARENA,), (gradients(0),))))
    if rules.checked:
        found.append(Deed(Item("look", 0, (), (FLAG, gradients(0)))))
        found.append(Deed(Item("flag", 0, (), (FLAG, gradients(0)))))
    return found


def _action(
    action: Action, inbox: Berth | None, outbox: Berth | None, facts: StageFacts, rules: Rules
) -> Iterator[Deed]:
    """Yield F or B, which writes the message that follows; nothing for W."""
    if action.kind == "W":
        return
    writes: list[Key] = [ARENA]
    if inbox is not None:
        key = (f"inbox {inbox.rank}", inbox.place)
        writes.append(key)
        if rules.overlap:
            yield Deed(Item("arrive", 0, (), (key,), WIRE, True), action, inbox)
    if outbox is not None:
        writes.append(_key(outbox))
    reads = tuple(map(parameters, facts.reads))
    verb = "forward" if action.kind == "F" else "backward"
    yield Deed(Item(verb, 0, reads, tuple(writes)), action, inbox, outbox)


def _sent(action: Action, outbox: Berth, rules: Rules) -> Iterator[Deed]:
    """Yield the departure of a message; of a BW when all of it is done."""
    if action.kind == "BW":
        yield Deed(Item("send", 0, (), (ARENA, _key(outbox))), action, None, outbox)
    if rules.overlap:
        yield Deed(Item("leave", 0, (), (_key(outbox),), WIRE, True), action, None, outbox)


def _key(outbox: Berth) -> Key:
    return f"outbox {outbox.rank}", outbox.place


def _weight(
    action: Action,
    facts: StageFacts,
    rules: Rules,
    owner: Mapping[int, int] | None,
    outbox: Berth | None,
) -> Iterator[Deed]:
    """Yield W; that of the last micro-batch in segments, since their slices may be final."""
    reads = tuple(map(parameters, facts.reads))
    if not facts.slices and outbox is None:
        return
    touched = (ARENA,) if outbox is None else (ARENA, _key(outbox))
    if owner is None:
        writes = (*touched, *map(gradients, facts.slices))
        yield Deed(Item("weigh", -1, reads, writes), action, None, outbox)
        return
    for number, segment in enumerate(facts.segments):
        writes = (*touched, *map(gradients, segment.writes))
        yield Deed(Item("weigh", number, reads, writes), action, None, outbox)
        for index in segment.final:
            if rules.checked and index and owner[index] == action.stage:
                yield Deed(Item("look", index, (), (FLAG, gradients(index))), action)


def _last_micro(schedule: PipelineSchedule) -> int:
    return max(action.micro for actions in schedule for action in actions)


def _last_owners(actions: Sequence[Action], facts: Mapping[int, StageFacts]) -> dict[int, int]:
    """Return for each slice the stage that is the last to add to it."""
    found: dict[int, int] = {}
    for kind, stage, _ in actions:
        if "W" in kind:
            found.update(dict.fromkeys(facts[stage].slices, stage))
    return found


def end_items(rules: Rules, ties: Sequence[int]) -> tuple[Item, ...]:
    """Return the items that follow the gradient.

    Parameters
    ----------
    rules : Rules
    ties : sequence of int
        Slices whose parameter is on other ranks of the pipeline too. Their gradient is summed
        over these once it is that of the global batch, so that all copies get the same bits.
    """
    tied: list[Item] = []
    for index in ties:
        tied.append(Item("tie", index, (), (gradients(index), LINE)))
        tied.append(_awaited("tied", index, (gradients(index),), rules))
    tell = [
        Item("tell", 0, (), (gradients(0), LINE)),
        _awaited("told", 0, (gradients(0),), rules),
    ]
    items = list(exchange_items(rules))
    verbs = [item.verb for item in items]
    # A verdict needs word from all stages; without one nobody waits for it before `keep`.
    place = verbs.index("judge" if rules.checked else "keep")
    items[place:place] = tell
    first = next(i for i, verb in enumerate(verbs) if verb in ("measure", "judge", "update"))
    items[first:first] = tied
    return tuple(items)


def _awaited(verb: str, index: int, writes: tuple[Key, ...], rules: Rules) -> Item:
    """Return what waits for a collective over the pipeline."""
    if rules.overlap:
        return Item(verb, index, (), writes, WIRE, True)
    return Item(f"wait_{verb}", index, (), writes)


def wire_lane(ranks: int, pause_s: float) -> LaneSpec:
    """Return the lane of a pipeline's messages: whatever is under way is looked after.

    Looks take 5 to 8 % of the time of a core when they come as often as they must while an
    action waits.
    """
    return LaneSpec(
        in_flight=64 + 4 * ranks, pause_s=pause_s, beside="compute", patience_s=PATIENCE_S
    )
