"""Threads of a rank: as many as wanted, the same of every kind of kernel."""

import os
import subprocess
import sys

import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from hpctrain.cli.doctor import _wanted
from hpctrain.cli.threads import PINNING, cores_of_rank, limit_threads, pins_of
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
        threads, cores, _ = limit_threads(world, wanted)

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
    facts, four = {"cpus": 4, "pinned_by": ""}, [0, 1, 2, 3]
    rows = [{"host": "a", "cores": four, **facts}, {"host": "b", "cores": [0, 1, 2], **facts},
            {"host": "a", "cores": four, **facts}]  # fmt: skip
    of_every_kind = "of every kind in a run,"

    assert [_wanted(rows, rank) for rank in range(3)] == [
        f"2 {of_every_kind} not pinned (ranks share cores)",
        f"3 {of_every_kind} pinned to cores 0-2",
        f"2 {of_every_kind} not pinned (ranks share cores)",
    ]


@pytest.mark.parametrize(
    ("masks", "threads", "asked", "cores"),
    [
        ([[0, 1, 2, 3]], 4, "", (0, 1, 2, 3)),
        ([[0, 1, 2, 3]], 2, "", ()),  # another program may take the same two
        ([[4, 5, 6], [7, 8]], 2, "", (4, 5)),
        ([[4, 5, 6], [6, 7]], 2, "", ()),
        ([[0, 1], [0, 1]], 1, "", ()),
        ([[0]], 1, "", ()),
        ([[0, 1, 2, 3]], 4, "OMP_PROC_BIND", ()),
    ],
)
def test_threads_are_pinned_where_the_cores_are_the_ranks_own(masks, threads, asked, cores):
    pins = pins_of(masks, 0, threads, 9 if len(masks) > 1 else 4, asked)

    assert pins.cores == cores
    assert bool(pins.reason) != bool(cores)


PINNED = """
import os
from hpctrain import engine
from hpctrain.cli.threads import limit_threads, told
from hpctrain.comm.world import start
from hpctrain.graph import threads

with start() as world, engine.create() as lanes:
    given = limit_threads(world, 0, "auto")
    print(told(given, lanes))
    done, found = lanes.variable("done"), []
    for count in (given.threads, 2, given.threads):  # a kernel on few threads ends the others
        lanes.push(lambda count=count: found.append(threads.masks(count)), writes=[done])
    lanes.wait(done)
    print(found[0], found[2], sep="\\n")
    print(sorted(os.sched_getaffinity(0)))
"""


@pytest.mark.slow
@pytest.mark.parametrize("asked", [{}, {"OMP_PROC_BIND": "true"}])
def test_each_thread_of_a_kernel_keeps_to_a_core_and_the_others_do_not(asked):
    """In a process of its own, for OpenMP is told where its threads run when it is loaded."""
    if CORES < 2:
        pytest.skip("too few cores")
    ended = subprocess.run(
        [sys.executable, "-c", PINNED], capture_output=True, text=True, timeout=60, check=True,
        env={k: v for k, v in os.environ.items() if k not in PINNING} | asked,
    )  # fmt: skip
    said, masks, again, free = ended.stdout.splitlines()

    cores = sorted(os.sched_getaffinity(0))
    if "no OpenMP runtime" in said:
        pytest.skip(said)
    how = "not pinned: OMP_PROC_BIND is set" if asked else f"pinned to cores {str(cores)[1:-1]}"
    assert said == f"{CORES} thread(s) a rank, {how}"
    assert masks == again == str([(core,) for core in cores])
    assert free == str(cores)
