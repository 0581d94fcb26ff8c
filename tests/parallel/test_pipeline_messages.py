"""Messages of a pipeline: what travels, and one order for both sides."""

import doctest

import pytest
from hypothesis import given, settings
from pipelines import WAYS, sizes

from hpctrain.errors import EngineError
from hpctrain.parallel import pipeline_messages
from hpctrain.parallel.pipeline_messages import Message, home_of, messages, parts
from hpctrain.parallel.pipeline_schedule import Action, schedule

pytestmark = pytest.mark.serial


def test_the_examples_are_right():
    assert doctest.testmod(pipeline_messages).failed == 0


@given(sizes())
@settings(max_examples=60, deadline=None)
def test_each_boundary_between_ranks_is_crossed_once_each_way_for_each_micro_batch(size):
    _, stages, micro_batches, chunks = size
    found = [m for sent in messages(schedule(*size)).values() for m in sent]

    wanted = {
        (kind, stage, micro)
        for boundary in range(1, stages * chunks if stages > 1 else 1)
        for kind, stage in (("activation", boundary), ("cotangent", boundary - 1))
        for micro in range(micro_batches)
    }
    assert len(found) == len(wanted)
    assert {m[:3] for m in found} == wanted


@given(sizes())
@settings(max_examples=60, deadline=None)
def test_messages_go_from_the_rank_that_makes_to_the_rank_that_needs_them(size):
    made = schedule(*size)
    home = home_of(made)
    for (source, dest), sent in messages(made).items():
        places = []
        for message in sent:
            assert (message.source, message.dest) == (source, dest)
            assert (home[message.carried.stage], home[message.stage]) == (source, dest)
            kinds = [message.carried.kind, message.carried.kind + "W"]
            places += [
                place
                for place, a in enumerate(made[source])
                if a.kind in kinds and a[1:] == message.carried[1:]
            ]
        assert len(places) == len(sent) and places == sorted(places)  # the sender's own order


@pytest.mark.parametrize(("kind", "chunks"), WAYS)
def test_one_rank_sends_nothing(kind, chunks):
    assert messages(schedule(kind, 1, 5, chunks)) == {}


def test_two_ranks_with_chunks_have_both_kinds_on_one_channel():
    sent = messages(schedule("interleaved", 2, 2, 2))[1, 0]

    assert [str(m) for m in sent] == [
        "activation of micro-batch 0 for stage 2",
        "activation of micro-batch 1 for stage 2",
        "cotangent of micro-batch 0 for stage 2",
        "cotangent of micro-batch 1 for stage 2",
        "cotangent of micro-batch 0 for stage 0",
        "cotangent of micro-batch 1 for stage 0",
    ]


def test_what_a_message_carries_is_what_was_made_a_stage_before_or_after():
    assert Message("activation", 3, 1, 0, 1).carried == Action("F", 2, 1)
    assert Message("cotangent", 3, 1, 0, 1).carried == Action("B", 4, 1)


def test_a_whole_backward_is_two_parts():
    assert parts(Action("BW", 1, 2)) == (Action("B", 1, 2), Action("W", 1, 2))
    assert parts(Action("F", 1, 2)) == (Action("F", 1, 2),)


def test_a_stage_on_two_ranks_is_refused():
    with pytest.raises(
        EngineError, match="got stage 0 on ranks 0 and 1, needed all of its work"
    ):
        home_of(((Action("F", 0, 0),), (Action("BW", 0, 0),)))
