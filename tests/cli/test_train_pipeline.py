"""Runs in stages: the numbers of one rank, on every mesh, and from one mesh to another."""

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

    ended = train(ranks, **EXACT, **mesh).end()

    assert (ended.code, ended.err) == (0, "")
    assert "stage  layers" in ended.out
    (arrays, state), (expected, wanted) = last(tmp_path), reference
    compare(arrays, expected)
    assert list(arrays) == list(expected)
    assert state["values"] == pytest.approx(wanted["values"], rel=1e-9)
    rows = records(tmp_path / "runs/mnist/metrics.jsonl")
    assert [r["step"] for r in rows if r["kind"] == "step"] == list(range(1, 22))


def test_a_checkpoint_goes_on_on_another_mesh(train, tmp_path, reference):
    """Four replicas, then two of two stages, then four stages."""
    steps = [
        (4, {"run.name": "first", "run.max_steps": 7}),
        (4, {"run.name": "second", "run.max_steps": 14, "parallel.pipeline": 2}),
        (4, {"run.name": "third", "parallel.pipeline": 4}),
    ]
    origin = "never"
    for ranks, settings in steps:
        ended = train(ranks, **EXACT, **settings, **{"run.resume": origin}).end()
        assert (ended.code, ended.err) == (0, "")
        origin = tmp_path / "runs" / settings["run.name"]

    compare(last(tmp_path, "third")[0], reference[0])


@pytest.mark.parametrize("norm", ["false", "true"])
def test_a_run_that_was_stopped_goes_on_bit_for_bit(train, tmp_path, tmp_path_factory, norm):
    """With dropout or with running statistics, which each replica has its own of."""
    model = {"model.args.norm": norm} if norm == "true" else {"model.args.dropout": 0.5}
    settings = {
        **EXACT,
        "model.name": "probing:build",
        "parallel.pipeline": 2,
        "parallel.micro_batches": 2,
        **model,
    }
    del settings["model.args.hidden"]
    other = tmp_path_factory.mktemp("whole")
    whole = train(4, folder=other, **settings).end()
    assert (whole.code, whole.err) == (0, "")

    limits = {"run.name": "first", "run.max_steps": 7}
    first = train(4, **settings, **limits).end()
    assert (first.code, first.err) == (0, "")
    origin = {"run.resume": tmp_path / "runs/first", "run.name": "second"}
    second = train(4, **settings, **origin).end()

    assert (second.code, second.err) == (0, "")
    compare(last(tmp_path, "second")[0], last(other)[0], exact=True)


def test_ranks_that_are_no_multiple_of_the_stages_are_refused(train):
    ended = train(3, **{"parallel.pipeline": 2}).end()

    assert ended.code == 2
    assert "does not divide 3 ranks" in ended.err
