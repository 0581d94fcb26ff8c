"""Timelines as text."""

import doctest

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipelines import sizes

from hpctrain.parallel import pipeline_schedule, staircase
from hpctrain.parallel.pipeline_schedule import schedule
from hpctrain.parallel.pipeline_times import Times, simulate
from hpctrain.parallel.staircase import draw

pytestmark = pytest.mark.serial


def drawn(kind, stages, micro_batches, chunks=1):
    every = (1 / chunks,) * stages * chunks
    return draw(simulate(schedule(kind, stages, micro_batches, chunks), Times(*[every] * 3)))


def test_the_examples_are_right():
    assert doctest.testmod(staircase).failed == 0


@pytest.mark.parametrize(
    "size", [("gpipe", 3, 4), ("1f1b", 3, 4), ("zero_bubble", 3, 4), ("interleaved", 2, 2, 2)]
)
def test_the_drawings_that_explain_schedules_are_true(size):
    picture = "".join(f"    {line}\n" for line in drawn(*size).splitlines())

    assert picture in pipeline_schedule.__doc__


@given(sizes(), st.integers(1, 3), st.integers(0, 2))
@settings(max_examples=25, deadline=None)
def test_every_action_is_drawn_on_its_rank_in_its_order(size, f, message):
    _, stages, _, chunks = size
    made = schedule(*size)
    times = Times(
        (f,) * stages * chunks, (1,) * stages * chunks, (2,) * stages * chunks, message
    )

    lines = draw(simulate(made, times)).splitlines()

    for rank, (line, actions) in enumerate(zip(lines, made, strict=True)):
        name, cells = line.split("|")
        labels = [word.rstrip("-") for word in cells.split() if word != "."]
        letters = "abcd" if chunks > 1 else [""]
        assert name.strip() == f"rank {rank}"
        assert labels == [f"{a.kind}{a.micro}{letters[a.stage // stages]}" for a in actions]


def test_very_unequal_times_are_drawn_on_a_line_of_bounded_length():
    times = Times((1.0, 1e-6), (1.0, 1e-6), (1.0, 1e-6))

    lines = draw(simulate(schedule("1f1b", 2, 2), times)).splitlines()

    assert max(map(len, lines)) < 2500 and "BW1-" in lines[0]


def test_names_of_ten_ranks_and_more_are_aligned():
    lines = drawn("gpipe", 11, 1).splitlines()

    assert len({line.index("|") for line in lines}) == 1
