"""Micro-batches cover a batch in order, in sizes that differ by one at most."""

import numpy as np
import pytest

from hpctrain.autograd import Spec
from hpctrain.parallel.micro import micro_batches, most_samples
from hpctrain.parallel.packing import pack
from hpctrain.parallel.work import Work

pytestmark = pytest.mark.serial


@pytest.mark.parametrize("count", [1, 2, 3, 5, 9])
@pytest.mark.parametrize("axis", [0, 1])
def test_micro_batches_are_the_batch_in_pieces(axis, count):
    x = np.arange(30.0).reshape((5, 6) if axis == 0 else (6, 5))
    y = np.arange(5)
    work = Work([x], [y], 5, 11, 4)

    found = micro_batches(work, count, axis)

    sizes = [m.count for m in found]
    assert sum(sizes) == 5 and max(sizes) - min(sizes) <= 1
    assert max(sizes) == sizes[0] == most_samples(5, count)
    assert [m.row for m in found] == list(4 + np.cumsum([0, *sizes[:-1]]))
    assert {m.global_count for m in found} == {11}
    np.testing.assert_array_equal(np.concatenate([m.inputs[0] for m in found], axis), x)
    np.testing.assert_array_equal(np.concatenate([m.targets[0] for m in found]), y)
    assert all(m.inputs[0].flags.c_contiguous for m in found)


def test_pieces_of_memory_do_not_overlap_and_keep_their_shapes():
    specs = {
        4: Spec((3, 5), np.dtype("f8")),
        1: Spec((), np.dtype("f4")),
        9: Spec((0, 2), np.dtype("f8")),
        7: Spec((7,), np.dtype("?")),
    }
    packing = pack(specs)
    memory = np.zeros(packing.nbytes, np.uint8)

    views = packing.views(memory)

    assert {v: Spec.of(a) for v, a in views.items()} == specs
    for number, view in enumerate(views.values(), 1):
        view[...] = number
    for number, view in enumerate(views.values(), 1):
        assert (view == (number if view.dtype != bool else True)).all()
    assert packing.nbytes % 64 == 0
