"""Replicas of pipelines whose micro-batches are shards: the bits do not depend on how many."""

import numpy as np
import pytest
from replicas import batches, mlp
from staged_runs import staged

from hpctrain.optim import SGD
from hpctrain.parallel.staged import Layout
from hpctrain.parallel.work import Options

SGDM = SGD(momentum=0.9, weight_decay=0.01)
SIZES = (13, 7, 1, 5, 8, 11)  # shards of 2: uneven shares, of 1 only one replica has some


def half(model):
    for parameter in model.parameters.values():
        if parameter.dtype == np.float64:
            parameter.cast(np.float32)
    return model


def data():
    return [(x.astype(np.float32), y) for x, y in batches([(n, 6) for n in SIZES])]


@pytest.mark.parametrize(
    ("kind", "chunks", "changes"),
    [
        ("1f1b", 1, {"clip_norm": 0.05, "accumulate": 2}),
        ("gpipe", 1, {"overlap": False}),
        ("zero_bubble", 1, {"sharded": True}),
        ("interleaved", 2, {"skip": True, "loss_scale": 64.0}),
    ],
)
def test_any_number_of_replicas_gives_the_same_bits(world, kind, chunks, changes):
    stages = 2 if world.size == 4 else 1
    if stages == 1 and chunks > 1:
        pytest.skip("one rank has no use for chunks")
    steps = [[first, second] for first, second in zip(data()[::2], data()[1::2], strict=True)]
    steps = steps if changes.get("accumulate") else data()
    layout = Layout(stages, kind, 7, chunks, "params")  # 13 samples are 7 shards
    options = Options(shard=2, **changes)

    with world.split(world.rank // stages) as one:
        wanted, expected, _ = staged(half(mlp(0.4)), SGDM, steps, one, layout, options)
    results, arrays, _ = staged(
        half(mlp(0.4)), SGDM, steps, world, layout, options, slice_bytes=256
    )

    assert [(r.loss_sum, r.correct, r.count) for r in results] == [
        (r.loss_sum, r.correct, r.count) for r in wanted
    ]
    names = [n for n in arrays if n.startswith("parameters/")]
    assert names
    for name in names:
        np.testing.assert_array_equal(arrays[name], expected[name], name)
