"""Training on several ranks against one, and the proof that this comparison can fail."""

import json

import pytest
from mpi4py import MPI

from hpctrain.cli import selfcheck
from hpctrain.parallel.exchange import Summed

KEYS = {
    "peer", "workload", "precision", "ranks", "batch_per_rank", "ms_per_step",
    "samples_per_s", "peak_rss_mb", "loss", "exposed_comm_ms", "uneven_ms", "first_step_ms",
    "path", "overlap",
}  # fmt: skip
FORECAST = {
    "link_mb_per_s", "compute_ms", "predicted_ms", "best_ms", "backward_ms", "order"
}  # fmt: skip


@pytest.mark.serial
@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_the_check_passes_on_every_number_of_ranks(hpctrain, ranks):
    ended = hpctrain(ranks, "selfcheck", "--steps", 3).end()

    assert (ended.code, ended.err) == (0, "")
    rows = ended.out.splitlines()
    assert rows[-1] == "PASS"
    assert len(rows) == 3 + len(selfcheck.CASES)
    assert all(row.endswith("PASS") for row in rows[2:-1])


@pytest.mark.slow
@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("fault", ["lost", "replica"])
def test_the_check_fails_if_a_gradient_is_lost(monkeypatch, capsys, fault):
    begin = Summed.begin

    def without_mine(self, piece, number=0):
        if self.transport.rank == self.transport.size - 1:
            self._buffer[piece.start : piece.stop] = 0
        return begin(self, piece, number)

    def not_equal(self, piece, number=0):
        pending = begin(self, piece, number)
        pending.wait()
        if self.transport.rank == 1:
            self._buffer[piece.start : piece.stop] *= 1 + 1e-14
        return pending

    monkeypatch.setattr(Summed, "begin", without_mine if fault == "lost" else not_equal)
    monkeypatch.setattr(selfcheck, "CASES", selfcheck.CASES[:2])

    assert selfcheck.run(["--steps", "2"]) == 1

    said = capsys.readouterr().out
    assert said.endswith("FAIL: 2 of 2\n" if MPI.COMM_WORLD.rank == 0 else "")


@pytest.mark.serial
@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_benchmark_is_one_line_of_json(hpctrain, ranks):
    ended = hpctrain(ranks, "bench", "step", "mlp", "--steps", 2, "--batch", 4).end()

    assert (ended.code, ended.err) == (0, "")
    assert ended.out.count("\n") == 1
    line = json.loads(ended.out)
    assert set(line) == KEYS
    assert (line["workload"], line["ranks"], line["batch_per_rank"]) == ("mlp", ranks, 4)
    assert line["ms_per_step"] > 0 and line["loss"] > 0
    assert (line["exposed_comm_ms"] + line["uneven_ms"] > 0) == (ranks > 1)
    assert line["path"] == ("node" if ranks > 1 else "none")


@pytest.mark.serial
@pytest.mark.slow
@pytest.mark.parametrize("order", ["planned", "backward", "forward"])
def test_a_benchmark_over_messages_says_what_was_to_be_expected(hpctrain, order):
    words = ["--path", "direct", "--overlap", "on", "--order", order, "--slice-mib", 2]
    ended = hpctrain(2, "bench", "step", "mlp", "--steps", 2, "--batch", 4, *words).end()

    assert (ended.code, ended.err) == (0, "")
    line = json.loads(ended.out)
    assert set(line) == KEYS | FORECAST
    assert (line["path"], line["overlap"]) == ("direct", True)
    assert all(line[key] > 0 for key in FORECAST - {"order"})
    assert sorted(line["order"]) == list(range(len(line["order"]))) and len(line["order"]) > 8
    assert line["order"] == sorted(line["order"]) or order != "forward"
    # The best that is found is no worse, but for a thousandth that a simpler order may cost.
    simple = min(line["predicted_ms"], line["backward_ms"])
    assert line["compute_ms"] - 0.01 <= line["best_ms"] <= simple * 1.001 + 0.01
    if order == "backward":
        assert line["predicted_ms"] == line["backward_ms"]
