"""The comparison with and without recomputation."""

import pytest

from hpctrain.cli.bench_recompute import compare

pytestmark = pytest.mark.serial


def test_a_deep_network_takes_less_memory_and_more_time():
    found = compare(layers=36, width=16, batch=16, steps=1)

    # 36 values and two more; six that cross, six of a segment and two more
    assert found["mib"] == pytest.approx(38 * 16 * 16 * 4 / 2**20, rel=0.1)
    assert found["mib_recomputed"] < 0.45 * found["mib"]
    assert 0 < found["nodes_run_again"] < 2 * 36
    assert found["ms_per_step"] > 0 and found["ms_per_step_recomputed"] > 0
