"""The simulator of pipelines: against formulas, longest paths, and what is always true."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipelines import STAGES, WAYS, sizes

from hpctrain.errors import ConfigError
from hpctrain.parallel.pipeline_messages import home_of, needs, parts
from hpctrain.parallel.pipeline_schedule import schedule, zero_bubble
from hpctrain.parallel.pipeline_times import (
    Span,
    Timeline,
    Times,
    bubble_formula,
    fastest_zero_bubble,
    peak_formula,
    simulate,
)

pytestmark = pytest.mark.serial
SHORT = st.integers(0, 9)


def equal(stages, f=1, b=1, w=1, **messages):
    return Times((f,) * stages, (b,) * stages, (w,) * stages, **messages)


@st.composite
def times_of(draw, stages, messages=True):
    """Whole seconds, so that sums are exact."""
    lists = [tuple(draw(st.lists(SHORT, min_size=stages, max_size=stages))) for _ in range(3)]
    return Times(*lists, *((draw(SHORT), draw(SHORT)) if messages else ()))


@st.composite
def timed(draw, messages=True):
    """A schedule, and times for it."""
    kind, stages, micro_batches, chunks = draw(sizes())
    made = schedule(kind, stages, micro_batches, chunks)
    return made, draw(times_of(stages * chunks, messages))


@st.composite
def pipelines(draw):
    """Stages, micro-batches and times."""
    stages = draw(st.integers(1, 5))
    return stages, draw(st.integers(1, 8)), draw(times_of(stages))


@pytest.mark.parametrize("stages", STAGES)
@pytest.mark.parametrize(("kind", "chunks"), WAYS)
def test_equal_times_give_the_formulas_exactly(kind, chunks, stages):
    for micro_batches in (1, 2, 3, 4, 5, 8, 11, 17):
        size = stages, micro_batches, chunks
        for seconds in (
            [(1, 1, 1), (3, 2, 1), (1, 2, 4)] if kind == "zero_bubble" else [(2, 3, 1)]
        ):
            timeline = simulate(schedule(kind, *size), equal(stages * chunks, *seconds))

            assert timeline.bubble == bubble_formula(kind, *size, seconds)
            assert timeline.peaks == tuple(peak_formula(kind, r, *size) for r in range(stages))


@pytest.mark.parametrize("stages", STAGES)
def test_the_formulas_are_those_of_the_papers(stages):
    s = stages
    for m in range(s, 18):
        of_1f1b = Fraction(s - 1, m + s - 1)
        assert bubble_formula("gpipe", s, m) == bubble_formula("1f1b", s, m) == float(of_1f1b)
        for v in (1, 2, 4):
            assert bubble_formula("interleaved", s, m, v) == float(
                Fraction(s - 1, v * m + s - 1)
            )
        idle = (s - 1) * (5 + 4 - 3)  # of ZB-H1, with f, b, w = 5, 4, 3
        zero = bubble_formula("zero_bubble", s, m, seconds=(5, 4, 3))
        assert zero == float(Fraction(idle, 12 * m + idle))
        assert zero < of_1f1b or s == 1
        assert [peak_formula("gpipe", r, s, m) for r in range(s)] == [m] * s
        assert [peak_formula("1f1b", r, s, m) for r in range(s)] == list(range(s, 0, -1))


@given(pipelines())
@settings(max_examples=30, deadline=None)
def test_gpipe_is_a_flow_shop_of_equal_jobs_forth_and_back(pipeline):
    """Once through all stages, then the slowest stage m - 1 times more."""
    stages, m, times = pipeline
    times = Times(times.forward_s, times.backward_s, times.weight_s)
    back = [b + w for b, w in zip(times.backward_s, times.weight_s, strict=True)]

    found = simulate(schedule("gpipe", stages, m), times).makespan_s

    ways = (times.forward_s, back)
    assert found == sum(sum(way) + (m - 1) * max(way) for way in ways)


@given(timed())
@settings(max_examples=30, deadline=None)
def test_an_action_begins_as_soon_as_the_longest_path_to_it_allows(case):
    made, times = case
    times = Times(times.forward_s, times.backward_s, times.weight_s, 0, times.latency_s)
    home, after = home_of(made), {}
    place = {
        p: (r, i) for r, row in enumerate(made) for i, a in enumerate(row) for p in parts(a)
    }

    def end(rank, index):
        if (rank, index) not in after:
            action = made[rank][index]
            starts = [end(rank, index - 1) if index else 0]
            for need in needs(action, max(home)):
                far = home[need.stage] != rank
                starts.append(end(*place[need]) + far * times.latency_s)
            after[rank, index] = max(starts) + times.of(action)
        return after[rank, index]

    for rank, spans in enumerate(simulate(made, times).ranks):
        assert [s.action for s in spans] == list(made[rank])
        assert [s.end_s for s in spans] == [end(rank, i) for i in range(len(spans))]
        assert all(s.end_s - s.start_s == times.of(s.action) for s in spans)


def test_messages_of_a_channel_leave_one_after_the_other():
    times = equal(2, f=1, b=1, w=0, message_s=4, latency_s=10)

    first, second = simulate(schedule("gpipe", 2, 2), times).ranks

    assert [s.start_s for s in second if s.action.kind == "F"] == [15, 19]
    assert [s.end_s for s in first if s.action.kind == "BW"] == [21 + 14 + 1, 21 + 18 + 1]


@given(timed(), st.data())
@settings(max_examples=25, deadline=None)
def test_no_longer_times_make_a_step_shorter(case, data):
    made, times = case
    more = data.draw(times_of(len(times.forward_s)))
    lists = zip(
        (times.forward_s, times.backward_s, times.weight_s),
        (more.forward_s, more.backward_s, more.weight_s),
        strict=True,
    )
    slower = Times(
        *(tuple(map(sum, zip(*pair, strict=True))) for pair in lists),
        times.message_s + more.message_s,
        times.latency_s + more.latency_s,
    )

    assert simulate(made, slower).makespan_s >= simulate(made, times).makespan_s


@given(timed())
@settings(max_examples=25, deadline=None)
def test_a_step_is_no_shorter_than_a_rank_works_and_a_micro_batch_travels(case):
    made, times = case
    timeline, home = simulate(made, times), home_of(made)
    work = [sum(map(times.of, actions)) for actions in made]
    hops = 2 * sum(home[s] != home[s + 1] for s in range(max(home)))
    forth_and_back = sum(times.forward_s) + sum(times.backward_s)

    assert timeline.makespan_s >= max(work)
    assert timeline.makespan_s >= forth_and_back + hops * (times.message_s + times.latency_s)
    assert 0 <= timeline.bubble < 1


@given(pipelines())
@settings(max_examples=20, deadline=None)
def test_zero_bubble_that_fits_is_never_slower_than_1f1b_or_zb_h1(pipeline):
    stages, micro_batches, times = pipeline
    fitted = simulate(fastest_zero_bubble(stages, micro_batches, times), times)

    for kind in ("1f1b", "zero_bubble"):
        other = simulate(schedule(kind, stages, micro_batches), times)
        assert fitted.makespan_s <= other.makespan_s
    assert max(fitted.peaks) <= min(stages, micro_batches)


@given(st.integers(1, 6), st.integers(1, 9), st.tuples(SHORT, SHORT, SHORT), SHORT, SHORT)
@settings(max_examples=30, deadline=None)
def test_zb_h1_is_never_slower_than_1f1b_on_equal_stages(s, m, seconds, message, latency):
    times = equal(s, *seconds, message_s=message, latency_s=latency)

    slow, fast = (simulate(schedule(k, s, m), times) for k in ("1f1b", "zero_bubble"))

    assert fast.makespan_s <= slow.makespan_s


def test_zb_h1_can_be_slower_than_1f1b_on_unequal_stages():
    """So delays are to fit the times: W of the second rank is long, and put off in vain."""
    times = Times((20, 1), (1, 1), (1, 10))

    found = {k: simulate(schedule(k, 2, 4), times).makespan_s for k in ("1f1b", "zero_bubble")}

    assert found["zero_bubble"] > found["1f1b"]
    assert simulate(fastest_zero_bubble(2, 4, times), times).makespan_s <= found["1f1b"]


@given(pipelines())
@settings(max_examples=25, deadline=None)
def test_1f1b_keeps_no_more_than_gpipe_whatever_the_times(pipeline):
    stages, micro_batches, times = pipeline
    few, many = (simulate(schedule(k, stages, micro_batches), times) for k in ("1f1b", "gpipe"))

    assert all(a <= b for a, b in zip(few.peaks, many.peaks, strict=True))


def test_a_measured_timeline_gives_times_to_simulate_with():
    """Clocks that begin anywhere, and one action that took longer than usual."""
    times = Times((1, 2), (3, 4), (5, 6))
    ranks = [list(spans) for spans in simulate(schedule("zero_bubble", 2, 5), times).ranks]
    measured = Timeline(
        tuple(tuple(Span(a, 7 + s, 7 + e + (a.micro == 4)) for a, s, e in r) for r in ranks)
    )

    assert measured.times() == times
    assert measured.makespan_s == max(spans[-1].end_s for spans in ranks) + 1
    whole = simulate(schedule("1f1b", 2, 5), times).times(0.5, 0.25)
    assert whole == Times((1, 2), (8, 10), (0, 0), 0.5, 0.25)


def test_a_schedule_without_work_has_no_bubble():
    assert simulate(zero_bubble(2, 2, [0, 0]), equal(2, 0, 0, 0)).bubble == 0


@pytest.mark.parametrize("wrong", [((1, 1), (1,), (1,)), ((-1,), (1,), (1,)), ((1e400,),) * 3])
def test_times_that_cannot_be_are_refused(wrong):
    with pytest.raises(ConfigError, match="needed as many of F, B and W, all finite"):
        Times(*wrong)


def test_times_of_other_stages_are_refused():
    with pytest.raises(ConfigError, match="got times of 3 stages, needed 2"):
        simulate(schedule("1f1b", 2, 2), equal(3))
