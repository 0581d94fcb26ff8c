"""Embeddings whose gradients travel as rows: the numbers of a serial twin."""

import numpy as np
import pytest
from replicas import SCHEDULE, Model, parameters, share

from hpctrain import ops
from hpctrain.autograd import Tensor, record
from hpctrain.engine import create
from hpctrain.optim import SGD
from hpctrain.parallel.data_parallel import DataParallel
from hpctrain.parallel.state import ModelState
from hpctrain.parallel.ways import connect
from hpctrain.parallel.work import Options, Work

OPTIMIZER = SGD(momentum=0.9, weight_decay=0.01)
SIZES = (12, 5, 1, 12)


def words(height=400):
    """An embedding and a dense layer: 3 words to 5 classes."""
    model = Model(parameters({"table": (height, 4), "w": (5, 12), "b": (5,)}), None)

    def net(ids):
        t = model.tensor
        rows = ops.reshape(ops.embedding(ids, t("table")), (ids.shape[0], 12))
        return ops.dense(rows, t("w"), t("b"))

    model.net = net
    return model


def data(height=400, seed=5):
    rng = np.random.default_rng(seed)
    return [(rng.integers(0, height, (n, 3)), rng.integers(0, 5, n)) for n in SIZES]


def serial(model, batches):
    states = {
        n: OPTIMIZER.make_state(p.data().size, np.float64) for n, p in model.parameters.items()
    }
    for step, (ids, labels) in enumerate(batches):
        with record():
            losses = ops.softmax_cross_entropy(model.net(Tensor(ids)), Tensor(labels))
            mean = ops.sum(losses) * (1.0 / len(ids))
        mean.backward()
        for name, parameter in model.parameters.items():
            OPTIMIZER.update(
                parameter.data().array.reshape(-1), parameter.grad().asnumpy().reshape(-1),
                states[name], lr=SCHEDULE.lr(step), step=step,
            )  # fmt: skip


def train(world, model, batches, options, kind="direct", accumulate=False):
    state = ModelState(model.parameters, OPTIMIZER, 128)
    way = connect(kind, world, state, options)
    with create("threaded") as engine:
        step = DataParallel(
            model.objective, state, OPTIMIZER, SCHEDULE, engine, world, options, way
        )
        ids, labels = batches[0]
        step.prepare(*Work((ids[:2],), (labels[:2],), 2, 12).specs())
        for batch in batches:
            parts = halves(batch) if accumulate else [batch]
            step.result(step.step(*(share(p, world, options.shard or 1) for p in parts)))
        engine.wait_all()
    found = {n: p.data().asnumpy().copy() for n, p in model.parameters.items()}
    way.free()
    return step, found


def halves(batch):
    """Cut a batch into two that make one step together, if there is enough."""
    cut = len(batch[0]) // 2
    parts = (slice(0, cut), slice(cut, None)) if cut else (slice(None),)
    return [tuple(a[part] for a in batch) for part in parts]


@pytest.mark.parametrize(
    ("options", "accumulate"),
    [
        (Options(), False),
        (Options(overlap=False), False),
        (Options(shard=2), False),
        (Options(accumulate=2), True),
    ],
    ids=["plain", "after", "shards", "accumulated"],
)
@pytest.mark.parametrize("kind", ["direct", "mpi", "node"])
def test_rows_give_the_numbers_of_a_serial_twin(world, kind, options, accumulate):
    one, many, batches = words(), words(), data()
    serial(one, batches)

    step, found = train(world, many, batches, options, kind, accumulate)

    for name, parameter in one.parameters.items():
        np.testing.assert_allclose(
            found[name], parameter.data().asnumpy(), rtol=1e-10, atol=1e-13
        )
    bits = {name: array.tobytes().hex() for name, array in found.items()}
    assert all(other == bits for other in world.allgather_obj(bits))
    alone = [s for s in step.state.flat.slices if s.parameters == (0,)]
    assert len(alone) == 1 or world.size == 1


@pytest.mark.mpi(min_size=2)
def test_a_small_table_travels_whole(world):
    model = words(height=3)

    step, _ = train(world, model, data(height=3), Options())

    assert step._exchange._rows is None


@pytest.mark.mpi(min_size=2)
def test_fewer_bytes_are_planned_for(world):
    step, _ = train(world, words(), data(), Options())

    piece = next(s for s in step.state.flat.slices if s.parameters == (0,))
    whole = step.way.wire_bytes(piece.stop - piece.start, 8)
    assert step._exchange.nbytes(piece) < whole / 10
