"""The mode belongs to a thread and to a with block."""

import threading

import numpy as np
import pytest

from hpctrain import ops  # noqa: F401 (fills the table)
from hpctrain.autograd import (
    Tensor,
    is_recording,
    is_training,
    pause,
    predict_mode,
    record,
    train_mode,
)
from hpctrain.autograd.mode import capturing, interpreted_by

pytestmark = pytest.mark.serial


def state():
    return is_recording(), is_training()


def test_blocks_nest_and_restore():
    seen = [state()]
    with record():
        seen.append(state())
        with pause():
            seen.append(state())
            with train_mode():
                seen.append(state())
        with predict_mode():
            seen.append(state())
        with record(train_mode=False):
            seen.append(state())
        seen.append(state())
    seen.append(state())

    assert seen == [
        (False, False), (True, True), (False, False), (False, True), (True, False),
        (True, False), (True, True), (False, False),
    ]  # fmt: skip


def test_an_exception_restores_the_mode():
    with pytest.raises(KeyError), record():
        raise KeyError

    assert state() == (False, False)


def test_a_thread_does_not_see_the_mode_of_another():
    x = Tensor(np.ones(2))
    x.attach_grad()
    seen = []

    def work():
        seen.append((state(), capturing(), (x * 2.0).creator))
        with record(train_mode=False):
            inside.set()
            release.wait(10)
            seen.append(state())

    inside, release = threading.Event(), threading.Event()
    with record(), interpreted_by(None):
        thread = threading.Thread(target=work)
        thread.start()
        assert inside.wait(10)
        seen.append(state())
        release.set()
        thread.join()

    assert seen == [((False, False), False, None), (True, True), (True, False)]
