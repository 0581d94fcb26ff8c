"""What a rank takes of memory: planned to the byte, and really."""

import re

import pytest

from hpctrain.cli import bench_memory
from hpctrain.cli.bench_memory import memory

pytestmark = [
    pytest.mark.serial,
    pytest.mark.skipif(not bench_memory.measurable(), reason="needs Linux's /proc"),
]
MIB = 2**20
WIDTH, LAYERS, BATCH = 256, 24, 128
TRAINED = LAYERS * (WIDTH + 1) * WIDTH * 4


def row(text):
    """The numbers of the line of rank 0: those of each kind, planned, measured."""
    found = re.fullmatch(r"deep +1 x 1 x 1 +0 \|(.*)\|(.*) [+-]\d+%\n", text)
    return [float(word) for part in found.groups() for word in part.split()]


def test_a_rank_takes_about_what_is_planned(capsys):
    size = {"layers": LAYERS, "width": WIDTH, "batch": BATCH, "head": False}
    memory("deep", **size)
    plain = row(capsys.readouterr().out)
    memory("deep", **size, budget="2MiB", optimizer="sgd")
    less = row(capsys.readouterr().out)

    for name, copies in (("params", 1), ("grads", 1), ("sums", 0), ("optim", 2)):
        place = ["params", "grads", "sums", "optim"].index(name)
        assert plain[place] == pytest.approx(copies * TRAINED / MIB, abs=0.06), name
    assert less[3] == plain[3] / 2
    assert less[4] <= 2 < 3 < plain[4]
    for found in (plain, less):
        assert found[6] == pytest.approx(sum(found[:6]), abs=0.3)
        assert 0.5 * found[6] < found[7] < 2 * found[6]
