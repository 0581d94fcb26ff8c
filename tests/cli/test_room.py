"""Memory: what a rank may take, what training needs, and what is said if it is too little."""

import resource
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from launched import LIMIT_S, outside

from hpctrain.cli.room import limits, remedies, state_bytes
from hpctrain.comm.last_words import text_of
from hpctrain.config import load, split
from hpctrain.errors import EngineError
from hpctrain.models import workload

pytestmark = pytest.mark.serial
MIB = 2**20
MODEL = {
    "model.args.hidden": str([2048] * 9),  # 129 MiB of parameters
    "parallel.micro_batches": 2,
    "run.max_steps": 2,
}


def files(root, texts):
    for name, text in texts.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_limits_are_those_of_the_process_and_of_its_control_groups(tmp_path):
    group = "sys/fs/cgroup"
    files(
        tmp_path,
        {
            "proc/self/status": "VmSize:\t 500 kB\nVmData:\t 100 kB\n",
            "proc/self/cgroup": "1:cpu:/else\n0::/job/step\n",
            f"{group}/cgroup.procs": "",
            f"{group}/job/cgroup.procs": "",
            f"{group}/job/memory.max": f"{300 * MIB}\n",
            f"{group}/job/memory.stat": "anon 1000\nfile 9000\nshmem 24\nanon_thp 5\n",
            f"{group}/job/step/cgroup.procs": "",
            f"{group}/job/step/memory.max": "max\n",
            f"{group}/job/step/memory.stat": "anon 7\n",
        },
    )
    before = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (2**36, before[1]))
    try:
        found = {limit.name: limit for limit in limits(tmp_path)}
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)

    assert found["ulimit -d"][1:3] == (2**36, 100 * 1024)
    shared = found["control group /job"]
    assert (shared.most, shared.used) == (300 * MIB, 1024)
    assert shared.shared.endswith("/job")
    assert "control group /job/step" not in found


@pytest.mark.parametrize(("sharded", "states"), [("false", 2), ("true", 0.5)])
def test_what_training_needs_follows_from_the_parameters(sharded, states):
    net = workload("mlp").net
    net.initialize()
    flags = ["--optim.name", "adam", "--optim.sharded", sharded]
    config = load([], split(flags)[1], {})[0]
    parameters = net.collect_params()
    nbytes = sum(p.data().size * 4 for p in parameters.values())

    found = state_bytes(parameters, config, 4, summed=True, saves=True)

    assert found["parameters"] == found["gradients"] == found["sums of gradients"] == nbytes
    assert found["optimizer"] == states * nbytes
    assert found["copies to save"] == (1 + states) * nbytes
    assert sum(found.values()) >= 4 * nbytes


@pytest.mark.parametrize(
    ("ranks", "settings", "values", "said"),
    [
        (1, {}, False, ""),
        (4, {}, False, "set optim.sharded, "),
        (4, {"parallel.tensor": "4"}, False, ""),
        (4, {"parallel.pipeline": "2", "optim.sharded": "true"}, False, ""),
        (
            1,
            {},
            True,
            "compute values again (memory.budget), take fewer records in a batch, ",
        ),
        (1, {"memory.budget": "9MiB"}, True, "take fewer records in a batch, "),
    ],
)
def test_only_what_may_help_is_advised(ranks, settings, values, said):
    flags = [word for name, value in settings.items() for word in (f"--{name}", value)]

    assert remedies(load([], split(flags)[1], {})[0], ranks, values) == said


def test_a_want_of_memory_is_a_sentence_wherever_it_comes_from():
    inner = MemoryError("Unable to allocate 9 GiB for an array")
    outer = EngineError("task failed")
    outer.__cause__ = inner

    for error in (inner, outer, MemoryError(), RuntimeError("can't start new thread")):
        said = text_of(error, "[rank 1] ", "engine")
        assert said.startswith("[rank 1] hpctrain: memory: ") and said.count("\n") == 1
        assert "parallel.pipeline" in said
    assert "9 GiB" in text_of(outer, "", "")
    assert text_of(RuntimeError("other"), "", "") == "RuntimeError: other\n"


def limited(folder, file, ranks, **settings):
    """Train under a limit of 470 MiB for each rank; return what came of it."""
    mpirun = str(Path(sys.executable).with_name("mpirun"))
    start = [mpirun if Path(mpirun).exists() else "mpirun", "-n", str(ranks)]
    flags = [str(word) for item in settings.items() for word in (f"--{item[0]}", item[1])]
    words = [*start, sys.executable, "-m", "hpctrain", "train", str(file), *flags]
    return subprocess.run(
        ["sh", "-c", f"ulimit -s 1024; ulimit -d {470 * 1024}; exec {shlex.join(words)}"],
        capture_output=True, text=True, check=False, cwd=folder, timeout=LIMIT_S,
        env=outside() | {"MALLOC_ARENA_MAX": "1"},
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.usefixtures("train")
def test_a_model_too_large_for_one_rank_trains_on_four(data, tmp_path):
    """Under one limit for each rank: refused before training, trained to a checkpoint."""
    file = data / "run.toml"

    refused = limited(tmp_path, file, 1, **MODEL)
    trained = limited(tmp_path, file, 4, **MODEL, **{"parallel.pipeline": 4})

    assert refused.returncode == 2
    assert "hpctrain: memory: training needs" in refused.stderr
    assert "ulimit -d" in refused.stderr and "Traceback" not in refused.stderr
    assert (trained.returncode, trained.stderr) == (0, "")
    assert (tmp_path / "runs/mnist/checkpoints/step-00000002/manifest.json").exists()
