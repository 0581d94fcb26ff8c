"""Embeddings with servers: the rows in use travel, and the numbers are those of one rank."""

import numpy as np
import pytest
from serving import served
from tabled import sentences, twin, words

from hpctrain.optim import SGD, Adam
from hpctrain.parallel.terms import Terms
from hpctrain.parallel.work import Options

pytestmark = pytest.mark.mpi(min_size=2)

SIZES = (12, 5, 1, 12)
PLAIN = SGD()  # leaves rows as they are that nobody has touched
CASES = {
    "plain": (PLAIN, Options()),
    "momentum": (SGD(momentum=0.9, weight_decay=0.01), Options()),
    "adam": (Adam(), Options(clip_norm=0.05)),
    "clipped": (PLAIN, Options(clip_norm=0.05)),
    "after": (SGD(momentum=0.9), Options(overlap=False, clip_norm=0.05)),
    "shards": (PLAIN, Options(shard=2)),
    "accumulated": (Adam(), Options(accumulate=2)),
    "skip": (SGD(momentum=0.9), Options(skip=True, loss_scale=4.0)),
}


def halves(batch):
    """Cut a batch into two that make one step together, if there is enough."""
    cut = len(batch[0]) // 2
    parts = (slice(0, cut), slice(cut, None)) if cut else (slice(None),)
    return [tuple(a[part] for a in batch) for part in parts]


def parameters(model):
    return {name: p.data().asnumpy().copy() for name, p in model.parameters.items()}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("servers", [1, pytest.param(2, marks=pytest.mark.mpi(min_size=3))])
def test_rows_by_servers_give_the_numbers_of_a_serial_twin(world, case, servers):
    optimizer, options = CASES[case]
    batches = sentences(SIZES)
    expected = twin(words(), batches, optimizer, options.clip_norm)
    model, terms = words(), Terms(servers=servers, shared=False)
    steps = [halves(b) for b in batches] if options.accumulate > 1 else batches

    served(model, optimizer, world, steps, terms, options, slice_bytes=256)

    if world.rank >= servers:
        for name, array in expected.items():
            np.testing.assert_allclose(
                parameters(model)[name], array, rtol=1e-10, atol=1e-13, err_msg=name
            )
