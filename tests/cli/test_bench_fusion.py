"""The comparison with and without fused kernels."""

import pytest

from hpctrain.cli.bench_fusion import compare
from hpctrain.graph.native import available

pytestmark = [pytest.mark.serial, pytest.mark.slow]


@pytest.mark.skipif(not available(), reason="kernels cannot be compiled without llvmlite")
def test_a_fused_step_has_fewer_nodes():
    found = compare("cosmo", 1)

    assert found["nodes_fused"] < found["nodes"]
    assert found["kernels"] > 0
    assert found["ratio"] == pytest.approx(found["cpu_ms_fused"] / found["cpu_ms"], abs=2e-3)
