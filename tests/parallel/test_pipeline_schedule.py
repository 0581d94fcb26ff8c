"""Pipeline schedules: which actions, in which order."""

import doctest

import pytest
from pipelines import MICRO_BATCHES, STAGES, WAYS

from hpctrain.errors import ConfigError
from hpctrain.parallel import pipeline_schedule
from hpctrain.parallel.pipeline_schedule import KINDS, groups_of, schedule, warm_up, zero_bubble

pytestmark = pytest.mark.serial


def written(actions):
    return " ".join(f"{a.kind}{a.micro}" for a in actions)


def test_the_examples_are_right():
    assert doctest.testmod(pipeline_schedule).failed == 0
    assert set(KINDS) == {kind for kind, _ in WAYS}


def test_gpipe_does_all_forwards_first():
    assert [written(a) for a in schedule("gpipe", 2, 2)] == ["F0 F1 BW0 BW1"] * 2


def test_zero_bubble_puts_off_the_weight_part_by_the_number_of_the_rank():
    assert [written(a) for a in schedule("zero_bubble", 3, 3)] == [
        "F0 F1 F2 B0 W0 B1 W1 B2 W2",
        "F0 F1 B0 F2 B1 W0 B2 W1 W2",
        "F0 B0 F1 B1 F2 B2 W0 W1 W2",
    ]


def test_interleaved_goes_around_the_ranks_once_for_each_chunk():
    first, second = schedule("interleaved", 2, 3, 2)

    assert [(a.kind, a.stage, a.micro) for a in first[:6]] == [
        ("F", 0, 0), ("F", 0, 1), ("F", 0, 2), ("F", 2, 0), ("F", 2, 1), ("F", 2, 2),
    ]  # fmt: skip
    assert {a.stage for a in first} == {0, 2} and {a.stage for a in second} == {1, 3}


@pytest.mark.parametrize(("kind", "chunks"), WAYS)
def test_every_stage_takes_micro_batches_in_one_order_in_each_part(kind, chunks):
    for stages in STAGES:
        for micro_batches in MICRO_BATCHES:
            for rank, actions in enumerate(schedule(kind, stages, micro_batches, chunks)):
                for part in ("F", "BW") if kind != "zero_bubble" else ("F", "B", "W"):
                    for stage in range(rank, stages * chunks, stages):
                        order = [a.micro for a in actions if a[:2] == (part, stage)]
                        assert order == list(range(micro_batches))


def test_one_chunk_interleaved_is_1f1b():
    assert schedule("interleaved", 4, 7, 1) == schedule("1f1b", 4, 7)


def test_a_group_has_a_micro_batch_for_each_stage_and_groups_are_about_equal():
    for stages in STAGES:
        for micro_batches in MICRO_BATCHES:
            groups = groups_of(micro_batches, stages)
            assert sum(groups) == micro_batches and groups == sorted(groups, reverse=True)
            assert groups[0] - groups[-1] <= 1
            assert min(groups) >= min(stages, micro_batches)
            assert max(groups) < 2 * stages


def test_warm_up_is_that_of_megatron_where_stages_divide_micro_batches():
    for rank in range(4):
        assert warm_up("interleaved", rank, 4, 8, 3) == 2 * (4 - rank - 1) + 2 * 4


def test_no_delay_is_1f1b_in_two_parts():
    whole, parted = schedule("1f1b", 3, 5), zero_bubble(3, 5, [0, 0, 0])

    for rank in range(3):
        assert (
            written(parted[rank])
            == "".join(
                f"B{a.micro} W{a.micro} " if a.kind == "BW" else f"F{a.micro} "
                for a in whole[rank]
            ).rstrip()
        )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("chimera", 2, 2),
            "got 'chimera', needed one of gpipe, 1f1b, interleaved, zero_bubble",
        ),
        (("1f1b", 0, 2), "got 0 stages, 2 micro-batches, 1 chunks, needed at least 1 of each"),
        (("1f1b", 2, 0), "got 2 stages, 0 micro-batches"),
        (("zero_bubble", 2, 2, 2), "got 2 chunks for zero_bubble, needed 1; take interleaved"),
    ],
)
def test_what_cannot_be_is_refused(arguments, message):
    with pytest.raises(ConfigError, match=message):
        schedule(*arguments)
