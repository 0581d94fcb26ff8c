import json
import tomllib

import pytest
from launched import records

from hpctrain.train import checkpoint

pytestmark = [pytest.mark.serial, pytest.mark.slow]

RANKS = (1, 2, 3, 4)
SOME = (1, 3)


def values(run):
    return json.loads((run / "done.json").read_text())


def test_a_training_gives_the_same_on_every_number_of_ranks_and_leaves_its_files(
    train, tmp_path
):
    for ranks in RANKS:
        ended = train(ranks, run__name=f"on{ranks}").end()

        assert (ended.code, ended.err) == (0, "")
        assert ended.out.count(f"hpctrain: run on{ranks}\n") == 1
        assert ended.out.splitlines()[-1].split()[-1] == f"runs/on{ranks}"
    runs = [tmp_path / "runs" / f"on{ranks}" for ranks in RANKS]
    for run, ranks in zip(runs, RANKS, strict=True):
        assert tomllib.loads((run / "config.toml").read_text())["data"]["batch"] == 16
        assert "MPI" in json.loads((run / "env.json").read_text())["mpi"]
        assert (run / "command.txt").read_text().count(f"--run.name on{ranks}") == 1
        rows = records(run / "metrics.jsonl")
        kinds = [record["kind"] for record in rows]
        assert all(0 <= r["comm"] <= 1 and 0 <= r["data"] <= 1 for r in rows if "comm" in r)
        assert kinds.count("step") == 21 and kinds.count("epoch") == 3
        assert f"{ranks} on 1 host(s)" in (run / "log.txt").read_text()
        assert checkpoint.load(run / "checkpoints/step-00000021")[1]["position"]["epoch"] == 3
        assert values(run)["train_loss"] == pytest.approx(values(runs[0])["train_loss"], 1e-4)
        assert values(run)["test_loss"] == pytest.approx(values(runs[0])["test_loss"], 1e-4)
    assert values(runs[0])["test_accuracy"] > 0.5  # 0.25 by chance


def test_a_reproducible_run_leaves_the_same_bits_on_several_numbers_of_ranks(train, tmp_path):
    settings = {
        "exchange.reproducible": "ranks", "exchange.shard": 4, "run.epochs": 1,
        "optim.momentum": 0.9,
    }  # fmt: skip
    found = []
    for ranks in SOME:
        ended = train(ranks, **settings, run__name=f"bits{ranks}").end()
        assert (ended.code, ended.err) == (0, "")
        path = checkpoint.newest(tmp_path / "runs" / f"bits{ranks}" / "checkpoints")
        arrays = checkpoint.load(path)[0]
        found.append({n: a.tobytes() for n, a in arrays.items() if not n.startswith("ranks/")})

    assert len(found[0]) == 8
    assert [sorted(n for n in f if f[n] != found[0][n]) for f in found] == [[]] * len(SOME)


def test_equal_parameters_have_equal_right_answers_on_several_numbers_of_ranks(train, tmp_path):
    # So small a step changes nothing in float32.
    frozen = {"optim.lr": 1e-30, "run.epochs": 1, "run.seed": 3}

    for ranks in SOME:
        assert train(ranks, **frozen, run__name=f"on{ranks}").end().code == 0

    found = [values(tmp_path / "runs" / f"on{ranks}") for ranks in SOME]
    assert {round(v["test_accuracy"] * 41, 9) for v in found} == {
        round(found[0]["test_accuracy"] * 41)
    }
    assert len({v["train_accuracy"] for v in found}) == 1


def test_a_finished_run_is_left_alone_and_the_next_one_begun_beside_it(train, tmp_path):
    assert train(1, run__epochs=1, run__name="twice").end().code == 0
    first = tmp_path / "runs/twice"
    before = {p: p.read_bytes() for p in first.rglob("*") if p.is_file()}

    ended = train(1, run__epochs=1, run__name="twice").end()

    assert (ended.code, ended.err) == (0, "")
    assert before == {p: p.read_bytes() for p in first.rglob("*") if p.is_file()}
    assert values(tmp_path / "runs/twice-2") == values(first)
    assert sorted(p.name for p in (tmp_path / "runs").iterdir()) == ["twice", "twice-2"]


def test_a_dry_run_makes_one_step_and_leaves_nothing(train, tmp_path):
    ended = train(2, "--run.dry_run").end()

    assert (ended.code, ended.err) == (0, "")
    assert "step 1/1 loss" in ended.out
    assert not (tmp_path / "runs").exists()


def test_batch_statistics_over_all_ranks_give_what_one_rank_does(train, tmp_path):
    shared = {
        "model.name": "resnet20",
        "model.args": "{depth = 8, channels = 1, classes = 4}",
        "device.precision": "float64",
        "run.epochs": 1,
        "parallel.sync_bn": "true",
    }

    for ranks in (1, 3):
        ended = train(ranks, **shared, run__name=f"on{ranks}").end()
        assert (ended.code, ended.err) == (0, "")

    found = [values(tmp_path / "runs" / f"on{ranks}") for ranks in (1, 3)]
    for each in found:
        # The test uses the running statistics.
        assert each["test_loss"] == pytest.approx(found[0]["test_loss"], 1e-9)
        assert each["train_loss"] == pytest.approx(found[0]["train_loss"], 1e-9)
