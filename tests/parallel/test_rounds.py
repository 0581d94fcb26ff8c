"""Rounds and clocks of a server, without messages."""

import random

import pytest

from hpctrain.errors import CommError
from hpctrain.parallel.rounds import Clocks, Rounds

pytestmark = pytest.mark.serial


def test_two_pushes_of_one_worker_are_two_rounds():
    """T4: rounds go by who has pushed, not by how many pushes have come."""
    rounds = Rounds([1, 2, 3])

    assert rounds.push(0, 1, "first") is None
    assert rounds.push(0, 1, "second") is None
    assert rounds.push(0, 3, "third") is None
    assert rounds.push(0, 2, "fourth") == ["first", "fourth", "third"]
    assert not rounds.idle
    assert rounds.push(0, 2, "fifth") is None
    assert rounds.push(0, 3, "sixth") == ["second", "fifth", "sixth"]
    assert rounds.idle


def test_slices_have_rounds_of_their_own():
    rounds = Rounds([4, 5])

    assert rounds.push(7, 4, "a") is None
    assert rounds.push(8, 5, "b") is None
    assert rounds.push(8, 4, "c") == ["c", "b"]


def test_any_order_of_arrival_gives_the_letters_of_each_step_in_worker_order():
    rng = random.Random(3)
    for _ in range(50):
        workers = list(range(1, 2 + rng.randrange(4)))
        waiting = {w: [(w, step) for step in range(5)] for w in workers}
        rounds, closed = Rounds(workers), []
        while any(waiting.values()):
            worker = rng.choice([w for w in workers if waiting[w]])
            found = rounds.push(0, worker, waiting[worker].pop(0))
            closed += [found] if found else []

        assert closed == [[(w, step) for w in workers] for step in range(5)]


def test_who_is_no_worker_is_refused():
    for each in (Rounds([1]), Clocks([1])):
        with pytest.raises(CommError, match="rank 2, which is no worker"):
            each.push(0, 2, 0)


@pytest.mark.parametrize("staleness", [0, 1, 2, 5, None])
def test_no_worker_is_answered_further_ahead_than_allowed(staleness):
    rng = random.Random(staleness or 9)
    workers, steps = [1, 2, 3], 40
    clocks = Clocks(workers, staleness)
    pushed = dict.fromkeys(workers, -1)
    answered = dict.fromkeys(workers, -1)
    ahead = 0
    while min(answered.values()) < steps - 1:
        ready = [w for w in workers if answered[w] == pushed[w] < steps - 1]
        # Worker 3 is slow: it moves only when it must, or now and then.
        worker = rng.choice([w for w in ready if w != 3] or ready)
        pushed[worker] += 1
        for who, version in clocks.push(0, worker, pushed[worker]):
            answered[who] = version
            ahead = max(ahead, version - min(pushed.values()))

    assert ahead == (steps - 1 + 1 if staleness is None else staleness)
    assert clocks.idle
    assert clocks.newest == steps - 1
