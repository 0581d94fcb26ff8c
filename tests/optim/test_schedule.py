"""Schedules against their formulas, at the steps where they turn."""

import json
import math

import pytest

from hpctrain import optim
from hpctrain.errors import ConfigError

pytestmark = pytest.mark.serial

EVERY_KIND = [
    optim.Constant(0.1, 4),
    optim.Factor(0.1, 4, every=3, factor=0.5),
    optim.MultiFactor(0.1, 4, steps=(6, 9), factor=0.1),
    optim.Cosine(0.1, 4, total_steps=14, final_lr=0.01),
    optim.Poly(0.1, 4, total_steps=14, power=2),
]


@pytest.mark.parametrize("schedule", EVERY_KIND, ids=lambda s: s.kind)
def test_the_warmup_is_a_line_up_to_the_base(schedule):
    assert [schedule.lr(step) for step in range(4)] == pytest.approx([0.025, 0.05, 0.075, 0.1])
    assert schedule.lr(4) == 0.1


@pytest.mark.parametrize("schedule", EVERY_KIND, ids=lambda s: s.kind)
def test_a_description_makes_the_schedule_again(schedule):
    assert optim.from_description(json.loads(json.dumps(schedule.describe()))) == schedule


def test_factor_drops_every_few_updates():
    schedule = optim.Factor(1.0, every=2, factor=0.5, stop_lr=0.2)

    assert [schedule(s) for s in range(7)] == [1, 1, 0.5, 0.5, 0.25, 0.25, 0.2]


def test_multi_factor_counts_its_steps_with_the_warmup():
    schedule = optim.MultiFactor(1.0, 2, steps=[3, 5], factor=0.1)

    assert [schedule(s) for s in range(2, 7)] == pytest.approx([1, 0.1, 0.1, 0.01, 0.01])


def test_cosine_is_halfway_in_the_middle_and_stays_at_the_end():
    schedule = optim.Cosine(1.0, 2, total_steps=12, final_lr=0.2)

    assert schedule(7) == pytest.approx(0.6)
    assert schedule(4) == pytest.approx(0.2 + 0.8 * (1 + math.cos(math.pi / 5)) / 2)
    assert schedule(12) == schedule(1000) == pytest.approx(0.2)


def test_poly_falls_by_its_power():
    schedule = optim.Poly(1.0, total_steps=10, power=3)

    assert schedule(5) == pytest.approx(0.125)
    assert schedule(10) == 0


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: optim.Constant(0.1, -1), "warmup_steps of at least 0"),
        (lambda: optim.Constant(0.1, 5, 0.2), "warmup_begin_lr from 0 to base_lr"),
        (lambda: optim.Cosine(0.1, 5, total_steps=5), "total_steps beyond the warm-up"),
        (lambda: optim.MultiFactor(0.1, steps=(5, 5)), "steps that rise"),
        (lambda: optim.Factor(0.1, every=0), "every of at least 1"),
        (lambda: optim.from_description({"kind": "linear"}), "got kind 'linear'"),
        (lambda: optim.from_description({"kind": "poly", "pow": 2}), "got 'pow'"),
    ],
)
def test_a_wrong_setting_is_named(make, said):
    with pytest.raises(ConfigError, match=said):
        make()
