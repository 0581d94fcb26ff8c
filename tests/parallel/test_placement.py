"""Servers have equal shares of real models."""

from itertools import pairwise

import numpy as np
import pytest

from hpctrain import backend, models
from hpctrain.optim import SGD
from hpctrain.parallel.flat import Slice
from hpctrain.parallel.placement import place
from hpctrain.parallel.state import ModelState

pytestmark = pytest.mark.serial


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mlp", "lenet", "resnet20", "lstm", "gpt", "cosmo"])
@pytest.mark.parametrize("servers", [2, 3, 7])
def test_servers_keep_as_many_bytes_of_each_model(name, servers):
    work = models.workload(name, 2)
    work.net.initialize(ctx=backend.CPU)
    flat = ModelState(work.net.collect_params(), SGD()).flat

    kept = np.zeros(servers)
    for parts in place(flat.slices, servers):
        kept += [b - a for a, b in parts]

    assert kept.sum() == flat.total
    assert kept.max() <= 1.05 * kept.mean()
    assert kept.min() >= 0.95 * kept.mean()


@pytest.mark.parametrize("servers", [1, 2, 3, 5])
def test_parts_tile_a_slice_and_keep_rows_together(servers):
    pieces = [Slice(0, 0, 100, ()), Slice(1, 100, 100 + 7 * 11 + 3, ())]
    plain, rows = place(pieces, servers, {1: 11})

    for piece, parts in zip(pieces, (plain, rows), strict=True):
        assert parts[0][0] == piece.start and parts[-1][1] == piece.stop
        assert all(a[1] == b[0] for a, b in pairwise(parts))
    assert all((a - 100) % 11 == 0 for a, _ in rows)
