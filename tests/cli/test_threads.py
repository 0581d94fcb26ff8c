"""Threads of a rank: as many as wanted, the same of every kind of kernel."""

import os

import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from hpctrain.cli.doctor import _wanted
from hpctrain.cli.threads import cores_of_rank, limit_threads
from hpctrain.comm.world import start
from hpctrain.errors import ConfigError
from hpctrain.graph import threads as kernels
from hpctrain.ops import dnnl

pytestmark = pytest.mark.serial
CORES = len(os.sched_getaffinity(0))


@pytest.fixture
def kept():
    """Set back what the test sets."""
    before = kernels._settings().threads, dnnl.settings().threads
    with threadpool_limits(None):
        yield
    kernels.limit(before[0])
    dnnl.limit(before[1])


@pytest.mark.parametrize("wanted", [0, 1, 2])
def test_blas_onednn_and_compiled_kernels_agree(wanted, kept):
    if wanted > CORES:
        pytest.skip("too few cores")
    expected = wanted or CORES
    with start() as world:
        threads, cores = limit_threads(world, wanted)

    assert (threads, cores) == (expected, CORES)
    pools = [p for p in threadpool_info() if p["user_api"] == "blas"]
    assert pools and {p["num_threads"] for p in pools} == {expected}
    assert kernels.threads() in (expected, 1 if kernels._runtime() is None else expected)
    assert dnnl.library() is None or dnnl.library().threads() == expected


def test_more_threads_than_cores_are_refused(kept):
    with start() as world, pytest.raises(ConfigError, match=r"1 ranks x .* are more than"):
        limit_threads(world, CORES + 1)


def test_ranks_share_the_cores_that_both_may_use():
    assert [cores_of_rank([[0, 1], [1, 2, 3]], rank) for rank in (0, 1)] == [1.5, 2.5]


def test_the_doctor_says_what_a_run_takes():
    rows = [{"host": "a", "cores": [0, 1, 2, 3]}, {"host": "b", "cores": [0]},
            {"host": "a", "cores": [0, 1, 2, 3]}]  # fmt: skip

    assert [_wanted(rows, rank) for rank in range(3)] == [2, 1, 2]
