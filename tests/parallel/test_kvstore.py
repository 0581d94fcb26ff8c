"""Stores: sums over devices and ranks, updates, keys that are compared by name."""

import numpy as np
import pytest
from mpi4py import MPI

from hpctrain import nn
from hpctrain.autograd import Tensor
from hpctrain.comm.group import Group
from hpctrain.errors import CheckpointError, ConfigError
from hpctrain.optim import SGD, MultiFactor
from hpctrain.parallel import kvstore
from hpctrain.parallel.updater import Updater

SIZE, RANK = MPI.COMM_WORLD.size, MPI.COMM_WORLD.rank
N = SIZE * (SIZE + 1) // 2  # the sum of rank + 1


@pytest.fixture
def group():
    with Group(MPI.COMM_WORLD.Dup(), debug=True) as made:
        yield made


@pytest.fixture(params=["dist_sync", "dist_device_sync", "allreduce", "horovod"])
def dist(request, group):
    return kvstore.create(request.param, group)


def full(value, shape=(3, 2), ctx=None):
    return Tensor(np.full(shape, value, np.float32), device=ctx or nn.cpu())


def value(store, key, shape=(3, 2)):
    out = full(-1, shape)
    store.pull(key, out)
    return out.asnumpy()


def test_a_pushed_value_is_the_sum_over_ranks_and_devices(dist):
    dist.init("w", full(0))

    dist.push("w", [full(RANK + 1, ctx=nn.cpu(0)), full(10 * (RANK + 1), ctx=nn.cpu(1))])

    assert (dist.rank, dist.num_workers) == (RANK, SIZE)
    np.testing.assert_array_equal(value(dist, "w"), np.full((3, 2), 11 * N))


def test_rank_0_says_the_first_value(dist):
    dist.init(["a", "b"], [full(RANK + 5), full(-RANK - 1, (4,))])

    assert (value(dist, "a") == 5).all()
    assert (value(dist, "b", (4,)) == -1).all()


def test_two_pushes_in_a_row_are_two_rounds(dist):
    dist.init(3, full(0))
    seen = []
    dist.set_updater(lambda key, total, stored: seen.append((key, total.asnumpy()[0, 0])))

    dist.push(3, full(RANK + 1))
    dist.push(3, full(2 * (RANK + 1)))

    assert seen == [(3, N), (3, 2 * N)]


def test_without_an_optimizer_the_last_sum_stays(dist):
    dist.init("w", full(7))
    dist.push("w", full(1))
    dist.push("w", full(2))

    assert (value(dist, "w") == 2 * SIZE).all()


def test_many_keys_travel_together_and_arrive_apart(dist):
    rng = np.random.default_rng(RANK)
    shapes = [(7,), (1,), (1211, 1211), (2, 3), (5, 1)]
    keys = [f"k{i}" for i in range(len(shapes))]
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    dist.init(keys, [full(0, shape) for shape in shapes])

    dist.push(keys, [Tensor(a) for a in arrays])

    for key, shape in zip(keys, shapes, strict=True):
        i = keys.index(key)
        drawn = [np.random.default_rng(r) for r in range(SIZE)]
        every = [[g.standard_normal(s).astype(np.float32) for s in shapes] for g in drawn]
        np.testing.assert_allclose(
            value(dist, key, shape), np.sum([e[i] for e in every], axis=0), 1e-5, 1e-5
        )


def test_the_optimizer_sees_the_sum_and_every_rank_the_same_weight(dist, group):
    dist.init("w", full(1))
    dist.set_optimizer("sgd", learning_rate=0.5, momentum=0.5, rescale_grad=1 / SIZE)
    weight, velocity = 1.0, 0.0

    for step in range(3):
        dist.pushpull("w", full((RANK + 1) * (step + 1)), out=(out := full(0)))
        velocity = 0.5 * velocity + N * (step + 1) / SIZE
        weight -= 0.5 * velocity

    np.testing.assert_allclose(out.asnumpy(), weight, rtol=1e-6)
    rows = group.allgather_obj(out.asnumpy().tolist())
    assert all(row == rows[0] for row in rows)


def test_pushpull_without_an_optimizer_gives_the_sum_in_place(dist):
    dist.init("w", full(4))
    grads = [full(RANK + 1, ctx=nn.cpu(i)) for i in range(2)]

    dist.pushpull("w", grads)

    assert all((g.asnumpy() == 2 * N).all() for g in grads)
    assert (value(dist, "w") == 4).all()


def test_broadcast_fills_all_devices(dist):
    outs = [full(0, ctx=nn.cpu(i)) for i in range(2)]
    dist.broadcast("w", full(RANK + 3), outs)

    assert all((out.asnumpy() == 3).all() for out in outs)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize(
    ("key", "shape"),
    [(f"w{RANK}", (2,)), ("w", (2 + RANK,))],
    ids=["names", "shapes"],
)
def test_ranks_that_differ_are_told_so(dist, key, shape):
    with pytest.raises(ConfigError, match="kvstore key w"):
        dist.init(key, full(0, shape))


@pytest.mark.mpi(min_size=2)
def test_keys_in_another_order_are_refused(dist):
    keys = ["a", "b"] if RANK else ["b", "a"]

    with pytest.raises(ConfigError, match="fact 1 is"):
        dist.init(keys, [full(0), full(0)])


@pytest.mark.mpi(min_size=2)
def test_optimizers_that_differ_are_refused(dist):
    with pytest.raises(ConfigError, match="kvstore optimizer"):
        dist.set_optimizer(SGD(lr=0.1 + RANK))


def test_states_are_saved_and_go_on(dist, group, shared_path):
    def trained(store, steps):
        for step in steps:
            store.push(["a", "b"], [full((RANK + 1) * (step + 1)), full(step, (4,))])

    def fresh():
        store = kvstore.create("dist_sync", group)
        store.init(["a", "b"], [full(1), full(2, (4,))])
        store.set_optimizer("adam", learning_rate=0.1)
        return store

    whole, first, second = fresh(), fresh(), fresh()
    trained(whole, range(4))
    trained(first, range(2))
    first.save_optimizer_states(shared_path / "s.states")
    second.load_optimizer_states(shared_path / "s.states")
    for key, shape in (("a", (3, 2)), ("b", (4,))):
        second._value(key).array[...] = value(first, key, shape)
    trained(second, range(2, 4))

    np.testing.assert_array_equal(value(second, "a"), value(whole, "a"))
    np.testing.assert_array_equal(value(second, "b", (4,)), value(whole, "b", (4,)))


def test_states_of_another_optimizer_are_refused(dist, shared_path):
    dist.init("w", full(1))
    dist.set_optimizer("adam")
    dist.push("w", full(1))
    dist.save_optimizer_states(shared_path / "s.states")
    dist.set_optimizer("sgd", momentum=0.9)

    with pytest.raises(CheckpointError, match="needed momentum"):
        dist.load_optimizer_states(shared_path / "s.states")


@pytest.mark.serial
@pytest.mark.parametrize("name", ["local", "device", "nccl"])
def test_a_local_store_sums_over_devices(name):
    store = kvstore.create(name)
    store.init("w", full(0))
    store.push("w", [full(i, ctx=nn.cpu(i)) for i in range(4)])

    assert (store.type, store.rank, store.num_workers) == (name, 0, 1)
    assert (value(store, "w") == 6).all()
    store.barrier()


@pytest.mark.serial
@pytest.mark.parametrize("name", ["dist_async", "p3", "dist"])
def test_stores_with_a_server_are_refused_in_one_sentence(name):
    with pytest.raises(ConfigError, match="without a server, needed some"):
        kvstore.create(name)


@pytest.mark.serial
def test_wrong_keys_and_values_are_named():
    store = kvstore.create("local")
    store.init("w", full(0))

    with pytest.raises(ConfigError, match="before"):
        store.init("w", full(0))
    with pytest.raises(ConfigError, match="before"):
        store.init(["x", "x"], [full(0), full(0)])
    with pytest.raises(ConfigError, match="all text or all numbers"):
        store.init(1, full(0))
    with pytest.raises(ConfigError, match="init it first"):
        store.push("v", full(0))
    with pytest.raises(ConfigError, match="needed float32"):
        store.push("w", full(0, (5,)))
    with pytest.raises(ConfigError, match="as many values"):
        store.push(["w"], full(0))
    with pytest.raises(ConfigError, match="set_optimizer"):
        store.save_optimizer_states("nowhere")


@pytest.mark.serial
def test_the_learning_rate_follows_schedule_factors_and_later_changes():
    updater = Updater("sgd", lr_scheduler=MultiFactor(base_lr=1.0, steps=(2,), factor=0.5))
    updater.lr_mult["b"] = 2.0
    a, b = full(0, (1,)), full(0, (1,))
    for _ in range(3):
        updater("a", full(1, (1,)), a)
        updater("b", full(1, (1,)), b)

    assert (a.asscalar(), b.asscalar()) == (-2.5, -5)
    updater.schedule, updater.lr = None, 10.0
    updater("a", full(1, (1,)), a)
    assert a.asscalar() == -12.5
