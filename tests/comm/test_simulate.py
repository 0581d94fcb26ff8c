"""Timelines worked out by hand."""

import dataclasses

import pytest

from hpctrain.comm.simulate import simulate
from hpctrain.comm.timeline import Link, Piece, Step, Stretch
from hpctrain.errors import ConfigError

pytestmark = pytest.mark.serial

MS = 1e-3
WIRE = Link(latency_s=0.0, bytes_per_s=1e6)  # a byte in a microsecond


def ms(times):
    return [round(time * 1e3, 6) for time in times]


def two_layers():
    """Forward 2 + 3, backward 4 + 2, two slices of 5 on the wire and 1 for the update."""
    return Step(
        (
            Stretch(2 * MS, reads=(0,)),
            Stretch(3 * MS, reads=(1,)),
            Stretch(4 * MS, reads=(1,), final=(1,)),
            Stretch(2 * MS, final=(0,)),
        ),
        (Piece(5000, 1 * MS), Piece(5000, 1 * MS)),
    )


def test_in_backward_order_the_first_stretch_waits_for_both():
    # compute  . . . U1 . . . . U0 F0 F0 F1 F1 F1 B1 B1 B1 B1 B0 B0 |
    # link     1 1 1  0 0 0 0 0 .  .  .  .  .  .  .  .  .  .  1  1  |
    line = simulate(two_layers(), WIRE, (1, 0))

    assert line.step_ns == 20_000_000
    assert ms([line.compute_s, line.exposed_s, line.link_s, line.link_idle_s]) == [
        13,
        7,
        10,
        10,
    ]
    assert ms(line.ready_s) == [20, 18]
    assert ms(line.start_s) == [23, 18]
    assert ms(line.end_s) == [28, 23]
    assert ms(line.needed_s) == [20, 31]
    assert ms(line.waited_s) == [7, 0]


def test_in_order_of_need_the_second_stretch_waits_for_its_own():
    # compute  . . . . . U0 F0 F0 . . U1 F1 F1 F1 B1 B1 B1 B1 B0 B0 |
    # link     0 0 0 0 0 1  1  1  1 1 .  .  .  .  .  .  .  .  .  .  |
    line = simulate(two_layers(), WIRE, (0, 1))

    assert line.step_ns == 20_000_000
    assert ms(line.ready_s) == [20, 18]
    assert ms(line.start_s) == [20, 25]
    assert ms(line.end_s) == [25, 30]
    assert ms(line.needed_s) == [20, 28]
    assert ms(line.waited_s) == [5, 2]


def test_spans_fill_the_step():
    line = simulate(two_layers(), WIRE, (0, 1))

    lane = sorted((s.start_s, s.end_s, s.kind, s.index) for s in line.spans if s.kind != "send")
    link = [(s.index, *ms([s.start_s, s.end_s])) for s in line.spans if s.kind == "send"]
    assert [(kind, index, *ms([a, b])) for a, b, kind, index in lane] == [
        ("update", 0, 5, 6),
        ("stretch", 0, 6, 8),
        ("update", 1, 10, 11),
        ("stretch", 1, 11, 14),
        ("stretch", 2, 14, 18),
        ("stretch", 3, 18, 20),
    ]
    assert link == [(0, 0, 5), (1, 5, 10)]


def test_a_drawing_shows_both_lanes():
    drawn = simulate(two_layers(), WIRE, (0, 1)).draw(width=20)

    assert drawn.splitlines() == [
        " compute |.....u00..u111222233|",
        "    link |aaaaabbbbb..........|",
        "          20.000 ms a step: compute 13.000, exposed 7.000, link 10.000",
    ]


def test_a_step_that_waits_for_everything_waits_longer():
    # lag 0: both updates at 10 and 11 ms, then 11 ms of stretches.
    line = simulate(two_layers(), WIRE, (0, 1), lag=0)

    assert line.step_ns == 22_000_000
    assert ms(line.needed_s) == [22, 22]


def one_stretch(*sizes):
    return Step(
        (Stretch(1 * MS, final=tuple(range(len(sizes)))),), tuple(Piece(n) for n in sizes)
    )


@pytest.mark.parametrize(
    ("in_flight", "starts", "ends"),
    [
        (1, [1, 6, 11], [6, 11, 16]),
        (2, [1, 1, 6], [6, 8, 11]),
        (3, [1, 1, 1], [6, 8, 10]),
    ],
)
def test_messages_in_flight_hide_latency(in_flight, starts, ends):
    link = Link(latency_s=3 * MS, bytes_per_s=1e6, in_flight=in_flight)

    line = simulate(one_stretch(2000, 2000, 2000), link, (0, 1, 2))

    begun = line.ready_s[0] - 1 * MS
    assert ms(t - begun for t in line.start_s) == starts
    assert ms(t - begun for t in line.end_s) == ends


def test_an_overhead_is_paid_by_each_message():
    link = Link(latency_s=3 * MS, bytes_per_s=1e6, in_flight=9, overhead_s=1 * MS)

    line = simulate(one_stretch(2000, 2000), link, (1, 0))

    assert ms(end - line.ready_s[0] for end in line.end_s) == [9, 6]


def test_bytes_that_need_the_core_slow_the_computation():
    # The message takes half of the core from 1 to 5 ms; of the second stretch 2 ms are left.
    step = Step(
        (Stretch(1 * MS, final=(0,)), Stretch(4 * MS, final=(1,))), (Piece(4000), Piece(0))
    )
    link = dataclasses.replace(WIRE, cpu_s_per_byte=0.5e-6)

    line = simulate(step, link, (0, 1))

    assert line.step_ns == 7_000_000
    assert line.exposed_s == 0


def test_bytes_that_cost_more_time_than_the_wire_stop_the_computation():
    step = Step(
        (Stretch(1 * MS, final=(0,)), Stretch(4 * MS, final=(1,))), (Piece(2000), Piece(0))
    )
    link = dataclasses.replace(WIRE, cpu_s_per_byte=2e-6)

    assert simulate(step, link, (0, 1)).step_ns == 9_000_000


def test_an_update_waits_for_the_last_reader():
    # Slice 0 is final after the first stretch and back at once, but read by the second.
    step = Step(
        (Stretch(1 * MS, (0,), (0,)), Stretch(5 * MS, (0,), (1,))),
        (Piece(1000, 1 * MS), Piece(0)),
    )

    line = simulate(step, WIRE, (0, 1))

    updates = [
        ms([s.start_s, s.end_s]) for s in line.spans if s.kind == "update" and s.index == 0
    ]
    assert updates == [[0, 1]]
    assert line.step_ns == 7_000_000


def test_updates_of_a_step_run_while_its_next_stretch_waits():
    # Slice 2 is back at 3 ms; the third stretch waits for slice 1 of the step before.
    step = Step(
        (Stretch(1 * MS, (2,), (2,)), Stretch(1 * MS, (), (0,)), Stretch(1 * MS, (1,), (1,))),
        (Piece(0), Piece(8000, 1 * MS), Piece(1000, 1 * MS)),
    )

    line = simulate(step, WIRE, (2, 0, 1))

    order = [(s.kind, s.index) for s in sorted(line.spans, key=lambda s: (s.start_s, s.end_s))]
    assert order.index(("update", 2)) < order.index(("update", 1)) < order.index(("stretch", 2))
    assert line.waited_s[1] == line.exposed_s > 0


def test_a_step_with_nothing_in_it_takes_no_time():
    line = simulate(Step((), ()), WIRE, ())

    assert line.step_ns == 0
    assert "0.000 ms" in line.draw()


@pytest.mark.parametrize("order", [(0,), (0, 0), (0, 1, 2), (1, 2)])
def test_an_order_has_every_slice_once(order):
    with pytest.raises(ConfigError, match="each of 2 slices once"):
        simulate(two_layers(), WIRE, order)


@pytest.mark.parametrize(
    ("stretches", "pieces"),
    [
        ([Stretch(1.0)], [Piece(1)]),
        ([Stretch(1.0, final=(0,)), Stretch(1.0, final=(0,))], [Piece(1)]),
        ([Stretch(1.0, final=(0, 1))], [Piece(1)]),
        ([Stretch(1.0, (1,), (0,))], [Piece(1)]),
        ([Stretch(-1.0, final=(0,))], [Piece(1)]),
        ([Stretch(1.0, final=(0,))], [Piece(1, float("nan"))]),
    ],
)
def test_a_step_that_cannot_be_is_refused(stretches, pieces):
    with pytest.raises(ConfigError, match="step:"):
        Step(tuple(stretches), tuple(pieces))


@pytest.mark.parametrize(
    "wrong",
    [
        {"bytes_per_s": 0.0},
        {"in_flight": 0},
        {"latency_s": -1.0},
        {"overhead_s": float("inf")},
        {"cpu_s_per_byte": float("nan")},
    ],
)
def test_a_link_that_cannot_be_is_refused(wrong):
    with pytest.raises(ConfigError, match="link:"):
        dataclasses.replace(WIRE, **wrong)
