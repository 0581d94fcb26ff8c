import pytest

from hpctrain.comm.progress import Log
from hpctrain.comm.watched import noted, slice_names

NAMES = slice_names([[0], [0, 1], [2, 3, 4], []], ["w1", "b1", "w2", "b2", "w3"])


@pytest.fixture
def log():
    return Log()


@pytest.mark.serial
def test_a_slice_is_named_by_its_number_and_its_first_and_last_parameter():
    assert NAMES == [
        "slice 1 of 4 (w1)",
        "slice 2 of 4 (w1 to b1)",
        "slice 3 of 4 (w2 to w3)",
        "slice 4 of 4",
    ]


class Looks:
    """Complete at the second look."""

    def __init__(self):
        self.left = 2

    def test(self):
        self.left -= 1
        return self.left <= 0

    def wait(self, pause_s=0.0):
        self.left = 0


def start(log, key, name=None):
    return noted(Looks(), log, key, name or NAMES[key])


@pytest.mark.serial
def test_an_exchange_is_waited_for_from_the_first_look_to_the_last(log):
    pending = start(log, 1)
    assert (log.oldest(), log.busy()) == (None, 1)

    assert not pending.test()
    assert log.oldest().name == "step 1, slice 2 of 4 (w1 to b1)"
    assert log.busy() is None

    assert pending.test()
    assert (log.oldest(), log.busy()) == (None, None)


@pytest.mark.serial
def test_whoever_waits_finds_the_end(log):
    start(log, 1).wait()

    assert (log.started, log.oldest(), log.busy()) == (1, None, None)


@pytest.mark.serial
def test_keys_are_noted_apart(log):
    for step in range(1, 4):
        sums, parts = start(log, 2), start(log, ~2, "new parameters")
        sums.test()
        assert log.oldest().name == f"step {step}, slice 3 of 4 (w2 to w3)"
        sums.test()
        parts.test()
        assert log.oldest().name == f"step {step}, new parameters"
        parts.test()


@pytest.mark.serial
def test_a_look_at_an_exchange_that_is_over_does_not_end_the_next(log):
    first = start(log, 0)
    while not first.test():
        pass
    second = start(log, 0)
    second.test()

    assert first.test()

    assert log.oldest().number == 2


@pytest.mark.serial
def test_without_a_log_or_an_exchange_nothing_is_noted(log):
    pending = Looks()

    assert noted(pending, None, 0, "") is pending
    assert noted(None, log, 0, "") is None
    assert log.started == 0
