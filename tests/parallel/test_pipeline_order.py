"""The verifier of pipeline schedules, against topological sorting."""

from graphlib import CycleError, TopologicalSorter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipelines import MICRO_BATCHES, STAGES, WAYS, merged, sizes

from hpctrain.errors import EngineError
from hpctrain.parallel.pipeline_messages import home_of, messages, needs, parts
from hpctrain.parallel.pipeline_order import buffers_needed, execution_order, verify
from hpctrain.parallel.pipeline_schedule import Action, groups_of, schedule

pytestmark = pytest.mark.serial


def can_end(made, buffers):
    """Whether sends that wait for one of ``buffers`` let all end: no cycle of waiting."""
    after = {}
    begins = {part: ("begin", a) for actions in made for a in actions for part in parts(a)}
    home = home_of(made)
    for actions in made:
        for place, action in enumerate(actions):
            wanted = [("sent", actions[place - 1])] if place else []
            for need in needs(action, max(home)):
                word = "begin" if home[need.stage] == home[action.stage] else "sent"
                wanted.append((word, begins[need][1]))
            after["begin", action] = wanted
            after["sent", action] = [("begin", action)]
    for sent in messages(made).values():
        for earlier, message in zip(sent, sent[buffers:], strict=False):
            kind = "F" if earlier.kind == "activation" else "B"
            reader = begins[Action(kind, earlier.stage, earlier.micro)]
            after["sent", begins[message.carried][1]].append(reader)
    try:
        TopologicalSorter(after).prepare()
    except CycleError:
        return False
    return True


@pytest.mark.parametrize("stages", STAGES)
@pytest.mark.parametrize(("kind", "chunks"), WAYS)
def test_every_schedule_ends_with_few_buffers(kind, chunks, stages):
    for micro_batches in MICRO_BATCHES:
        made = schedule(kind, stages, micro_batches, chunks)
        ahead = groups_of(micro_batches, stages)[0] - stages + 2 if chunks > 1 else 1

        assert verify(made, max(1, ahead)) is made


@given(sizes())
@settings(max_examples=40, deadline=None)
def test_fewer_buffers_than_needed_do_not_do(size):
    made = schedule(*size)
    buffers = buffers_needed(made)

    verify(made, buffers)
    if buffers > 1:
        with pytest.raises(EngineError, match=f"all {buffers - 1} buffers of rank"):
            verify(made, buffers - 1)


@given(merged(), st.integers(1, 4))
@settings(max_examples=100, deadline=None)
def test_the_verifier_and_topological_sorting_agree(made, buffers):
    if can_end(made, buffers):
        assert verify(made, buffers) is made
    else:
        with pytest.raises(EngineError, match="so no rank can go on"):
            verify(made, buffers)


@given(sizes())
@settings(max_examples=40, deadline=None)
def test_the_order_of_execution_has_everything_after_what_it_needs(size):
    made = schedule(*size)
    done = set()
    for rank, action in execution_order(made):
        assert action in made[rank]
        assert done.issuperset(needs(action, size[1] * size[3] - 1))
        done.update(parts(action))
    assert len(done) == 3 * size[1] * size[2] * size[3]


def test_without_buffers_gpipe_ends_and_1f1b_does_not():
    verify(schedule("gpipe", 3, 4), 0)
    with pytest.raises(EngineError) as caught:
        verify(schedule("1f1b", 2, 2), 0)

    assert str(caught.value) == (
        "verify: rank 0 cannot send the activation of micro-batch 1 for stage 1, since all 0 "
        "buffers of rank 1 are taken; rank 1 cannot send the cotangent of micro-batch 0 for "
        "stage 0, since all 0 buffers of rank 0 are taken, so no rank can go on"
    )


F0, F1, B0, B1, W0, BW0, BW1 = (
    [Action(kind, stage, micro) for stage in (0, 1)]
    for kind, micro in (
        ("F", 0), ("F", 1), ("B", 0), ("B", 1), ("W", 0), ("BW", 0), ("BW", 1),
    )
)  # fmt: skip


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (((F0[0],),), "got B of stage 0 for micro-batch 0 0 times, needed it once"),
        (((F0[0], F0[0], BW0[0]),), "got F of stage 0 for micro-batch 0 2 times"),
        (((F0[0], B0[0], BW0[0]),), "got B of stage 0 for micro-batch 0 2 times"),
        (((F1[0], BW1[0]),), "got F of stage 0 for micro-batch 0 0 times"),
        (((F0[1], BW0[1]),), "got F of stage 0 for micro-batch 0 0 times"),
        (
            ((BW0[0], F0[0]),),
            "rank 0 has BW of stage 0 for micro-batch 0 before F of stage 0 for micro-batch 0",
        ),
        (
            ((F0[0], W0[0], B0[0]),),
            "rank 0 has W of stage 0 for micro-batch 0 before B of stage 0 for micro-batch 0",
        ),
        (
            ((F0[1], F0[0], BW0[1], BW0[0]),),
            "rank 0 has F of stage 1 for micro-batch 0 before F of stage 0 for micro-batch 0",
        ),
        (
            ((F0[0], BW0[0], F1[0], BW1[0]), (F0[1], F1[1], BW0[1], BW1[1])),
            "rank 0 has BW of stage 0 for micro-batch 0 before B of stage 1 for micro-batch 0, "
            "which it needs; rank 1 is at F of stage 1 for micro-batch 1, so no rank can go on",
        ),
    ],
)
def test_the_first_violated_pair_is_named(made, message):
    with pytest.raises(EngineError) as caught:
        verify(made)

    assert message in str(caught.value)
