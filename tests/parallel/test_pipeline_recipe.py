"""The items of a pipeline's step: what a rank does, in which order, and what it waits for."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pipelines import merged, sizes

from hpctrain.graph.segments import Segment
from hpctrain.parallel.parcels import OUTBOXES
from hpctrain.parallel.pipeline_messages import home_of, messages
from hpctrain.parallel.pipeline_order import buffers_needed
from hpctrain.parallel.pipeline_recipe import (
    WIRE,
    StageFacts,
    awaited,
    berths,
    deeds,
    end_items,
    slot_counts,
)
from hpctrain.parallel.pipeline_schedule import schedule
from hpctrain.parallel.pipeline_times import Times, peak_formula, simulate
from hpctrain.parallel.recipe import Rules

pytestmark = pytest.mark.serial
SEGMENTS = (
    Segment(0, 2, (), (1, 2), (2,), "first"),
    Segment(2, 3, (), (0, 1), (0, 1), "second"),
)
FACTS = StageFacts((0, 1, 2), (0, 1, 2), SEGMENTS)


def facts_of(plan, rank):
    return {action.stage: FACTS for action in plan[rank]}


def recipe(plan, rank, rules=None, boxes=2):
    return deeds(plan, rank, facts_of(plan, rank), rules or Rules((1, 2, 0)), boxes)


plans = st.one_of(sizes().map(lambda size: schedule(*size)), merged())


@given(sizes().map(lambda size: schedule(*size)), st.integers(0, 2))
def test_each_message_has_a_box_that_is_empty_when_it_comes(plan, spare):
    """A box is filled again only after the action that needs what is in it."""
    home, boxes = home_of(plan), buffers_needed(plan) + spare
    for rank, actions in enumerate(plan):
        place = berths(plan, rank, boxes)
        turn = {awaited(action, home): n for n, action in enumerate(actions)}
        for (_, dest), order in messages(plan).items():
            if dest != rank:
                continue
            assert {place[m] for m in order} <= set(range(boxes))
            for number, message in enumerate(order):
                before = [m for m in order[:number] if place[m] == place[message]]
                posted = max((turn[m] for m in before), default=-1)
                later = [m for m in order[number + 1 :] if place[m] == place[message]]
                assert all(turn[m] > posted for m in later)


@given(plans)
def test_no_two_micro_batches_of_a_stage_share_a_slot(plan):
    for rank, actions in enumerate(plan):
        slots, held = slot_counts(plan, rank), {}
        for action in actions:
            key = action.stage, action.micro % slots[action.stage]
            if action.kind == "F":
                assert key not in held
                held[key] = action.micro
            elif "W" in action.kind:
                assert held.pop(key) == action.micro
        assert not held


@pytest.mark.parametrize("kind", ["gpipe", "1f1b", "zero_bubble"])
@pytest.mark.parametrize("stages", [2, 4])
def test_a_stage_has_as_many_slots_as_the_formula_says(kind, stages):
    plan = schedule(kind, stages, 8)

    for rank in range(stages):
        assert slot_counts(plan, rank) == {rank: peak_formula(kind, rank, stages, 8)}
    equal = Times(*[(1.0,) * stages] * 3)
    peaks = simulate(plan, equal).peaks
    assert peaks == tuple(slot_counts(plan, rank)[rank] for rank in range(stages))


@given(plans)
def test_actions_come_in_their_order_with_their_messages(plan):
    for rank, actions in enumerate(plan):
        found = recipe(plan, rank)

        verbs = {"forward": "F", "backward": "B"}
        done = [(verbs[d.item.verb], d.action) for d in found if d.item.verb in verbs]
        wanted = [(a.kind[0], a) for a in actions if a.kind != "W"]
        assert [d.stage for _, d in done] == [a.stage for _, a in wanted]
        assert [kind for kind, _ in done] == [kind for kind, _ in wanted]
        sent = Counter(d.outbox.message for d in found if d.item.verb == "leave")
        come = Counter(d.inbox.message for d in found if d.item.verb == "arrive")
        every = messages(plan)
        assert sent == Counter(m for (s, _), ms in every.items() if s == rank for m in ms)
        assert come == Counter(m for (_, d), ms in every.items() if d == rank for m in ms)
        assert all(d.item.lane == WIRE for d in found if d.item.verb in ("leave", "arrive"))
        assert all(d.outbox.place < OUTBOXES for d in found if d.outbox)


def test_only_the_last_micro_batch_is_cut_into_segments():
    found = recipe(schedule("1f1b", 2, 3), 0)

    weighed = [(d.action.micro, d.item.at) for d in found if d.item.verb == "weigh"]
    assert weighed == [(0, -1), (1, -1), (2, 0), (2, 1)]


def test_a_slice_of_two_stages_is_looked_at_once():
    """After the stage that is the last to add to it, and slice 0 after the riders."""
    plan = schedule("interleaved", 2, 2, 2)

    found = recipe(plan, 0, Rules((1, 2, 0), checked=True))

    looked = [(d.action.stage if d.action else None, d.item.at) for d in found]
    looks = [at for at, d in zip(looked, found, strict=True) if d.item.verb == "look"]
    assert looks == [(0, 2), (0, 1), (None, 0)]
    assert found[0].item.reads == (("verdict", 0),)


def test_without_a_lane_for_messages_actions_wait_themselves():
    found = recipe(schedule("1f1b", 2, 2), 1, Rules((1, 2, 0), overlap=False))

    assert {d.item.lane for d in found} == {"compute"}
    assert not any(d.item.deferred for d in found)


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("checked", [True, False])
def test_word_of_all_stages_comes_before_whoever_needs_it(checked, overlap):
    rules = Rules((1, 2, 0), checked=checked, clipped=True, shared_norm=True, overlap=overlap)

    verbs = [item.verb for item in end_items(rules, [2])]

    wait = "" if overlap else "wait_"
    assert verbs.index("tie") + 1 == verbs.index(f"{wait}tied")
    assert verbs.index(f"{wait}tied") < verbs.index("measure")
    needs = "judge" if checked else "keep"
    assert verbs.index(f"{wait}told") == verbs.index(needs) - 1
    assert (verbs.index("tell") < verbs.index("update")) == checked
