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
def test_an_exchange_is_open_until_it_is_complete(watched, log, call):
    array = np.full(40, watched.rank + 1.0)
    part = watched.part(40)

    pending = getattr(watched, call)(array, 1)

    assert log.started == 1
    assert log.oldest().name.startswith("step 1, slice 2 of 4 (w1 to b1)")
    pending.wait()
    assert log.oldest() is None
    size = watched.size
    expected = watched.rank + 1 if call == "allgather" else size * (size + 1) / 2
    np.testing.assert_array_equal(array[part], expected)


def test_the_sum_and_the_parts_of_a_slice_are_noted_apart(watched, log):
    for step in range(1, 4):
        gradient, weights = np.ones(40), np.ones(40)
        sums = watched.reduce_scatter(gradient, 2)
        assert log.oldest().name == f"step {step}, slice 3 of 4 (w2 to w3)"
        sums.wait()
        parts = watched.allgather(weights, 2)
        text = f"step {step}, slice 3 of 4 (w2 to w3), the new parameters"
        assert log.oldest().name == text
        parts.wait()


def test_the_end_of_an_exchange_is_noted_once(watched, log):
    first = watched.allreduce(np.ones(3), 0)
    while not first.test():
        pass
    assert log.oldest() is None
    second = watched.allreduce(np.ones(3), 0)

    assert first.test()

    assert log.oldest() is not None
    second.wait()
