"""Runs in stages: the numbers of one rank, on every mesh, and from one mesh to another."""

import json

import numpy as np
import pytest
from launched import records

from hpctrain.train import checkpoint

pytestmark = [pytest.mark.serial, pytest.mark.slow]

EXACT = {
    "device.precision": "float64",
    "device.kernels": "numpy",
    "graph.fuse": "off",
    "exchange.reproducible": "run",
    "optim.name": "adam",
    "model.args.hidden": "[8, 8]",
}
MESHES = {
    "S2": (2, {"parallel.pipeline": 2}),
    "S3-gpipe": (3, {"parallel.pipeline": 3, "parallel.schedule": "gpipe"}),
    "D2xS2": (4, {"parallel.pipeline": 2, "parallel.schedule": "zero_bubble"}),
    "S2-chunks": (
        2,
        {"parallel.pipeline": 2, "parallel.schedule": "interleaved", "parallel.chunks": 2},
    ),
}


def last(folder, name="mnist", step=21):
    return checkpoint.load(folder / f"runs/{name}/checkpoints/step-{step:08d}")


def compare(arrays, expected, exact=False):
    names = {n for n in arrays if not n.startswith("ranks/")}
    assert names == {n for n in expected if not n.startswith("ranks/")}
    for name in names:
        if exact:
            np.testing.assert_array_equal(arrays[name], expected[name], name)
        else:
            np.testing.assert_allclose(
                arrays[name], expected[name], rtol=1e-9, atol=1e-12, err_msg=name
            )


def traced(path):
    """The names of the rows of a trace, and those of its counters."""
    events = json.loads(path.read_text())["traceEvents"]
    rows = {e["args"]["name"] for e in events if e["name"] == "thread_name"}
    return rows, {e["name"] for e in events if e["ph"] == "C"}


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The folder of the run on one rank, once it was asked for."""
    return {"folder": tmp_path_factory.mktemp("alone"), "done": False}


@pytest.fixture
def reference(train, alone):
    """What a run on one rank comes to: arrays and state of its last checkpoint."""
    if not alone["done"]:
        ended = train(1, folder=alone["folder"], **EXACT).end()
        assert (ended.code, ended.err) == (0, "")
        alone["done"] = True
    return last(alone["folder"])


@pytest.mark.parametrize("name", MESHES)
def test_a_run_in_stages_gives_the_numbers_of_one_rank(train, tmp_path, reference, name):
    ranks, mesh = MESHES[name]

    ended = train(ranks, **EXACT, **mesh, **{"run.profile": "3:5"}).end()

    assert (ended.code, ended.err) == (0, "")
    assert "stage  layers" in ended.out
    (arrays, state), (expected, wanted) = last(tmp_path), reference
    compare(arrays, expected)
    assert list(arrays) == list(expected)
    assert state["values"] == pytest.approx(wanted["values"], rel=1e-9)
    rows = records(tmp_path / "runs/mnist/metrics.jsonl")
    assert [r["step"] for r in rows if r["kind"] == "step"] == list(range(1, 22))
    shares = [(r["bubble"], r["expected"]) for r in rows if r["kind"] == "step"]
    assert all(0 <= share < 1 for pair in shares for share in pair)
    assert sum(share > 0 for pair in shares for share in pair) > len(shares)
    assert " expected 0." in ended.out
    stages, counters = traced(tmp_path / "runs/mnist/trace/trace.json")
    chunks = mesh.get("parallel.chunks", 1)
    assert {f"stage {n}" for n in range(mesh["parallel.pipeline"] * chunks)} <= stages
    assert {"bubble", "bubble expected from its times", "bubble of the papers"} <= counters


def test_a_checkpoint_goes_on_on_another_mesh(train, tmp_path, reference, alone):
    """One rank, then D4, D2 x S2, S4 and T2 x D2."""
    steps = [
        {"run.name": "second", "run.max_steps": 10},
        {"run.name": "third", "run.max_steps": 14, "parallel.pipeline": 2},
        {"run.name": "fourth", "run.max_steps": 18, "parallel.pipeline": 4},
        {"run.name": "fifth", "parallel.tensor": 2},
    ]
    origin = alone["folder"] / "runs/mnist/checkpoints/step-00000007"
    for settings in steps:
        ended = train(4, **EXACT, **settings, **{"run.resume": origin}).end()
        assert (ended.code, ended.err) == (0, "")
        origin = tmp_path / "runs" / settings["run.name"]

    compare(last(tmp_path, "fifth")[0], reference[0])


OWING = {"device.precision": "float32", "exchange.wire": "2bit", "exchange.threshold": 0.001}


@pytest.mark.parametrize("norm", ["false", "true"])
def test_a_run_goes_on_from_its_checkpoint_bit_for_bit(train, tmp_path, norm):
    """With dropout, or with what each replica has its own of: statistics, and what is owed."""
    model = {"model.args.dropout": 0.5}
    if norm == "true":
        model = {"model.args.norm": norm, "exchange.path": "direct", **OWING}
    settings = {
        **EXACT,
        "model.name": "probing:build",
        "parallel.pipeline": 2,
        "parallel.micro_batches": 2,
        **model,
    }
    del settings["model.args.hidden"]
    whole = train(4, **settings).end()
    assert (whole.code, whole.err) == (0, "")
    origin = tmp_path / "runs/mnist/checkpoints/step-00000007"

    second = train(4, **settings, **{"run.resume": origin, "run.name": "second"}).end()

    assert (second.code, second.err) == (0, "")
    assert "step 8/21" in second.out and "step 7/21" not in second.out
    compare(last(tmp_path, "second")[0], last(tmp_path)[0], exact=True)


def test_any_number_of_replicas_gives_the_same_parameters(train, tmp_path):
    """In float32, with fused kernels: one replica of two stages, and two."""
    settings = {"parallel.pipeline": 2, "exchange.reproducible": "ranks", "run.max_steps": 7}
    for ranks in 2, 4:
        ended = train(ranks, **settings, **{"run.name": f"on{ranks}"}).end()
        assert (ended.code, ended.err) == (0, "")

    (first, _), (second, _) = (last(tmp_path, f"on{ranks}", 7) for ranks in (2, 4))
    compare(first, second, exact=True)


def test_replicas_in_stages_share_the_statistics_of_micro_batches(train, tmp_path):
    settings = {name: value for name, value in EXACT.items() if not name.startswith("model.")}
    settings |= {"model.name": "probing:build", "model.args.norm": "true"}
    settings |= {"parallel.pipeline": 2, "parallel.sync_bn": "true", "run.max_steps": 3}
    ended = train(4, **settings).end()

    assert (ended.code, ended.err) == (0, "")
    arrays = last(tmp_path, step=3)[0]
    for name in "ranks/norm.running_mean", "ranks/norm.running_var":
        first, second = arrays[name]  # of each replica
        np.testing.assert_array_equal(first, second, name)


def test_ranks_that_are_no_multiple_of_the_stages_are_refused(train):
    ended = train(3, **{"parallel.pipeline": 2}).end()

    assert ended.code == 2
    assert "does not divide 3 ranks" in ended.err
