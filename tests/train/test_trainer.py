"""The loop: broken off anywhere it goes on as if nothing had happened."""

from types import SimpleNamespace

import numpy as np
import pytest
from mpi4py import MPI
from replicas import SCHEDULE, mlp

from hpctrain import ops
from hpctrain.autograd import Spec, assign, is_training
from hpctrain.comm.group import Group
from hpctrain.engine import create
from hpctrain.errors import NumericError
from hpctrain.io import Loader
from hpctrain.io.sampler import Plan
from hpctrain.nn import Parameter
from hpctrain.optim import Adam
from hpctrain.parallel.data_parallel import DataParallel
from hpctrain.parallel.evaluate import Evaluator
from hpctrain.parallel.state import ModelState
from hpctrain.parallel.work import Options
from hpctrain.trace import Recorder
from hpctrain.train import checkpoint
from hpctrain.train.profile import Profile
from hpctrain.train.report import Report
from hpctrain.train.saver import Saver
from hpctrain.train.trainer import Settings, Trainer

BATCH, RECORDS, EPOCHS = 5, 17, 3  # 4 steps an epoch; the last batch has 2 records
OPTIMIZER = Adam(weight_decay=0.01)


class InMemory:
    """Records that a loader can read."""

    n = RECORDS
    inputs, targets = [SimpleNamespace(name="x")], [SimpleNamespace(name="y")]

    def __init__(self, n=RECORDS):
        rng = np.random.default_rng(5)
        self.n = n
        self.arrays = {"x": rng.normal(size=(n, 6)), "y": rng.integers(0, 5, n)}

    def buffers(self, capacity, dtype):
        return {
            name: np.empty((capacity, *a.shape[1:]), a.dtype) for name, a in self.arrays.items()
        }

    def read(self, ids, arrays):
        for name, array in self.arrays.items():
            arrays[name][...] = array[ids]


class Folder:
    """What a saver needs of a run directory."""

    def __init__(self, path):
        self.checkpoints = path

    def restore(self):
        return checkpoint.restore(self.checkpoints)

    def rewind(self, step):
        """Nothing is recorded here."""


class Never:
    def requested(self):
        return False


class After:
    """Asks to stop from the n-th look on."""

    def __init__(self, looks):
        self.looks = looks

    def requested(self):
        self.looks -= 1
        return self.looks <= 0


class Quiet:
    """A console that keeps what it is told."""

    def __init__(self):
        self.lines, self.bars = [], []

    def line(self, text):
        self.lines.append(text)

    def progress(self, progress):
        self.bars.append(progress)


class Run:
    """A trainer with all its parts on the ranks of a group."""

    def __init__(self, group, engine, path, profile=None, recorder=None, mean=True, **settings):
        control = group.dup() if group.size > 1 else group
        world = SimpleNamespace(
            rank=group.rank, size=group.size, control=control, host="here", hosts=("here",)
        )
        model = with_mean(mlp(0.3)) if mean else mlp(0.3)
        records = InMemory()
        self.loader = Loader(
            records, Plan(RECORDS, BATCH, seed=2), group.rank, group.size, engine, dtype="f8"
        )
        test = Loader(
            InMemory(9), Plan(9, 4, shuffle=False), group.rank, group.size, engine, dtype="f8"
        )
        self.state = ModelState(model.parameters, OPTIMIZER, 256)
        step = DataParallel(
            model.objective,
            self.state,
            OPTIMIZER,
            SCHEDULE,
            engine,
            group,
            Options(clip_norm=1.0),
        )
        whole = records.buffers(1 + (BATCH - 1) // group.size, "f8")
        step.prepare(*([Spec.of(whole[name])] for name in "xy"))
        folder = Folder(path) if group.rank == 0 and path else None
        self.console = Quiet()
        self.trace = path / "trace.json" if profile else None
        self.trainer = Trainer(
            step,
            Evaluator(model.objective, self.state),
            self.loader,
            test,
            world,
            Saver(step, world, folder),
            Report(world, self.console, EPOCHS * 4),
            Profile(profile, recorder or Recorder(enabled=False), engine, world, self.trace),
            Settings(**{"epochs": EPOCHS, "log_every": 2, **settings}),
        )

    def fit(self, stop=None):
        return self.trainer.fit(stop or Never())


def with_mean(model):
    """Add a running mean, which differs between ranks, to a model."""
    mean = Parameter("mean", (6,), np.float64, differentiable=False)
    mean.set_data(np.zeros(6))
    model.parameters["mean"] = mean
    plain = model.net

    def net(x):
        running = mean.data()
        y = plain(x - running * 0.1)
        if is_training():
            assign(running, running * 0.9 + ops.mean(x, axis=0) * 0.1)
        return y

    model.net = net
    return model


@pytest.fixture
def world():
    """All ranks."""
    with Group(MPI.COMM_WORLD.Dup()) as group:
        yield group


def everything(state):
    return {name: array.copy() for name, array in state.arrays().items()}


def undisturbed(group):
    with create("serial") as engine:
        run = Run(group, engine, None)
        outcome = run.fit()
    return everything(run.state), outcome


def assert_equal(found, expected):
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)


@pytest.mark.parametrize("looks", [1, 2, 4, 5, 7])
def test_a_run_that_was_stopped_goes_on_bit_for_bit(world, shared_path, looks):
    expected, outcome = undisturbed(world)
    with create("threaded") as engine:
        stopped = Run(world, engine, shared_path).fit(After(looks))
    with create("threaded") as engine:
        run = Run(world, engine, shared_path)
        ended = run.fit()

    assert (stopped.finished, ended.finished) == (False, True)
    assert_equal(everything(run.state), expected)
    assert ended.values == outcome.values


@pytest.mark.parametrize("steps", [1, 3, 4, 6])
def test_a_run_that_ended_by_max_steps_goes_on_with_the_next_batch(world, shared_path, steps):
    expected, _ = undisturbed(world)
    with create("threaded") as engine:
        assert Run(world, engine, shared_path, max_steps=steps).fit().finished
    with create("threaded") as engine:
        run = Run(world, engine, shared_path)
        run.fit()

    assert_equal(everything(run.state), expected)


def test_a_run_goes_on_with_fewer_ranks(world, shared_path):
    """Without layer state: statistics of parts of a batch are not those of the whole."""
    alone = world.split(world.rank)
    with create("threaded") as engine:
        Run(world, engine, shared_path, mean=False).fit(After(6))
    if world.rank == 0:
        with create("threaded") as engine:
            run, reference = (
                Run(alone, engine, path, mean=False) for path in (shared_path, None)
            )
            ended, expected = run.fit(), reference.fit()
        found = everything(run.state)
        for name, array in everything(reference.state).items():
            if array.dtype.kind == "f":
                np.testing.assert_allclose(found[name], array, rtol=1e-9, atol=1e-12)
        assert ended.values == pytest.approx(expected.values, rel=1e-9)
    alone.free()


def test_a_finished_run_says_what_it_came_to_and_trains_no_more(world, shared_path):
    with create("threaded") as engine:
        first = Run(world, engine, shared_path).fit()
    with create("threaded") as engine:
        run = Run(world, engine, shared_path)
        again = run.fit()

    assert again.finished
    assert run.trainer.at.step == EPOCHS * 4
    if world.rank == 0:
        assert again.values == first.values


def test_sums_count_every_record_once(world):
    with create("threaded") as engine:
        run = Run(world, engine, None, epochs=1)
        outcome = run.fit()
        sums = run.trainer.evaluate(run.trainer.test)

    assert sums.count == 9
    assert outcome.values["test_loss"] == pytest.approx(sums.loss_sum / 9)
    assert outcome.values["train_accuracy"] * RECORDS == pytest.approx(
        round(outcome.values["train_accuracy"] * RECORDS)
    )


def test_rank_0_reports_at_its_steps(world):
    with create("threaded") as engine:
        run = Run(world, engine, None, log_every=3)
        run.fit()

    expected = [3, 6, 9, 12] if world.rank == 0 else []
    assert [bar.step for bar in run.console.bars] == expected
    assert len(run.console.lines) == (EPOCHS if world.rank == 0 else 0)


def test_a_loss_that_is_not_finite_ends_the_run_on_all_ranks(world):
    with create("serial") as engine:
        run = Run(world, engine, None)
        run.state.flat.weights[-8:] = np.inf
        with (
            np.errstate(all="ignore"),
            pytest.raises(NumericError, match=r"needed (a )?finite"),
        ):
            run.fit()


@pytest.mark.parametrize("steps", [(2, 3), (11, 99)])
def test_a_timeline_is_written_even_if_the_run_ends_within_it(world, shared_path, steps):
    recorder = Recorder(enabled=False)
    with create("threaded", recorder=recorder) as engine:
        run = Run(world, engine, shared_path, profile=steps, recorder=recorder)
        run.fit()
    world.barrier()

    assert run.trace.exists()
    assert not recorder.enabled
