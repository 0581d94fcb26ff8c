"""A trainer with all its parts, for tests, and data in memory."""

from types import SimpleNamespace

import numpy as np
from replicas import SCHEDULE, mlp

from hpctrain import ops
from hpctrain.autograd import Spec, assign, is_training
from hpctrain.engine import create
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
OPTIONS = Options(clip_norm=1.0)


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

    def restore(self, lazily=False):
        return checkpoint.restore(self.checkpoints, lazily=lazily)

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

    def __init__(
        self, group, engine, path, profile=None, recorder=None, mean=True, options=OPTIONS,
        records=None, **settings,
    ):  # fmt: skip
        control = group.dup() if group.size > 1 else group
        world = SimpleNamespace(
            rank=group.rank, size=group.size, control=control, host="here", hosts=("here",),
            recount=lambda: False,
        )  # fmt: skip
        model = with_mean(mlp(0.3)) if mean else mlp(0.3)
        records = records or InMemory()
        self.loader = Loader(
            records, Plan(RECORDS, BATCH, seed=2), group.rank, group.size, engine, dtype="f8",
            unit=options.shard or 1, hold=max(2, options.accumulate - 1),
        )  # fmt: skip
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
            options,
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


def everything(state):
    return {name: array.copy() for name, array in state.arrays().items()}


class Poisoned(InMemory):
    """Records of which one is not a number."""

    def __init__(self, *places):
        super().__init__()
        for place in places:
            self.arrays["x"][place, 1] = np.nan


def undisturbed(group, **arguments):
    with create("serial") as engine:
        run = Run(group, engine, None, **arguments)
        outcome = run.fit()
    return everything(run.state), outcome


def assert_equal(found, expected):
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)
