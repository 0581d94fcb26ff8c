"""Both engines, closed at the end of the test."""

import threading

import pytest

from hpctrain.engine import SerialEngine, create


@pytest.fixture(params=["threaded", "serial"])
def engine(request):
    """Each engine; what has not started is dropped, and unraised failures are none of ours."""
    made = create(request.param)
    yield made
    made.close(drop=True)


class Gate:
    """Holds tasks of a threaded engine until it is opened; always open for a serial one."""

    def __init__(self, is_open):
        self._opened = threading.Event()
        self.entered = threading.Event()
        if is_open:
            self._opened.set()

    def pass_through(self):
        """Wait until the gate is open."""
        self.entered.set()
        assert self._opened.wait(20)

    def open(self):
        """Let all through, now and later."""
        self._opened.set()


@pytest.fixture
def gate(engine):
    """A gate fit for the engine of the test."""
    made = Gate(is_open=isinstance(engine, SerialEngine))
    yield made
    made.open()
