"""Stores with servers: MXNet's semantics, and each of its traps."""

from contextlib import contextmanager

import numpy as np
import pytest
from mpi4py import MPI

from hpctrain.autograd import Tensor
from hpctrain.comm.group import Group
from hpctrain.errors import CheckpointError, ConfigError
from hpctrain.optim import SGD, Adam, MultiFactor
from hpctrain.parallel import kvstore
from hpctrain.parallel.updater import Updater

pytestmark = pytest.mark.mpi(min_size=2)
RANK, SIZE = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size


@contextmanager
def store(name="dist_sync", servers=1):
    """A store; on servers the body does not run."""
    with Group(MPI.COMM_WORLD.Dup()) as group:
        if group.rank < servers:
            with pytest.raises(SystemExit) as left:
                kvstore.create(name, group, servers)
            assert left.value.code == 0
            yield None
        else:
            made = kvstore.create(name, group, servers)
            try:
                yield made
            finally:
                made.close()


def served(test):
    """Let workers carry out a test, with one server and with two if there are enough ranks."""

    @pytest.mark.parametrize("servers", [1, 2])
    def run(servers, tmp_path_factory, shared_path):
        if servers >= SIZE:
            pytest.skip("needs a worker")
        with store(test.store, servers) as kv:
            if kv is not None:
                test(kv, shared_path)

    run.__name__ = test.__name__
    return run


def on(name):
    def named(test):
        test.store = name
        return served(test)

    return named


def full(value, shape=(40, 3), dtype=np.float32):
    return Tensor(np.full(shape, value, dtype))


def value(kv, key, shape=(40, 3), dtype=np.float32):
    out = full(-1, shape, dtype)
    kv.pull(key, out)
    return out.asnumpy()


def total(kv):
    """The sum of rank + 1 over the workers."""
    return kv.num_workers * (kv.num_workers + 1) // 2


@on("dist_device_sync")
def test_a_pushed_value_is_the_sum_over_workers_and_devices(kv, _):
    kv.init(["w", "v"], [full(0), full(0, (5,))])
    kv.push("w", [full(kv.rank + 1), full(10 * (kv.rank + 1))])

    assert (value(kv, "w") == 11 * total(kv)).all()
    assert (value(kv, "v", (5,)) == 0).all()


@on("dist_sync")
def test_two_pushes_in_a_row_are_two_rounds(kv, _):
    """T4: a server that counts requests takes one worker's two pushes for a round."""
    kv.init(3, full(0))
    kv.set_optimizer(SGD(lr=1.0))
    kv.push(3, full(kv.rank + 1))
    kv.push(3, full(100 * (kv.rank + 1)))

    assert (value(kv, 3) == -101 * total(kv)).all()


@on("dist")
def test_gradients_are_summed_and_never_averaged(kv, _):
    """T5: and a store called dist is synchronous for everybody."""
    kv.init("w", full(1))
    kv.set_optimizer("sgd", learning_rate=0.5)
    kv.push("w", full(1))

    assert (value(kv, "w") == 1 - 0.5 * kv.num_workers).all()


@on("dist_sync")
def test_the_value_of_the_first_worker_counts_and_keys_are_init_once(kv, _):
    kv.init(["a", "b"], [full(kv.rank + 5), full(-kv.rank - 1, (4,))])

    assert (value(kv, "a") == 5).all() and (value(kv, "b", (4,)) == -1).all()
    with pytest.raises(ConfigError, match="initialised before"):
        kv.init("a", full(0))
    with pytest.raises(ConfigError, match="init it first"):
        kv.pull("c", full(0))


@on("dist_sync")
def test_keys_in_another_order_on_some_worker_are_found_at_once(kv, _):
    """Keys are compared by name: nothing is swapped."""
    if kv.num_workers == 1:
        return
    keys = ["a", "b"] if kv.rank else ["b", "a"]
    with pytest.raises(ConfigError, match="agree"):
        kv.init(keys, [full(1), full(2)])


@on("dist_async")
def test_async_needs_an_optimizer_and_says_so_on_the_worker(kv, _):
    kv.init("w", full(0))

    with pytest.raises(ConfigError, match="call set_optimizer"):
        kv.push("w", full(1))


@on("dist_async")
def test_async_applies_each_push_and_loses_none(kv, _):
    kv.init("w", full(0))
    kv.set_optimizer(SGD(lr=1.0))
    for _ in range(5):
        kv.push("w", full(kv.rank + 1))
        mine = value(kv, "w")[0, 0]
        assert mine <= -(kv.rank + 1)  # a pull follows this worker's own push
    kv.pull("w", full(0))
    kv.barrier()

    assert (value(kv, "w") == -5 * total(kv)).all()


@on("dist_async")
def test_a_schedule_counts_the_pushes_of_one_worker(kv, _):
    """T6: with n workers it would else decay n times too early."""
    kv.init("w", full(0))
    schedule = MultiFactor(base_lr=1.0, steps=(2,), factor=0.25)
    kv.set_optimizer(Updater("sgd", lr_scheduler=schedule))
    for _ in range(4):
        kv.push("w", full(1))
    kv.pull("w", full(0))
    kv.barrier()

    assert (value(kv, "w") == -(2 + 2 * 0.25) * kv.num_workers).all()


@on("dist_sync")
def test_changes_of_rate_scale_and_optimizer_act_at_once(kv, _):
    """T10: an optimizer that is sent once would not hear of them."""
    kv.init("w", full(0))
    updater = Updater(SGD(lr=1.0))
    kv.set_optimizer(updater)
    kv.push("w", full(1))
    updater.lr = 10.0
    kv.push("w", full(1))
    updater.scale = 0.5
    kv.push("w", full(1))
    updater.optimizer = SGD(lr=10.0, rescale_grad=0.0)
    kv.push("w", full(1))

    assert (value(kv, "w") == -(1 + 10 + 5) * kv.num_workers).all()


@on("dist_sync")
def test_state_of_the_optimizer_is_saved_and_restored(kv, folder):
    """T10: for MXNet's dist stores it cannot be saved."""
    kv.init(["w", "v"], [full(1), full(2, (9,))])
    kv.set_optimizer(Adam(lr=0.1))
    kv.push(["w", "v"], [full(1), full(1, (9,))])
    kv.save_optimizer_states(folder / "served.states")
    before = value(kv, "w"), value(kv, "v", (9,))
    kv.push(["w", "v"], [full(3), full(-2, (9,))])
    expected = value(kv, "w"), value(kv, "v", (9,))

    kv.load_optimizer_states(folder / "served.states")
    kv.replace(["w", "v"], [Tensor(before[0]), Tensor(before[1])])
    kv.push(["w", "v"], [full(3), full(-2, (9,))])

    np.testing.assert_array_equal(value(kv, "w"), expected[0])
    np.testing.assert_array_equal(value(kv, "v", (9,)), expected[1])


@on("p3")
def test_pushpull_gives_sums_and_leaves_the_stored_value(kv, _):
    kv.init("w", full(9))
    out = full(0)
    kv.pushpull("w", full(kv.rank + 1), out)

    assert (out.asnumpy() == total(kv)).all()
    assert (value(kv, "w") == 9).all()


@on("dist_sync")
def test_row_numbers_above_2_to_24_are_exact(kv, _):
    """#9190: numbers in float32 cannot tell such rows apart."""
    rows = 2**24 + 200
    kv.init("table", full(0, (rows, 1), np.int8))
    ids = np.array([2**24 + 1, 2**24 + 2, 5, 2**24 + 1])
    kv.row_sparse_push("table", np.array([[1], [2], [3], [4]], np.int8), ids)

    out = full(9, (5, 1), np.int8)
    kv.row_sparse_pull("table", out, row_ids=np.array([2**24 + 2, 5, 2**24 + 1, 0, 5]))

    expected = np.array([2, 3, 5, 0, 3])[:, None] * kv.num_workers
    np.testing.assert_array_equal(out.asnumpy(), expected)
    with pytest.raises(ConfigError, match="needed integers"):
        kv.row_sparse_pull("table", out, row_ids=np.array([2.0**24 + 1]))
    with pytest.raises(ConfigError, match="got rows 0 to 16777416"):
        kv.row_sparse_pull("table", out, row_ids=np.array([0, rows]))


@on("dist_sync")
def test_rows_that_nobody_pushes_stay_with_their_state(kv, _):
    kv.init("table", full(1, (60, 4)))
    kv.set_optimizer(SGD(lr=1.0, momentum=0.5))
    mine = np.array([kv.rank, 30, 59])
    kv.row_sparse_push("table", np.ones((3, 4), np.float32), mine)
    kv.row_sparse_push("table", np.zeros((0, 4), np.float32), np.array([], np.int64))
    kv.row_sparse_push("table", np.ones((1, 4), np.float32), np.array([59]))

    twin, velocity, n = np.ones((60, 4)), np.zeros((60, 4)), kv.num_workers
    twin[30] -= n
    twin[:n] -= 1
    velocity[59] = n
    twin[59] -= n
    twin[59] -= 0.5 * n + n
    out = full(0, (60, 4))
    kv.row_sparse_pull("table", out, row_ids=np.arange(60))
    np.testing.assert_array_equal(out.asnumpy(), twin)


@on("dist_sync")
def test_compression_sends_thresholds_and_keeps_the_rest(kv, _):
    kv.init("w", full(0))
    kv.set_optimizer(SGD(lr=1.0))
    kv.set_gradient_compression({"type": "2bit", "threshold": 0.5})
    sent, owed = np.float32(0), np.float32(0)
    for gradient in (0.3, 0.3, -0.05, 0.9, -2.0):
        kv.push("w", full(gradient))
        owed += np.float32(gradient)
        now = np.float32(0.5) if owed >= 0.5 else np.float32(-0.5 if owed <= -0.5 else 0)
        sent, owed = sent + now, owed - now

    np.testing.assert_allclose(value(kv, "w"), -sent * kv.num_workers, rtol=1e-6)


@on("dist_sync")
def test_a_function_is_no_updater_and_strange_states_are_refused(kv, folder):
    kv.init("w", full(0))
    with pytest.raises(ConfigError, match="a function cannot be sent"):
        kv.set_updater(lambda key, total, stored: None)
    with pytest.raises(ConfigError, match="there is no optimizer"):
        kv.save_optimizer_states(folder / "none")
    assert kv.is_capable("optimizer")
    if kv.rank == 0:
        with pytest.raises(CheckpointError, match="fits no key"):
            kv._links.load({"other/momentum": np.zeros(3, np.float32)})


def test_more_servers_than_ranks_are_refused():
    with (
        Group(MPI.COMM_WORLD.Dup()) as group,
        pytest.raises(ConfigError, match="nobody to work"),
    ):
        kvstore.create("dist_sync", group, SIZE)
