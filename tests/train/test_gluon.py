"""Gluon's Trainer: sums over devices and ranks, divided by what step is told."""

from pathlib import Path

import numpy as np
import pytest
from mpi4py import MPI

from hpctrain import autograd, gluon, nn
from hpctrain.autograd import Tensor
from hpctrain.comm.group import Group
from hpctrain.errors import CheckpointError, ConfigError, ShapeError
from hpctrain.optim import Factor
from hpctrain.parallel import kvstore

ORACLE = Path(__file__).parent.parent / "symbol" / "oracle"
SIZE, RANK = MPI.COMM_WORLD.size, MPI.COMM_WORLD.rank
DEVICES = [nn.cpu(0), nn.cpu(1)]


@pytest.fixture
def group():
    with Group(MPI.COMM_WORLD.Dup(), debug=True) as made:
        yield made


def weight(ctx=DEVICES, shape=(3,)):
    made = nn.Parameter("weight", shape=shape)
    made.initialize("ones", ctx)
    return made


def backward(parameter, factor):
    """Give the gradient ``(device + factor) * 2 * weight`` on each device."""
    with autograd.record():
        losses = [
            (i + factor) * parameter.data(ctx) * parameter.data(ctx)
            for i, ctx in enumerate(parameter.list_ctx())
        ]
    autograd.backward(losses)


@pytest.mark.serial
@pytest.mark.parametrize("on_store", [None, False, True])
def test_steps_give_what_mxnet_gives(on_store):
    with np.load(ORACLE / "nets.npz", allow_pickle=False) as file:
        wanted = file["trainer"]
    parameter = weight()
    options = {"learning_rate": 0.5, "momentum": 0.5, "wd": 0.1}
    trainer = gluon.Trainer([parameter], "sgd", options, update_on_kvstore=on_store)
    for step in range(3):
        backward(parameter, 1 + step)
        trainer.step(4)

    for copy in parameter.list_data():
        np.testing.assert_allclose(copy.asnumpy(), wanted, rtol=1e-6)


def test_gradients_are_summed_over_ranks_not_averaged(group):
    """T5: a step names the samples of all ranks that it divides by."""
    parameter = weight(nn.cpu())
    store = kvstore.create("dist_sync", group)
    trainer = gluon.Trainer([parameter], "sgd", {"learning_rate": 1.0}, store)
    backward(parameter, RANK + 1)
    trainer.step(10)

    n = SIZE * (SIZE + 1) / 2
    np.testing.assert_allclose(parameter.data().asnumpy(), 1 - 2 * n / 10, rtol=1e-6)


def test_ranks_begin_with_rank_0s_parameters(group):
    parameter = weight(DEVICES)
    parameter.set_data(np.full(3, RANK + 5.0))
    trainer = gluon.Trainer(
        [parameter], "sgd", {"learning_rate": 0.0}, kvstore.create("horovod", group)
    )
    backward(parameter, 1)
    trainer.step(1)

    assert all((copy.asnumpy() == 5).all() for copy in parameter.list_data())


@pytest.mark.serial
def test_sum_and_update_can_be_called_apart():
    parameter, twin = weight(), weight()
    trainers = [gluon.Trainer([p], "sgd", {"learning_rate": 0.1}) for p in (parameter, twin)]
    backward(parameter, 1)
    backward(twin, 1)
    trainers[0].allreduce_grads()
    grads = [g.asnumpy().tolist() for g in parameter.list_grad()]
    trainers[0].update(2)
    trainers[1].step(2)

    assert grads == [[6.0] * 3] * 2
    np.testing.assert_array_equal(parameter.data().asnumpy(), twin.data().asnumpy())
    on_store = gluon.Trainer([weight()], "sgd", update_on_kvstore=True)
    for call in (on_store.allreduce_grads, lambda: on_store.update(1)):
        with pytest.raises(ConfigError, match="update_on_kvstore=False"):
            call()


@pytest.mark.serial
@pytest.mark.parametrize("on_store", [False, True])
def test_a_new_learning_rate_acts_at_once(on_store):
    parameter = weight()
    trainer = gluon.Trainer(
        [parameter], "sgd", {"learning_rate": 0.1}, update_on_kvstore=on_store
    )
    backward(parameter, 1)
    trainer.step(1)
    before = parameter.data().asnumpy().copy()
    trainer.set_learning_rate(0.0)
    backward(parameter, 1)
    trainer.step(1)

    assert trainer.learning_rate == 0
    np.testing.assert_array_equal(parameter.data().asnumpy(), before)


@pytest.mark.serial
def test_a_schedule_counts_steps():
    parameter = weight()
    schedule = Factor(base_lr=1.0, every=2, factor=0.5)
    trainer = gluon.Trainer([parameter, weight()], "sgd", {"lr_scheduler": schedule})
    rates = []
    for _ in range(4):
        rates.append(trainer.learning_rate)
        backward(parameter, 0)
        trainer.step(1)

    assert rates == [1, 1, 0.5, 0.5]
    with pytest.raises(ConfigError, match="schedule"):
        trainer.set_learning_rate(1.0)


@pytest.mark.serial
def test_factors_of_parameters_and_fixed_ones_are_respected():
    kept, slow, plain = weight(), weight(), weight()
    kept.grad_req = "null"
    slow.lr_mult = 0.5
    trainer = gluon.Trainer([kept, slow, plain], "sgd", {"learning_rate": 0.1})
    for each in (slow, plain):
        backward(each, 1)
    trainer.step(1)

    assert (kept.data().asnumpy() == 1).all()
    np.testing.assert_allclose(
        1 - plain.data().asnumpy(), 2 * (1 - slow.data().asnumpy()), rtol=1e-6
    )


def test_states_are_saved_and_go_on(group, shared_path):
    def made():
        parameter = weight()
        store = kvstore.create("dist_sync", group)
        return parameter, gluon.Trainer({"w": parameter}, "adam", kvstore=store)

    def run(parameter, trainer, steps):
        for step in steps:
            backward(parameter, step + RANK)
            trainer.step(8)

    whole, first, second = made(), made(), made()
    run(*whole, range(4))
    run(*first, range(2))
    first[1].save_states(shared_path / "t.states")
    second[0].set_data(first[0].data())
    second[1].load_states(shared_path / "t.states")
    run(*second, range(2, 4))

    np.testing.assert_array_equal(second[0].data().asnumpy(), whole[0].data().asnumpy())


@pytest.mark.serial
def test_states_of_another_model_are_refused(tmp_path):
    parameter = weight()
    trainer = gluon.Trainer({"w": parameter}, "adam")
    backward(parameter, 1)
    trainer.step(1)
    trainer.save_states(tmp_path / "t.states")
    other = weight(shape=(4,))
    stranger = gluon.Trainer({"w": other}, "adam")
    backward(other, 1)
    stranger.step(1)

    with pytest.raises(CheckpointError, match="fits no weight"):
        stranger.load_states(tmp_path / "t.states")


@pytest.mark.serial
def test_a_network_learns_over_two_devices():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((64, 5)).astype(np.float32)
    y = (x.sum(1) > 0).astype(np.float32)
    net = gluon.nn.HybridSequential()
    with net.name_scope():
        for layer in (gluon.nn.Dense(16, activation="tanh"), gluon.nn.Dense(2)):
            net.add(layer)
    net.initialize(ctx=DEVICES)
    net.hybridize()
    loss = gluon.loss.SoftmaxCrossEntropyLoss()
    trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.02})
    for _ in range(40):
        pairs = zip(*(gluon.utils.split_and_load(a, DEVICES) for a in (x, y)), strict=True)
        with autograd.record():
            losses = [loss(net(data), label) for data, label in pairs]
        autograd.backward(losses)
        trainer.step(64)

    assert (net(Tensor(x)).asnumpy().argmax(1) == y).mean() > 0.95


@pytest.mark.serial
def test_batches_are_cut_evenly_or_as_asked():
    x = np.arange(10).reshape(5, 2)

    parts = gluon.split_and_load(x, DEVICES, even_split=False)
    assert [p.shape[0] for p in parts] == [3, 2]
    assert [p.device for p in parts] == DEVICES
    assert [p.shape for p in gluon.split_data(x, 2, batch_axis=1)] == [(5, 1), (5, 1)]
    with pytest.raises(ShapeError, match="even_split=False"):
        gluon.split_data(x, 2)
    with pytest.raises(ShapeError, match="needed more"):
        gluon.split_data(x, 6, even_split=False)
