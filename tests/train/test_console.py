"""Rank 0 speaks, in plain whole lines, but for a live bar on a terminal."""

import io
import math
import subprocess
import sys

import pytest

from hpctrain.train.console import Console, Progress, duration

pytestmark = pytest.mark.serial

FULL = Progress(
    epoch=3, step=120, steps=630, values={"loss": 0.12341, "acc": 0.9612}, rate=12345.4,
    slowest_rank=5, slowest_host="node7", slowest_lag=0.08, data=0.01, comm=0.06, left_s=42.4,
)  # fmt: skip


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_line_of_progress_says_all_that_is_known():
    assert str(FULL) == (
        "epoch 3 step 120/630 loss 0.1234 acc 0.9612 12,345 samples/s "
        "slowest rank 5 @ node7 +8 % data 1 % comm 6 % ETA 0:42"
    )


def test_the_slice_that_is_waited_for_most_is_named_if_it_matters():
    assert "comm 6 % (most for slice 3)" in str(
        Progress(epoch=1, step=1, steps=9, comm=0.06, comm_slice=3)
    )
    assert "slice" not in str(Progress(epoch=1, step=1, steps=9, comm=0.004, comm_slice=3))


def test_what_is_not_known_is_left_out():
    assert str(Progress(epoch=1, step=1, steps=2)) == "epoch 1 step 1/2"


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0.0000"), (1.5e-7, "1.500e-07"), (-0.25, "-0.2500"), (123456.0, "1.235e+05"),
     (math.nan, "nan"), (math.inf, "inf")],
)  # fmt: skip
def test_numbers_of_any_size_are_shown_for_what_they_are(value, text):
    assert str(Progress(epoch=1, step=1, steps=2, values={"x": value})).endswith(f"x {text}")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0:00"),
        (59.6, "1:00"),
        (3723, "1:02:03"),
        (183845, "2d 3:04:05"),
        (86400, "1d 0:00:00"),
    ],
)
def test_durations_are_short(seconds, text):
    assert duration(seconds) == text


def test_off_a_terminal_lines_are_plain_and_at_once(tmp_path):
    stream = io.StringIO()
    with Console(0, stream, log=tmp_path / "log.txt") as console:
        console.line("hello")
        console.progress(FULL)
        assert (tmp_path / "log.txt").read_text() == stream.getvalue()
    assert stream.getvalue() == f"hello\n{FULL}\n"


def test_other_ranks_are_silent(tmp_path):
    stream = Terminal()
    with Console(1, stream, tty=True, log=tmp_path / "log.txt") as console:
        console.line("hello")
        console.progress(FULL)
        console.facts("start", {"ranks": 2})
    assert stream.getvalue() == ""
    assert not (tmp_path / "log.txt").exists()


def test_facts_are_a_table():
    stream = io.StringIO()
    Console(0, stream).facts(
        "start", {"ranks": 8, "parameters": 1234567, "gpu": None, "on": True}
    )
    assert (
        stream.getvalue()
        == "start\n  ranks       8\n  parameters  1,234,567\n  on          True\n"
    )


def test_a_terminal_gets_a_bar_that_goes_away_and_the_log_gets_lines(tmp_path, monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    stream = Terminal()
    with Console(0, stream, log=tmp_path / "log.txt") as console:
        console.progress(FULL)
        console.line("an [odd] line")
    text = stream.getvalue()
    assert "step 120/630" in text
    assert "━" in text
    assert "an [odd] line" in text
    assert (tmp_path / "log.txt").read_text() == f"{FULL}\nan [odd] line\n"


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_a_terminal_that_wants_no_drawing_gets_plain_lines(monkeypatch, name, value):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv(name, value)
    stream = Terminal()
    with Console(0, stream) as console:
        console.progress(FULL)
    assert stream.getvalue() == f"{FULL}\n"


@pytest.mark.slow
def test_rich_is_loaded_for_a_bar_only():
    code = (
        "import sys; from hpctrain.train.console import Console;"
        "Console(0).line('x'); Console(1, tty=True).line('x'); assert 'rich' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, stdout=subprocess.PIPE)


def test_the_terminal_of_open_mpi_is_none(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.delenv("OMPI_COMM_WORLD_SIZE", raising=False)
    stream = Terminal()
    with Console(stream=stream) as console:
        console.progress(Progress(epoch=1, step=1, steps=2))
    drawn = stream.getvalue()
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    stream = Terminal()

    with Console(stream=stream) as console:
        console.progress(Progress(epoch=1, step=1, steps=2))

    assert "\x1b" in drawn
    assert stream.getvalue() == "epoch 1 step 1/2\n"
