"""A pipeline trains as one rank does that adds up the same micro-batches: bit for bit."""

import numpy as np
import pytest
from replicas import batches, convnet, mlp
from staged_runs import staged, twin

from hpctrain.optim import SGD
from hpctrain.parallel.staged import Layout

SGDM = SGD(momentum=0.9, weight_decay=0.01)
SIZES = (7, 7, 2, 5, 1, 8)
DATA = {"mlp": (6,), "conv": (6, 5, 2)}
MODELS = {"mlp": mlp, "conv": convnet}
WAYS = [("gpipe", 1), ("1f1b", 1), ("zero_bubble", 1), ("interleaved", 2)]


def data_for(name, sizes=SIZES):
    return batches([(n, *DATA[name]) for n in sizes])


def compare(found, expected, exact=True):
    (results, arrays, _), (wanted, reference) = found, expected
    for result, other in zip(results, wanted, strict=True):
        assert result.loss_sum == (other.loss_sum if exact else pytest.approx(other.loss_sum))
        assert (result.correct, result.count) == (other.correct, other.count)
    assert arrays.keys() <= reference.keys()
    for name, array in arrays.items():
        if array.dtype.kind != "f":
            continue
        if exact:
            np.testing.assert_array_equal(array, reference[name], name)
        else:
            np.testing.assert_allclose(array, reference[name], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("micro", [1, 2, 3, 4, 5])
@pytest.mark.parametrize(("kind", "chunks"), WAYS)
def test_a_pipeline_gives_the_bits_of_one_rank(world, kind, chunks, micro):
    if world.size == 1 and chunks > 1:
        pytest.skip("one rank has no use for chunks")
    data = data_for("mlp")
    layout = Layout(world.size, kind, micro, chunks, "params")

    found = staged(mlp(), SGDM, data, world, layout)

    compare(found, twin(mlp(), SGDM, data, micro))
