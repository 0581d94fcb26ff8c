"""A signal, a file or a time limit raises the flag; a second Ctrl-C ends at once."""

import os
import signal
import time

import pytest

from hpctrain.errors import ConfigError
from hpctrain.train.signals import EXIT_STOPPED, StopFlag, time_left

pytestmark = pytest.mark.serial


def test_nothing_is_requested_at_first():
    with StopFlag() as flag:
        assert not flag.requested()


@pytest.mark.parametrize("name", ["SIGUSR1", "SIGTERM", "SIGINT"])
def test_a_signal_raises_the_flag_and_nothing_else(name):
    with StopFlag() as flag:
        os.kill(os.getpid(), signal.Signals[name])
        assert flag.requested()
        assert flag.reason == f"signal {name}"


def test_the_handlers_of_before_come_back():
    numbers = (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT)
    before = [signal.getsignal(number) for number in numbers]
    with StopFlag():
        os.kill(os.getpid(), signal.SIGINT)
    assert [signal.getsignal(number) for number in numbers] == before


def test_a_second_interrupt_ends_the_process_as_a_shell_knows_it():
    child = os.fork()
    if child == 0:
        with StopFlag() as flag:
            os.kill(os.getpid(), signal.SIGINT)
            if flag.requested():
                os.kill(os.getpid(), signal.SIGINT)
            os._exit(0)
    _, status = os.waitpid(child, 0)
    # A shell shows 128 + 2.
    assert os.WIFSIGNALED(status)
    assert os.WTERMSIG(status) == signal.SIGINT


def test_a_stop_file_raises_the_flag_once_and_is_consumed(tmp_path):
    file = tmp_path / "STOP"
    file.write_text("")
    flag = StopFlag(file)
    assert flag.requested()
    assert flag.reason == "file STOP"
    assert not file.exists()
    assert flag.requested()


def test_a_stop_file_is_asked_for_once_a_second_at_most(tmp_path, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    flag = StopFlag(tmp_path / "STOP")
    assert not flag.requested()
    (tmp_path / "STOP").write_text("")
    now[0] += 0.9
    assert not flag.requested()
    now[0] += 0.2
    assert flag.requested()


def test_the_time_limit_raises_the_flag(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    flag = StopFlag(limit_s=60)
    now[0] += 59
    assert not flag.requested()
    now[0] += 2
    assert flag.requested()
    assert flag.reason == "time limit"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("", None),
        ("90", 5400),
        ("1:30", 90),
        ("1:30:00", 5400),
        ("1-0", 86400),
        ("1-2:30", 95400),
        ("2-00:00:01", 172801),
    ],
)
def test_times_are_read_as_slurm_writes_them(text, seconds):
    assert time_left(text, {}) == seconds


def test_auto_stops_a_margin_before_the_job_ends(monkeypatch):
    monkeypatch.setattr(time, "time", lambda: 1000.0)
    assert time_left("auto", {"SLURM_JOB_END_TIME": "2000"}, margin_s=100) == 900
    assert time_left("auto", {"SLURM_JOB_END_TIME": "1001"}) == 0
    assert time_left("auto", {}) is None


def test_another_text_is_refused():
    with pytest.raises(ConfigError, match="needed a time"):
        time_left("soon", {})


def test_the_code_for_stopped_early_is_ex_tempfail():
    assert EXIT_STOPPED == os.EX_TEMPFAIL
