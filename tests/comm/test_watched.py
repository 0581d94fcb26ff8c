import numpy as np
import pytest

from hpctrain.comm.progress import Log
from hpctrain.comm.transport import MpiTransport
from hpctrain.comm.watched import Watched, slice_names

NAMES = slice_names([[0], [0, 1], [2, 3, 4], []], ["w1", "b1", "w2", "b2", "w3"])


@pytest.fixture
def log():
    return Log()


@pytest.fixture
def watched(group, log):
    return Watched(MpiTransport(group), log, NAMES)


@pytest.mark.serial
def test_a_slice_is_named_by_its_number_and_its_first_and_last_parameter():
    assert NAMES == [
        "slice 1 of 4 (w1)",
        "slice 2 of 4 (w1 to b1)",
        "slice 3 of 4 (w2 to w3)",
        "slice 4 of 4",
    ]


@pytest.mark.parametrize("call", ["allreduce", "reduce_scatter", "allgather"])
def test_the_transport_inside_does_the_work_and_the_end_is_noted(watched, log, call):
    array = np.full(40, watched.rank + 1.0)
    part = watched.part(40)

    getattr(watched, call)(array, 1).wait()

    assert (log.started, log.oldest(), log.busy()) == (1, None, None)
    size = watched.size
    expected = watched.rank + 1 if call == "allgather" else size * (size + 1) / 2
    np.testing.assert_array_equal(array[part], expected)


class Slow:
    """A transport of one rank whose exchanges are complete at the second look."""

    rank, size = 0, 1

    def allreduce(self, array, key, exact=0):
        return Looks()

    def allgather(self, array, key):
        return Looks()


class Looks:
    def __init__(self):
        self.left = 2

    def test(self):
        self.left -= 1
        return self.left <= 0


@pytest.fixture
def slow(log):
    return Watched(Slow(), log, NAMES)


@pytest.mark.serial
def test_an_exchange_is_waited_for_from_the_first_look_to_the_last(slow, log):
    pending = slow.allreduce(np.ones(3), 1)
    assert (log.oldest(), log.busy()) == (None, 1)

    assert not pending.test()
    assert log.oldest().name == "step 1, slice 2 of 4 (w1 to b1)"
    assert log.busy() is None

    assert pending.test()
    assert (log.oldest(), log.busy()) == (None, None)


@pytest.mark.serial
def test_the_sum_and_the_parts_of_a_slice_are_noted_apart(slow, log):
    for step in range(1, 4):
        sums = slow.allreduce(np.ones(40), 2)
        parts = slow.allgather(np.ones(40), 2)
        sums.test()
        assert log.oldest().name == f"step {step}, slice 3 of 4 (w2 to w3)"
        sums.test()
        parts.test()
        text = f"step {step}, slice 3 of 4 (w2 to w3), the new parameters"
        assert log.oldest().name == text
        parts.test()


@pytest.mark.serial
def test_a_look_at_an_exchange_that_is_over_does_not_end_the_next(slow, log):
    first = slow.allreduce(np.ones(3), 0)
    while not first.test():
        pass
    second = slow.allreduce(np.ones(3), 0)
    second.test()

    assert first.test()

    assert log.oldest().number == 2
