"""The items of a step: everything happens once, in an order that its reads and writes allow."""

import itertools

import pytest

from hpctrain.graph.segments import Segment
from hpctrain.parallel.recipe import (
    exchange_items,
    gradient_items,
    nothing_items,
    posted_early,
    rules,
)
from hpctrain.parallel.work import Options

pytestmark = pytest.mark.serial
# Three slices of parameters are read in turn, and become final the other way round.
SEGMENTS = [
    Segment(0, 2, (0,), (), (), "forward 0"),
    Segment(2, 3, (1,), (), (), "forward 1"),
    Segment(3, 5, (2,), (2,), (2,), "loss"),
    Segment(5, 6, (), (1,), (1,), "backward 1"),
    Segment(6, 9, (), (0,), (0,), "backward 0"),
]
KINDS = [
    {},
    {"overlap": False},
    {"clip_norm": 1.0},
    {"skip": True},
    {"sharded": True},
    {"sharded": True, "clip_norm": 1.0, "skip": True},
    {"sharded": True, "overlap": False},
]


def items(order=(2, 1, 0), parts=1, settled=False, **how):
    made = rules(Options(**how), order, True, parts > 1, settled)
    found = []
    for part in range(parts):
        found += gradient_items(SEGMENTS, made, "last" if part == parts - 1 else "part")
    found += exchange_items(made)
    if not how.get("overlap", True):
        found = [found[i] for i in posted_early(found)]
    return found


def places(found, verb, at=None):
    return [i for i, item in enumerate(found) if item.verb == verb and at in (None, item.at)]


@pytest.mark.parametrize("how", KINDS, ids=str)
@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_each_slice_is_exchanged_and_updated_once_in_the_order_given(order, how):
    found = items(order, **how)
    start = "exchange" if how.get("overlap", True) else "post"

    assert [found[i].at for i in places(found, start)] == list(order)
    assert [found[i].at for i in places(found, "update")] == list(order)
    assert [found[i].at for i in places(found, "run")] == list(range(len(SEGMENTS)))


@pytest.mark.parametrize("how", KINDS, ids=str)
@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_a_slice_is_final_before_it_is_sent_and_arrives_before_it_is_used(order, how):
    found = items(order, **how)
    overlap = how.get("overlap", True)
    for index, last_run in ((2, 2), (1, 3), (0, 4)):
        sent = places(found, "exchange" if overlap else "post", index)[0]
        assert places(found, "run", last_run)[0] < sent
        arrived = sent if overlap else places(found, "finish", index)[0]
        assert arrived < places(found, "update", index)[0]
    assert places(found, "ride")[0] < places(found, "exchange" if overlap else "post", 0)[0]


def test_posts_come_as_early_as_their_order_allows():
    found = items(order=(2, 1, 0), overlap=False)
    assert [(i.verb, i.at) for i in found[:9]] == [
        ("feed", 0), ("run", 0), ("run", 1), ("run", 2), ("post", 2), ("run", 3), ("post", 1),
        ("run", 4), ("ride", 0),
    ]  # fmt: skip
    # The first in order is the last to be final: the others wait for it.
    found = items(order=(0, 1, 2), overlap=False)
    verbs = [i.verb for i in found]
    assert verbs.index("post") > verbs.index("ride")


def test_whoever_has_no_sample_starts_the_same_exchanges():
    made = rules(Options(), (2, 0, 1), True, False, False)
    found = [*nothing_items(made), *exchange_items(made)]
    assert [i.at for i in found if i.verb == "exchange"] == [2, 0, 1]
    assert {("gradients", n) for n in range(3)} <= set(found[0].writes)


def test_only_collectives_are_on_the_communication_lane():
    for how in KINDS:
        lanes = {i.verb: i.lane for i in items(**how)}
        on_comm = {verb for verb, lane in lanes.items() if lane == "comm"}
        assert on_comm <= {"exchange", "gather", "share_norm"}


def test_parts_are_added_before_the_last_is_sent():
    found = items(parts=3, accumulate=3)
    assert len(places(found, "add", 1)) == 2 and len(places(found, "add_last", 1)) == 1
    assert places(found, "add", 1)[-1] < places(found, "add_last", 1)[0]
    assert places(found, "add_last", 1)[0] < places(found, "exchange", 1)[0]
    assert len(places(found, "exchange")) == 3


def test_sums_in_another_dtype_are_rounded_between_exchange_and_update():
    found = items(parts=2, settled=True, shard=2)
    for index in range(3):
        rounded = places(found, "settle", index)[0]
        assert places(found, "exchange", index)[0] < rounded < places(found, "update", index)[0]


@pytest.mark.parametrize("how", [{"clip_norm": 1.0}, {"skip": True}], ids=str)
def test_updates_wait_for_what_holds_for_the_whole_gradient(how):
    found = items(**how)
    word = "norm" if "clip_norm" in how else "verdict"
    for place in places(found, "update"):
        assert any(kind == word for kind, _ in found[place].reads)
