"""What is written of the time in which computation waited for messages."""

import numpy as np
import pytest

from hpctrain.train.report import _worst

pytestmark = pytest.mark.serial


@pytest.mark.parametrize(
    ("exposed", "worst"),
    [
        ([0.0, 0.0, 0.0, 0.0], -1),
        ([0.001, 0.004, 0.0, 0.001], 1),
        ([0.01, 0.01, 0.01, 0.5], -1),  # what no slice is known for
        ([0.3, 0.1], -1),  # a single slice says nothing
    ],
)
def test_the_worst_slice_stands_out(exposed, worst):
    assert _worst(np.array(exposed)) == worst
