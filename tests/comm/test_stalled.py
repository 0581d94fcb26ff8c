import pytest

from hpctrain.comm.progress import CONTROL, GRADIENT, State, Wait
from hpctrain.comm.stalled import report, stalled

pytestmark = pytest.mark.serial

HOSTS = [f"node{rank // 4}" for rank in range(16)]


def state(gradient=20, control=5, waits=(), doing=(), busy=()):
    started = {GRADIENT: gradient, CONTROL: control}
    return State(started, list(waits), dict(busy), {}, list(doing))


def third(seconds, number=20):
    return Wait(GRADIENT, number, f"step 4, slice {number - 17} of 7", seconds)


def test_a_rank_that_has_not_started_is_told_with_what_it_does():
    states = {rank: state(waits=[third(60 + rank / 10)]) for rank in range(8)}
    states[3] = state(19, doing=["reading train-003.h5 for 61.2 s", "main thread at a.py:1 f"])

    assert report(states, HOSTS, 60) == (
        "stalled for 61 s: step 4, slice 3 of 7\n"
        "  waiting for it: ranks 0-2, 4-7 (60.0 to 60.7 s)\n"
        "  not started on rank 3\n"
        "  rank 3 @ node0:\n"
        "    reading train-003.h5 for 61.2 s\n"
        "    main thread at a.py:1 f\n"
    )


def test_a_rank_that_has_started_and_computes_instead_is_told():
    states = {rank: state(waits=[third(60)]) for rank in range(3)}
    states[1] = state(22, doing=["lane compute: conv for 61.0 s"], busy={GRADIENT: 20})
    states[2] = state(22)  # complete there

    assert report(states, HOSTS, 60) == (
        "stalled for 60 s: step 4, slice 3 of 7\n"
        "  waiting for it: rank 0 (60.0 s)\n"
        "  started, but not carried on, by rank 1\n"
        "  rank 1 @ node0:\n"
        "    lane compute: conv for 61.0 s\n"
    )


def test_a_rank_without_an_answer_is_told():
    states = {0: state(waits=[third(60)]), 1: state(waits=[third(60)]), 2: None}

    text = report(states, HOSTS, 60)

    assert "  unknown of rank 2\n" in text
    assert "  rank 2 @ node0: no answer; " in text
    assert "not started" not in text
    assert "network" not in text


def test_an_exchange_that_all_have_started_points_to_the_network():
    states = {rank: state(waits=[third(60)]) for rank in range(3)}

    assert report(states, HOSTS, 60).endswith(
        "  waiting for it: ranks 0-2 (60.0 s)\n"
        "  started on all ranks: look at the network between them\n"
    )


def test_the_earliest_exchange_is_the_stalled_one():
    states = {0: state(21, waits=[third(61, 21)]), 1: state(waits=[third(60)]), 2: state(19)}

    assert stalled(states, 60) == {GRADIENT: third(60)}
    text = report(states, HOSTS, 60)
    assert "  waiting for it: rank 1 (60.0 s)\n" in text
    assert "  waiting for step 4, slice 4 of 7: rank 0 (61.0 s)\n" in text


def test_a_rank_that_has_left_the_others_for_a_collective_shows_both_waits():
    early = Wait(CONTROL, 6, "allgather_obj at trainer.py:7 fit", 70)
    states = {0: state(19, 6, [early]), 1: state(waits=[third(65)])}

    text = report(states, HOSTS, 60)

    assert "stalled for 65 s: step 4, slice 3 of 7\n" in text
    assert "stalled for 70 s: collective of the control group, allgather_obj at" in text
    assert "  rank 0 @ node0:\n    waiting for collective of the control group, all" in text


def test_of_many_stragglers_some_are_described():
    states = {rank: state(19, doing=["computing"]) for rank in range(1, 16)}
    states[0] = state(waits=[third(60)])

    text = report(states, HOSTS, 60)

    assert "  not started on ranks 1-15\n" in text
    assert text.count("computing") == 8
    assert text.endswith("  and 7 more\n")


def test_nobody_late_is_no_stall():
    states = {0: state(waits=[third(59)]), 1: state(19)}

    assert stalled(states, 60) == {}
    assert report(states, HOSTS, 60) == ""


def test_ranks_without_a_part_in_an_exchange_are_not_named():
    """A parcel between two stages; a third rank has no such sequence."""
    name = "parcel from rank 0 to rank 1"
    wait = Wait(name, 7, f"message 7, {name}", 60)
    states = {rank: state(doing=["lane compute: F3 stage 0 for 61.0 s"]) for rank in range(3)}
    states[0].started[name] = 6
    states[1] = State({GRADIENT: 20, CONTROL: 5, name: 7}, [wait])

    assert report(states, HOSTS, 60) == (
        f"stalled for 60 s: message 7, {name}\n"
        "  waiting for it: rank 1 (60.0 s)\n"
        "  not started on rank 0\n"
        "  rank 0 @ node0:\n"
        "    lane compute: F3 stage 0 for 61.0 s\n"
    )
