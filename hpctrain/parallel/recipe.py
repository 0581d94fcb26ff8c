"""A training step as data: what is done, in which order it is pushed, and what it touches.

An `Item` names a verb of `hpctrain.parallel.actions` and the variables that it reads and
writes; the engine orders the items by these. The functions here are pure: the same segments
and rules give the same items, so that all ranks push the same exchanges in the same order.

    compute   feed run run run ... ride | update update ... | feed run ...
    comm               exchange exchange ... exchange | gather ...
"""

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from hpctrain.graph.segments import Segment
from hpctrain.parallel.rules import Rules, rules

__all__ = [
    "WANTED",
    "Item",
    "Key",
    "Role",
    "Rules",
    "asking_items",
    "end_items",
    "exchange_items",
    "gradient_items",
    "nothing_items",
    "posted_early",
    "rules",
]  # fmt: skip

Key = tuple[str, int]  # a variable of the engine: its kind and, of slices, the number

ARENA: Key = ("arena", 0)
FLAG: Key = ("flag", 0)
NORM: Key = ("norm", 0)
SENT: Key = ("sent", 0)
WANTED: Key = ("wanted", 0)
VERDICT: Key = ("verdict", 0)


class Item(NamedTuple):
    """One task of a step.

    Attributes
    ----------
    verb : str
        A method of `hpctrain.parallel.actions.Actions`.
    at : int
        Number of the segment or slice that it works on.
    reads, writes : tuple of Key
    lane : str
    deferred : bool
        Whether it only starts something; see `hpctrain.engine`.
    priority : int
    """

    verb: str
    at: int
    reads: tuple[Key, ...] = ()
    writes: tuple[Key, ...] = ()
    lane: str = "compute"
    deferred: bool = False
    priority: int = 0


READERS = frozenset({"want", "feed", "ride", "nothing", "forward", "backward", "weigh"})
"""Verbs that read the arrays of a batch, here and in a pipeline."""


def parameters(index: int) -> Key:
    """Return the variable of a slice of the parameters and of their optimizer state."""
    return ("parameters", index)


def gradients(index: int) -> Key:
    """Return the variable of a slice of the gradient."""
    return ("gradients", index)


Role = Literal["part", "last", "silent"]


def asking_items(rules: Rules) -> tuple[Item, ...]:
    """Return the items that fetch the rows of a step, when it is known which are wanted."""
    items: list[Item] = []
    for index in rules.asked:
        if rules.overlap:
            # Behind all that the step before sends, for which servers may wait.
            needs = (SENT, WANTED)
            items.append(Item("ask", index, needs, (parameters(index),), "comm", True, -index))
            items.append(Item("take", index, (), (parameters(index),)))
        else:
            items.append(Item("fetch", index, (WANTED,), (parameters(index),)))
    return tuple(items)


def gradient_items(segments: Sequence[Segment], rules: Rules, role: Role) -> tuple[Item, ...]:
    """Return the items that compute the gradient of one part of a batch.

    Parameters
    ----------
    segments : sequence of Segment
    rules : Rules
    role : {"part", "last", "silent"}
        Whether it is the last part of the step: its final slices may be exchanged. Or a part
        that other ranks compute, which only takes part in their messages.
    """
    last = role == "last"
    items = [Item("feed", 0, (VERDICT,) if rules.checked else (), (ARENA,))]
    for number, segment in enumerate(segments):
        items.append(_run(number, segment))
        if role == "silent":
            continue
        items += _finished(sorted(set(segment.final) - {0}), rules, last)
    if role == "silent":
        return tuple(items)
    items.append(Item("ride", 0, (ARENA,), (gradients(0),)))
    items += _finished([0], rules, last)
    if last and rules.checked:
        items.append(Item("flag", 0, (), (FLAG, gradients(0))))
    return tuple(items)


def end_items(counts: Sequence[int], rules: Rules) -> tuple[Item, ...]:
    """Return what ends a gradient that the last of its parts does not, because it is silent.

    Parameters
    ----------
    counts : sequence of int
        Samples of each part.
    rules : Rules
    """
    if not any(counts):
        return nothing_items(rules)
    if counts[-1] or not rules.checked:
        return ()
    looks = [Item("look", i, (gradients(i),), (FLAG,)) for i in rules.order]
    return (*looks, Item("flag", 0, (), (FLAG, gradients(0))))


def nothing_items(rules: Rules) -> tuple[Item, ...]:
    """Return the items of a rank that has no sample of the batch."""
    every = tuple(gradients(index) for index in sorted(rules.order))
    return (Item("nothing", 0, (VERDICT,) if rules.checked else (), (ARENA, *every)),)


def exchange_items(rules: Rules) -> tuple[Item, ...]:
    """Return the items that follow the gradient: exchange, update, result."""
    items = [_sift(rules)] if rules.sifted else []
    items += [_exchange(index, rules) for index in rules.order]
    if not rules.overlap:
        items += [Item("finish", i, (), (gradients(i),)) for i in rules.order]
    if rules.served:
        # The lane need not keep an order, but servers may need all before they answer any.
        sent = [Item("sent", 0, (), (SENT,))] if rules.overlap else []
        return (*items, *sent, *_landed(rules))
    if rules.settled:
        items += [Item("settle", i, (), (gradients(i),)) for i in rules.order]
    items += _measured(rules)
    if rules.checked:
        items.append(Item("judge", 0, (gradients(0), NORM), (VERDICT,)))
    items += [_update(index, rules) for index in rules.order]
    items += _gathered(rules)
    items.append(Item("keep", 0, (gradients(0), *((VERDICT,) if rules.checked else ()))))
    return tuple(items)


def _landed(rules: Rules) -> Iterator[Item]:
    """Yield what follows where servers make the updates."""
    yield from _gathered(rules)
    for index in rules.gathered:
        yield Item("land", index, (), (parameters(index), gradients(index)))
    if rules.checked and not rules.alone:
        yield Item("judge", 0, (gradients(0),), (VERDICT,))
    yield Item("keep", 0, (gradients(0), *((VERDICT,) if rules.checked else ())))


def _sift(rules: Rules) -> Item:
    # Clipping changes slices, and the exchanges of all wait for that.
    return Item("sift", 0, (), (VERDICT, *(gradients(index) for index in sorted(rules.order))))


def posted_early(items: Sequence[Item]) -> list[int]:
    """Return the places of the items, each post right behind what makes its slice final.

    For steps that exchange on the compute lane: there tasks run as they are pushed. The posts
    stay in their order.
    """
    posts = [place for place, item in enumerate(items) if item.verb == "post"]
    end = posts[-1] if posts else 0
    last: dict[Key, int] = {}  # of each variable: the place of the last item that uses it
    for place, item in enumerate(items[:end]):
        if item.verb != "post":
            last.update(dict.fromkeys((*item.reads, *item.writes), place))
    found: list[int] = []
    for place, item in enumerate(items):
        while posts and (
            place > end or all(last.get(key, -1) < place for key in items[posts[0]].writes)
        ):
            found.append(posts.pop(0))
        if item.verb != "post":
            found.append(place)
    return found + posts


def _run(number: int, segment: Segment) -> Item:
    writes = (ARENA, *(gradients(s) for s in segment.writes))
    return Item("run", number, tuple(parameters(s) for s in segment.reads), writes)


def _finished(final: Sequence[int], rules: Rules, last: bool) -> Iterator[Item]:
    """Yield what is done with slices of the gradient of one part when they are final."""
    for index in final:
        if rules.summed:
            yield Item("add_last" if last else "add", index, (), (gradients(index),))
        if last and rules.checked:
            yield Item("look", index, (), (FLAG, gradients(index)))


def _exchange(index: int, rules: Rules) -> Item:
    # Servers may write new parameters where this rank has the old ones, as soon as they have
    # the gradient: whoever reads these has to be done.
    writes = (gradients(index), *((parameters(index),) if rules.served else ()))
    if rules.overlap:
        # A slice is gathered and summed under one key, and this one after that is over: also
        # on a rank without a sample, which reads no parameter.
        if rules.served:  # what the next step needs first leaves first
            return Item("exchange", index, (SENT,), writes, "comm", True, -index)
        before = (parameters(index),) if rules.gathered else ()
        return Item("exchange", index, before, writes, "comm", True)
    return Item("post", index, (), writes)


def _measured(rules: Rules) -> Iterator[Item]:
    """Yield what finds the norm of the gradient."""
    if rules.measured:
        yield Item("measure", 0, tuple(gradients(index) for index in rules.order), (NORM,))
    if rules.measured and rules.shared_norm:
        if rules.overlap:
            yield Item("share_norm", 0, (), (NORM,), "comm", True)
        else:
            yield Item("wait_for_norm", 0, (), (NORM,))


def _gathered(rules: Rules) -> Iterator[Item]:
    """Yield what brings updated parts to all ranks; in the thread of the exchange."""
    for index in rules.gathered:
        if rules.overlap:
            sent = (SENT,) if rules.served else ()
            yield Item("gather", index, sent, (parameters(index),), "comm", True, -index)
        else:
            yield Item("post_gather", index, (), (parameters(index),))
    if not rules.overlap:
        for index in rules.gathered:
            yield Item("finish_gather", index, (), (parameters(index),))


def _update(index: int, rules: Rules) -> Item:
    reads = [gradients(index)]
    reads += [NORM] if rules.measured else []
    reads += [VERDICT] if rules.checked else []
    # What others wait for goes before the next segments; all else in push order.
    urgent = 1 if rules.gathered else 0
    return Item("update", index, tuple(reads), (parameters(index),), priority=urgent)
