"""Teams that share layers make the steps of one rank: D x S x T against the serial run."""

import numpy as np
import pytest
from mpi4py import MPI
from staged_runs import twin
from teams import Zoo, by_team

from hpctrain.comm.group import Group
from hpctrain.optim import SGD, Adam
from hpctrain.parallel.staged import Layout
from hpctrain.parallel.work import Options

WORLD = MPI.COMM_WORLD
SGDM = SGD(momentum=0.9, weight_decay=1e-3)


@pytest.fixture(scope="module")
def group():
    with Group(WORLD.Dup()) as found:
        yield found


def assert_same(found, expected, limit=1e-10):
    """Compare results of steps on all ranks, and on rank 0 the whole state."""
    (results, state), (one, twin_state) = found, expected
    for got, want in zip(results, one, strict=True):
        assert abs(got.loss_sum - want.loss_sum) <= limit * abs(want.loss_sum)
        assert (got.correct, got.count) == (want.correct, want.count)
    if WORLD.rank:
        return
    for name, want in twin_state.items():
        if want.dtype.kind == "f":
            scale = max(np.abs(want).max(), 1e-300)
            assert np.abs(state[name] - want).max() <= limit * scale, name


@pytest.mark.parametrize("name", ["mlp", "lenet", "gpt", "resnet20", "lstm", "cosmo"])
def test_a_team_of_all_ranks_trains_as_one_rank(group, name):
    found = by_team(Zoo(name), SGDM, Zoo(name).data(3), group, group.size)
    assert_same(found, twin(Zoo(name), SGDM, Zoo(name).data(3), 1))


OPTIONS = {
    "plain": Options(),
    "not overlapped": Options(overlap=False),
    "clipped": Options(clip_norm=0.1),
    "sharded": Options(sharded=True, clip_norm=0.1),
    "scaled": Options(loss_scale=256.0, skip=True),
    "sharded, not overlapped": Options(sharded=True, overlap=False, skip=True),
}


@pytest.mark.parametrize("which", OPTIONS)
@pytest.mark.mpi(min_size=2)
def test_replicas_of_teams_train_as_one_rank(group, which):
    tensor = 2 if group.size % 2 == 0 else group.size
    options = OPTIONS[which]
    found = by_team(Zoo("gpt"), Adam(), Zoo("gpt").data(4), group, tensor, None, options, 4096)
    plain = Options(clip_norm=options.clip_norm)
    assert_same(found, twin(Zoo("gpt"), Adam(), Zoo("gpt").data(4), 1, plain))


@pytest.mark.mpi(min_size=2)
def test_batches_are_added_up(group):
    data = Zoo("mlp").data(4)
    pairs = [data[:2], data[2:]]
    found = by_team(Zoo("mlp"), SGDM, pairs, group, group.size, None, Options(accumulate=2))
    assert_same(found, twin(Zoo("mlp"), SGDM, pairs, 1))


@pytest.mark.parametrize(
    ("schedule", "name"), [("gpipe", "mlp"), ("1f1b", "gpt"), ("zero_bubble", "resnet20")]
)
@pytest.mark.mpi(min_size=4)
def test_teams_in_stages_train_as_one_rank(group, schedule, name):
    layout = Layout(group.size // 2, schedule, 3)
    options = Options(clip_norm=0.1)
    found = by_team(Zoo(name), Adam(), Zoo(name).data(3), group, 2, layout, options)
    assert_same(found, twin(Zoo(name), Adam(), Zoo(name).data(3), 3, options))


MESHES = {"d4": (1, None), "d2 s2": (1, 2), "s4": (1, 4), "t2 d2": (2, None), "t2 s2": (2, 2)}


@pytest.mark.mpi(min_size=4)
def test_training_goes_on_on_another_mesh(group):
    """From D4 to D2xS2, S4, T2xD2 and T2xS2: the numbers of one rank, to the last."""
    if group.size != 4:
        pytest.skip("the meshes are those of 4 ranks")
    data, results, state = Zoo("gpt").data(5), [], None
    for place, (tensor, stages) in enumerate(MESHES.values()):
        layout = Layout(stages, "1f1b", 2) if stages else None
        here = data[place : place + 1]
        more, state = by_team(
            Zoo("gpt"), Adam(), here, group, tensor, layout, first=place, load=state
        )
        results += more
    assert_same((results, state), twin(Zoo("gpt"), Adam(), data, 1))
