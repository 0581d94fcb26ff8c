"""Clock offsets from pings with made-up times."""

import random

import pytest

from hpctrain.errors import DataError
from hpctrain.trace import offset_from_pings

pytestmark = pytest.mark.serial


def test_the_fastest_ping_counts():
    slow, fast = (0, 5_000_900, 1_000), (2_000, 5_002_050, 2_100)

    assert offset_from_pings([slow, fast]) == 5_000_000
    assert offset_from_pings([fast, slow]) == 5_000_000


@pytest.mark.parametrize("offset", [-(10**15), -7, 0, 10**12])
def test_the_error_is_at_most_half_the_smallest_round_trip(offset):
    rng = random.Random(offset)
    pings, now = [], 10**15
    for _ in range(50):
        there, back = rng.randrange(500, 90_000), rng.randrange(500, 90_000)
        pings.append((now, now + there + offset, now + there + back))
        now += 200_000

    smallest = min(received - sent for sent, _, received in pings)
    assert abs(offset_from_pings(iter(pings)) - offset) <= smallest // 2 + 1


def test_times_stay_whole_nanoseconds():
    assert offset_from_pings([(10**18, 2 * 10**18 + 1, 10**18 + 2)]) == 10**18


def test_no_ping_is_an_error():
    with pytest.raises(DataError, match="got no pings"):
        offset_from_pings([])


def test_a_ping_back_before_it_was_sent_is_an_error():
    with pytest.raises(DataError, match="sent at 5 ns came back at 3 ns"):
        offset_from_pings([(5, 100, 3)])
