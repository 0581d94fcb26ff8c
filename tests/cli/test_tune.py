"""Ways that are tried, the one that is kept, and where it is remembered."""

import json
from dataclasses import replace
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
from mpi4py import MPI

from hpctrain import nn
from hpctrain.backend import CPU
from hpctrain.cli import build, trials
from hpctrain.cli.exchange import Traffic
from hpctrain.cli.room import Room
from hpctrain.cli.trials import SETTINGS, Bench, MeshBench
from hpctrain.cli.tune import (
    IN_FLIGHT,
    MARGIN,
    SCHEDULES,
    SLICES,
    candidates,
    search,
    traffic_of,
    tuned,
)
from hpctrain.comm.group import Group
from hpctrain.comm.mesh import Mesh
from hpctrain.comm.timeline import Link
from hpctrain.config import Config
from hpctrain.errors import ConfigError
from hpctrain.optim import Adam
from hpctrain.parallel import ways
from hpctrain.parallel.program import Objective, count_correct
from hpctrain.parallel.work import Options, Work
from hpctrain.train import checkpoint

START = Traffic(slice_mib=4.0, in_flight=4, pause_s=2e-4)
PLACES = [["a", 0], ["a", 1]]
FACTS = {"model": "mlp", "ranks": 2, "places": PLACES, "batch": ["float32[8, 4]"]}
PATHS = ("direct", "mpi", "node")


def values(setting, best, several_hosts=True):
    found = candidates(setting, best, several_hosts)
    assert all(replace(t, **{setting: getattr(best, setting)}) == best for t in found)
    return [getattr(t, setting) for t in found]


@pytest.mark.serial
def test_everything_that_is_open_is_tried_once():
    assert values("path", START) == ["direct", "mpi"]
    assert values("overlap", START) == ["on", "off"]
    assert values("slice_mib", START) == [1.0, 0.25]
    assert values("slice_mib", replace(START, slice_mib=3.0)) == list(SLICES)
    assert sorted(values("in_flight", START)) == [2, 8]
    assert values("in_flight", replace(START, in_flight=16)) == list(IN_FLIGHT)


@pytest.mark.serial
def test_a_schedule_that_is_left_open_is_tried_against_others_that_give_the_same_numbers():
    assert values("schedule", START) == list(SCHEDULES)
    assert values("schedule", replace(START, schedule="1f1b")) == []
    cost = Cost(replace(START, schedule="gpipe"))
    cost.settings = ("schedule", "in_flight")

    found, trials = search(START, cost, True, cost.settings, alone=False)

    assert found.traffic == cost.best
    assert [t.traffic.schedule for t in trials] == ["auto", *SCHEDULES, "gpipe", "gpipe"]
    assert None not in cost.asked and found.exposed_s == found.step_s


@pytest.mark.serial
def test_a_size_that_goes_by_the_model_is_tried_against_fixed_ones():
    fitted = replace(START, fitted=True)

    found = candidates("slice_mib", fitted, False)

    assert found == [replace(fitted, slice_mib=size, fitted=False) for size in SLICES]
    assert all(traffic.fitted for traffic in candidates("path", fitted, False))


@pytest.mark.serial
@pytest.mark.parametrize("path", ["node", "mpi", "direct"])
def test_a_path_that_was_chosen_stays(path):
    assert values("path", replace(START, path=path)) == []


@pytest.mark.serial
@pytest.mark.parametrize("overlap", ["on", "off"])
def test_an_overlap_that_was_chosen_stays(overlap):
    assert values("overlap", replace(START, overlap=overlap)) == []


@pytest.mark.serial
def test_how_many_are_under_way_matters_where_there_is_a_lane_for_them_or_a_network():
    after = replace(START, overlap="off")

    assert values("in_flight", after, several_hosts=False) == []
    assert len(values("in_flight", after, several_hosts=True)) == 2
    assert len(values("in_flight", replace(START, overlap="on"), several_hosts=False)) == 2


@pytest.mark.serial
def test_what_is_compressed_is_not_tried_where_nothing_can_be():
    assert values("path", replace(START, wire="fp16")) == ["direct"]


class Cost:
    """Time of a step that knows its best, and remembers what was asked for."""

    settings = SETTINGS

    def __init__(self, best, alone=0.010):
        self.best, self.alone, self.asked = best, alone, []

    def __call__(self, traffic):
        self.asked.append(traffic)
        if traffic is None:
            return self.alone
        wrong = sum(getattr(traffic, s) != getattr(self.best, s) for s in self.settings)
        return self.alone + 0.001 * (1 + wrong)


@pytest.mark.serial
@pytest.mark.parametrize(
    "best",
    [
        START,
        replace(START, path="mpi"),
        replace(START, path="direct", overlap="on", slice_mib=0.25, in_flight=8),
        replace(START, overlap="off", slice_mib=1.0, in_flight=2),
    ],
)
def test_the_best_way_is_found_setting_by_setting(best):
    cost = Cost(best)

    found, trials = search(START, cost, several_hosts=True)

    assert found.traffic == best
    assert (found.step_s, found.exposed_s) == pytest.approx((0.011, 0.001))
    assert trials[0].traffic == START
    assert cost.asked == [None, *(trial.traffic for trial in trials)]
    assert len(trials) == 1 + 2 + 2 + 2 + 2
    assert found in trials and found.step_s == min(trial.step_s for trial in trials)


@pytest.mark.serial
def test_what_gains_less_than_noise_is_left():
    def seconds(traffic):
        return 1.0 if traffic in (None, START) else 1.0 - 0.9 * MARGIN

    found, trials = search(START, seconds, several_hosts=False)

    assert found == trials[0] and found.traffic == START


@pytest.mark.serial
def test_what_gains_is_compared_with_the_best_so_far():
    times = iter([1.0, 1.0, 0.97, 0.96, *[2.0] * 20])

    found, trials = search(START, lambda _: next(times), several_hosts=False)

    assert found == trials[1] and found.traffic.path == "direct"


@pytest.mark.serial
def test_exchange_is_never_exposed_for_less_than_no_time():
    found, trials = search(START, lambda traffic: 2.0 if traffic is None else 1.9, False)

    assert {trial.exposed_s for trial in trials} == {0.0}
    assert found.step_s == 1.9


@pytest.fixture
def bench():
    """A bench without a model, on all ranks; its ``step_s`` is a `Cost`."""
    with Group(MPI.COMM_WORLD.Dup()) as group:
        world = SimpleNamespace(rank=group.rank, size=group.size, control=group, hosts=("a",))
        yield SimpleNamespace(
            world=world, step_s=Cost(replace(START, path="mpi")), settings=SETTINGS, alone=True
        )


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """Where results are kept; only rank 0 looks there."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "hpctrain/exchange"


def test_a_second_run_is_tuned_as_the_first_was(bench, cache):
    first = tuned(bench, START, FACTS)
    tries = len(bench.step_s.asked)
    second = tuned(bench, START, FACTS)

    assert first == (replace(START, path="mpi"), "9 tried, 2.0 -> 1.0 ms exposed a step")
    assert tries == 10 and len(bench.step_s.asked) == tries
    assert second[0] == first[0]
    assert second[1].startswith("as tuned before (")
    said = bench.world.control.allgather_obj([first[1], second[1]])
    assert said == [said[0]] * bench.world.size
    files = list(cache.glob("*"))
    assert [f.suffix for f in files] == ([".json"] if bench.world.rank == 0 else [])
    if bench.world.rank == 0:
        kept = json.loads(files[0].read_text())
        assert kept["traffic"]["path"] == "mpi" and len(kept["trials"]) == 9


@pytest.mark.parametrize(
    ("start", "facts"),
    [
        (START, {**FACTS, "ranks": 4}),
        (START, {**FACTS, "places": [["a", 0], ["b", 0]]}),
        (replace(START, slice_mib=1.0), FACTS),
        (replace(START, wire="bf16"), FACTS),
    ],
)
def test_what_it_depends_on_has_an_answer_of_its_own(bench, cache, start, facts):
    tuned(bench, START, FACTS)

    assert "tried" in tuned(bench, start, facts)[1]


def test_how_often_to_look_is_as_it_was_found_for_this_run(bench, cache):
    """It is measured at each start, and may differ: that makes no other question of it."""
    tuned(bench, START, FACTS)

    traffic, how = tuned(bench, replace(START, pause_s=5e-5), FACTS)

    assert how.startswith("as tuned before")
    assert traffic == replace(START, path="mpi", pause_s=5e-5)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[]",
        b"7",
        b"{}",
        b'{"traffic": {"lane": 3}}',
        b'{"traffic": 1}',
    ],
)
def test_a_file_that_cannot_be_understood_is_made_anew(bench, cache, content):
    tuned(bench, START, FACTS)
    for path in cache.glob("*.json"):
        path.write_bytes(content)

    again = tuned(bench, START, FACTS)
    after = tuned(bench, START, FACTS)

    assert again[1].startswith("9 tried")
    assert after == (again[0], after[1]) and after[1].startswith("as tuned before")


def test_a_cache_that_cannot_be_written_is_none(bench, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("no directory")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))

    for _ in range(2):
        assert tuned(bench, START, FACTS)[1].startswith("9 tried")


def test_without_a_word_where_the_cache_is_at_home(bench, tmp_path, monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))

    tuned(bench, START, FACTS)

    assert (tmp_path / ".cache/hpctrain/exchange").exists() == (bench.world.rank == 0)


SHARES = {
    "plain": Options(),
    "sharded": Options(sharded=True, clip_norm=0.5, skip=True, loss_scale=8.0),
    "summed": Options(shard=2, accumulate=2),
}


@pytest.mark.slow
@pytest.mark.parametrize("share", SHARES)
def test_trials_leave_a_model_as_it_was(monkeypatch, share):
    """With layer state and random draws, on every path, and alone."""
    monkeypatch.setattr(trials, "STEPS", 4)
    monkeypatch.setattr(ways, "measure", lambda *args: Link(1e-3, 1e8, 4))
    net = nn.HybridSequential()
    net.add(nn.Dense(8, in_units=4), nn.BatchNorm(axis=-1, in_channels=8), nn.Dropout(0.5))
    net.add(nn.Dense(3, in_units=8))
    net.initialize(seed=1)
    parameters = net.collect_params()
    before = {name: p.data().asnumpy().copy() for name, p in parameters.items()}
    rng = np.random.default_rng(3)
    goal = Objective(net, nn.SoftmaxCrossEntropyLoss(), count_correct)
    optimizer = Adam(weight_decay=0.1)
    with Group(MPI.COMM_WORLD.Dup()) as group, Group(MPI.COMM_WORLD.Dup()) as control:
        size = group.size
        part = Work(
            [rng.standard_normal((4, 4), np.float32)], [rng.integers(3, size=4)],
            4, 4 * size, 4 * group.rank,
        )  # fmt: skip
        world = SimpleNamespace(
            rank=group.rank, size=size, local_size=size, hosts=("a",),
            group=group, control=control,
        )  # fmt: skip
        bench = Bench(world, goal, parameters, optimizer, SHARES[share], 1.0, part)

        several = [replace(START, path=path, slice_mib=1e-4) for path in PATHS]
        times = [bench.step_s(traffic) for traffic in (None, *several)]

        assert all(time > 0 for time in times)
        assert len(set(control.allgather_obj(str(times)))) == 1
    assert before.keys() == parameters.keys() and "stream" in str(list(before))
    for name, array in before.items():
        np.testing.assert_array_equal(parameters[name].data().asnumpy(), array)


MESHES = {
    "stages": ({"pipeline": 2}, ("schedule",)),
    "a schedule that is set": ({"pipeline": 2, "schedule": "1f1b"}, ("schedule",)),
    "a cut by memory": ({"pipeline": 2, "balance": "memory"}, ("schedule",)),
    "a team": ({"tensor": 2}, ()),
}


@pytest.fixture
def on_mesh(data, cache, monkeypatch):
    """Tune small steps on a mesh of all ranks, and return what `traffic_of` does."""
    monkeypatch.setattr(trials, "STEPS", 2)
    monkeypatch.setattr(trials, "WARM_UP", 1)
    monkeypatch.setattr(ways, "measure", lambda *args: Link(1e-3, 1e8, 4))
    with Group(MPI.COMM_WORLD.Dup()) as group, Group(MPI.COMM_WORLD.Dup()) as control:
        world = SimpleNamespace(
            rank=group.rank, size=group.size, local_size=group.size, hosts=("a",), host="a",
            local_rank=group.rank, group=group, control=control, library="MPI",
        )  # fmt: skip

        def found(**parallel):
            config = msgspec.convert(
                {
                    "model": {"name": "mlp", "args": {"inputs": 64, "hidden": [8, 8]}},
                    "data": {"train": f"{data}/train", "test": f"{data}/test", "batch": 16},
                    "exchange": {"tune": True},
                    "parallel": parallel,
                },
                Config,
            )
            with Mesh(group, None, config.parallel.pipeline, config.parallel.tensor) as mesh:
                train = build.open_data(config, world).train
                return traffic_of(config, world, train, (CPU, 1.0), mesh)

        yield found


@pytest.mark.slow
@pytest.mark.mpi(min_size=2)
@pytest.mark.skipif(MPI.COMM_WORLD.size % 2, reason="two ranks have one model")
@pytest.mark.parametrize("name", MESHES)
def test_on_a_mesh_what_is_open_there_is_tried_alike_on_all_ranks(
    on_mesh, cache, monkeypatch, name
):
    parallel, settings = MESHES[name]
    replicas, asked = MPI.COMM_WORLD.size // 2, []
    inner = MeshBench.step_s

    def noted(bench, traffic):
        asked.append((bench.settings, traffic, inner(bench, traffic)))
        return asked[-1][-1]

    monkeypatch.setattr(MeshBench, "step_s", noted)
    traffic, how = on_mesh(**parallel)

    again = on_mesh(**parallel)
    every = MPI.COMM_WORLD.allgather((str(traffic), how, str(asked), str(again)))
    assert every == every[:1] * len(every)
    tries = {t.schedule for _, t, _ in asked}
    if replicas == 1 and (name == "a team" or "schedule" in parallel):
        assert how == again[1] and "nothing to try" in how and not asked
        return
    assert {s for s, _, _ in asked} == {(*settings, *(SETTINGS if replicas > 1 else ()))}
    assert how.startswith(f"{len(asked)} tried, ") and how.endswith(" ms a step")
    assert all(0 < taken < 60 for *_, taken in asked)
    if name in ("stages", "a cut by memory"):
        assert tries == {"auto", *SCHEDULES}
    if replicas > 1:
        assert {"mpi", "direct"} <= {t.path for _, t, _ in asked}
        assert {0.25, 4.0} <= {t.slice_mib for _, t, _ in asked}
    assert again == (traffic, again[1]) and again[1].startswith("as tuned before (")


@pytest.mark.slow
@pytest.mark.mpi(min_size=2)
@pytest.mark.skipif(MPI.COMM_WORLD.size % 2, reason="two ranks have one model")
def test_a_schedule_that_does_not_fit_into_memory_is_not_taken(on_mesh, monkeypatch):
    def full(room, step):
        if step.model.layout.schedule != "1f1b":
            raise ConfigError("memory: too little")

    monkeypatch.setattr(Room, "planned", full)

    traffic, how = on_mesh(pipeline=2)

    assert traffic.schedule == "auto" and " tried, " in how


@pytest.mark.serial
@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4])
def test_a_tuned_run_in_stages_ends_with_the_bits_of_one_that_was_not(train, tmp_path, ranks):
    settings = {
        "model.name": "probing:build", "model.args": "{dropout = 0.5, norm = true}",
        "exchange.reproducible": "run", "run.epochs": 1, "parallel.pipeline": 2,
        "parallel.balance": "params", "data.batch": 32,
    }  # fmt: skip
    env, said = {"XDG_CACHE_HOME": str(tmp_path / "cache")}, []
    for words in (["plain"], ["tuned", "--exchange.tune"]):
        ended = train(ranks, "--run.name", *words, env=env, **settings).end()
        assert (ended.code, ended.err) == (0, "")
        said += [row for row in ended.out.splitlines() if row.startswith("  tuning")]

    (plain, state), (arrays, other) = (
        checkpoint.load(next((tmp_path / "runs" / name / "checkpoints").glob("step-*4")))
        for name in ("plain", "tuned")
    )
    assert list(arrays) == list(plain) and state == other
    for name, array in plain.items():
        np.testing.assert_array_equal(arrays[name], array)
    assert len(said) == 1 and " tried, " in said[0]


@pytest.mark.serial
@pytest.mark.slow
def test_a_run_that_was_tuned_ends_with_the_bits_of_one_that_was_not(train, tmp_path):
    """On two ranks any path adds two numbers; layers with state and draws stay as they were."""
    settings = {
        "model.name": "probing:build", "model.args": "{dropout = 0.5, norm = true}",
        "run.epochs": 2, "exchange.overlap": "off",
    }  # fmt: skip
    env = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    said = []
    for words in (["plain"], ["tuned", "--exchange.tune"], ["again", "--exchange.tune"]):
        ended = train(2, "--run.name", *words, env=env, **settings).end()
        assert (ended.code, ended.err) == (0, "")
        said += [row for row in ended.out.splitlines() if row.startswith("  exchange")]

    runs = [tmp_path / "runs" / name for name in ("plain", "tuned", "again")]
    plain, *others = [checkpoint.load(run / "checkpoints/step-00000014") for run in runs]
    for arrays, state in others:
        assert list(arrays) == list(plain[0]) and state == plain[1]
        for name, array in plain[0].items():
            np.testing.assert_array_equal(arrays[name], array)
    assert ";" not in said[0]
    assert "; 6 tried, " in said[1] and "ms exposed a step" in said[1]
    assert "; as tuned before" in said[2]
    assert len(list((tmp_path / "cache/hpctrain/exchange").glob("*.json"))) == 1
