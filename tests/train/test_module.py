"""Module: MXNet's training loop over devices and ranks, checkpoints, exact metrics."""

import logging
import sys
from pathlib import Path

import numpy as np
import pytest
from mpi4py import MPI

from hpctrain import nn
from hpctrain import symbol as sym
from hpctrain.autograd import Tensor
from hpctrain.comm.group import Group
from hpctrain.errors import CheckpointError, ConfigError, DataError
from hpctrain.io import DataBatch, NDArrayIter
from hpctrain.optim import SGD
from hpctrain.parallel import kvstore
from hpctrain.train.callback import Speedometer
from hpctrain.train.metrics import Accuracy
from hpctrain.train.module import Module

NETS = Path(__file__).parent.parent / "symbol"
SIZE, RANK = MPI.COMM_WORLD.size, MPI.COMM_WORLD.rank


@pytest.fixture
def nets(monkeypatch):
    monkeypatch.syspath_prepend(str(NETS))
    yield __import__("mxnet_nets")
    sys.modules.pop("mxnet_nets", None)


@pytest.fixture
def store():
    with Group(MPI.COMM_WORLD.Dup(), debug=True) as group:
        yield kvstore.create("dist_sync", group)


def net():
    data = sym.var("data")
    data = sym.FullyConnected(data, num_hidden=6, name="fc1")
    data = sym.BatchNorm(data, name="bn", fix_gamma=False)
    data = sym.Activation(data, act_type="tanh", name="act")
    data = sym.FullyConnected(data, num_hidden=4, name="fc2")
    return sym.SoftmaxOutput(data, name="softmax")


def plain_net():
    """Without statistics over the batch, so that it may be divided."""
    data = sym.FullyConnected(sym.var("data"), num_hidden=6, name="fc1")
    data = sym.Dropout(sym.Activation(data, act_type="tanh", name="act"), p=0.3, name="drop")
    return sym.SoftmaxOutput(sym.FullyConnected(data, num_hidden=4, name="fc2"), name="softmax")


def data(n=22, seed=7):
    rng = np.random.RandomState(seed)
    return rng.standard_normal((n, 12)).astype("f4"), rng.randint(0, 4, n).astype("f4")


def fitted(symbol, source, store="local", devices=1, epochs=2, **options):
    module = Module(symbol, context=[nn.cpu(i) for i in range(devices)])
    given = {"learning_rate": 0.1, "momentum": 0.9, "wd": 0.01}
    module.fit(source, num_epoch=epochs, kvstore=store, optimizer_params=given,
               initializer="xavier", **options)  # fmt: skip
    return module


def values(module):
    args, aux = module.get_params()
    return {name: value.asnumpy() for name, value in {**args, **aux}.items()}


@pytest.mark.serial
def test_fit_over_two_devices_gives_what_mxnet_gives(nets):
    with np.load(NETS / "oracle" / "nets.npz", allow_pickle=False) as file:
        wanted = {k[4:]: file[k] for k in file.files if k.startswith("fit/")}
    symbol = nets.mlp(sym)
    arguments = nets.net_arrays("mlp", symbol)[1]
    module = Module(symbol, context=[nn.cpu(0), nn.cpu(1)])

    module.fit(
        NDArrayIter(*data(), 8), num_epoch=2,
        optimizer_params={"learning_rate": 0.1, "momentum": 0.9, "wd": 0.01},
        arg_params={k: Tensor(v) for k, v in arguments.items() if k.startswith("fc")},
    )  # fmt: skip

    found = values(module)
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, 1e-4, 1e-5, err_msg=name)


@pytest.mark.serial
@pytest.mark.parametrize("devices", [2, 3])
def test_a_batch_divided_over_devices_trains_as_it_would_whole(devices):
    whole = values(fitted(plain_net(), NDArrayIter(*data(), 8)))
    divided = values(fitted(plain_net(), NDArrayIter(*data(), 8), devices=devices))

    for name, value in whole.items():
        np.testing.assert_allclose(divided[name], value, 1e-4, 1e-6, err_msg=name)


class Part(NDArrayIter):
    """This rank's rows of each batch of an iterator, as many as there are."""

    def next(self):
        batch = super().next()
        mine = slice(RANK * self.batch_size // SIZE, (RANK + 1) * self.batch_size // SIZE)
        rows = [Tensor(t.array[: batch.count][mine]) for t in (*batch.data, *batch.label)]
        return DataBatch(rows[:1], rows[1:])

    @property
    def provide_data(self):
        return [
            d._replace(shape=(self.batch_size // SIZE, *d.shape[1:]))
            for d in super().provide_data
        ]

    @property
    def provide_label(self):
        return [d._replace(shape=(self.batch_size // SIZE,)) for d in super().provide_label]


class Short(NDArrayIter):
    """All rows of each batch, the last one short."""

    def next(self):
        batch = super().next()
        rows = [Tensor(t.array[: batch.count]) for t in (*batch.data, *batch.label)]
        return DataBatch(rows[:1], rows[1:])


def test_ranks_train_as_one_rank_would(store):
    """The last batch is short, and some ranks have no row of it."""
    alone = values(fitted(plain_net(), Short(*data(38), 12)))

    together = values(fitted(plain_net(), Part(*data(38), 12), store))

    for name, value in alone.items():
        np.testing.assert_allclose(together[name], value, 1e-4, 1e-6, err_msg=name)


def test_ranks_agree_on_every_bit_and_on_the_score(store):
    """T9: a score is that of all records, the same on all ranks."""
    module = fitted(net(), Part(*data(38), 12), store)

    score = module.score(Part(*data(31, 3), 12), ["acc", "ce"])

    mine = {"score": score, **{k: v.tolist() for k, v in values(module).items()}}
    rows = store.group.allgather_obj(mine)
    assert all(row == rows[0] for row in rows)
    if SIZE == 1:
        outputs = module.predict(NDArrayIter(data(31, 3)[0], batch_size=8)).asnumpy()
        assert dict(score)["accuracy"] == np.mean(outputs.argmax(1) == data(31, 3)[1])


@pytest.mark.serial
@pytest.mark.parametrize("n", [1, 5, 8, 9, 23])
@pytest.mark.parametrize("batch", [1, 4, 8])
def test_padding_never_counts(n, batch):
    """T9: what fills a batch up is no sample for any metric."""
    if batch > n:
        pytest.skip("an iterator has at least one batch of rows")
    features, labels = data(n)
    module = Module(net(), context=[nn.cpu(0), nn.cpu(1)])
    source = NDArrayIter(features, labels, batch)
    module.bind(source.provide_data, source.provide_label, for_training=False)
    module.init_params("xavier")

    outputs = module.predict(source)
    score = dict(module.score(source, ["acc", "ce"]))

    whole = module.symbol.bind(
        nn.cpu(), {**module.get_params()[0], "data": Tensor(features),
                   "softmax_label": Tensor(labels)},
        grad_req="null", aux_states=module.get_params()[1],
    ).forward()[0].asnumpy()  # fmt: skip
    np.testing.assert_allclose(outputs.asnumpy(), whole, rtol=1e-5)
    assert score["accuracy"] == np.mean(whole.argmax(1) == labels)
    chosen = whole[np.arange(n), labels.astype(int)]
    assert score["cross-entropy"] == pytest.approx(-np.log(chosen + 1e-12).mean(), rel=1e-5)


@pytest.mark.serial
def test_predictions_may_stay_apart():
    features, labels = data(10)
    source = NDArrayIter(features, labels, 4)
    module = fitted(net(), source, epochs=1)

    assert [len(out[0]) for out in module.predict(source, merge_batches=False)] == [4, 4, 2]
    assert module.predict(source, num_batch=2).shape == (8, 4)
    assert module.predict(source, always_output_list=True)[0].shape == (10, 4)


@pytest.mark.serial
def test_what_is_logged_counts_the_whole_epoch(caplog):
    caplog.set_level(logging.INFO)
    seen = []

    def callback(param):
        seen.append((param.epoch, param.nbatch, dict(param.eval_metric.values())))

    metric = Accuracy()
    fitted(
        net(), NDArrayIter(*data(20), 4), epochs=1, eval_data=NDArrayIter(*data(6, 2), 4),
        eval_metric=metric, batch_end_callback=[callback, Speedometer(4, 1)],
    )  # fmt: skip

    lines = [r.getMessage() for r in caplog.records]
    assert [(e, n) for e, n, _ in seen] == [(0, i) for i in range(5)]
    hits = sum(
        round(s["accuracy"] * (8 if i == 1 else 4)) for i, (_, _, s) in enumerate(seen[1:], 1)
    )
    train = next(line for line in lines if "Train-accuracy" in line)
    assert train.startswith("Epoch[0] Train-accuracy=0.")
    assert abs(float(train.partition("=")[2]) * 20 - hits) < 1e-4
    assert any(line.startswith("Epoch[0] Time cost=") for line in lines)
    assert any(line.startswith("Epoch[0] Validation-accuracy=") for line in lines)
    assert sum("\tSpeed: " in line for line in lines) == 4


@pytest.mark.serial
def test_callbacks_come_in_mxnets_order():
    events = []
    fitted(
        net(), NDArrayIter(*data(8), 4), epochs=2, eval_data=NDArrayIter(*data(4), 4),
        batch_end_callback=lambda p: events.append(f"batch {p.epoch} {p.nbatch}"),
        epoch_end_callback=lambda e, s, a, x: events.append(f"epoch {e} {len(a)} {len(x)}"),
        eval_batch_end_callback=lambda p: events.append("eval batch"),
        eval_end_callback=lambda p: events.append(f"eval {p.epoch}"),
    )  # fmt: skip

    assert events == [
        "batch 0 0", "batch 0 1", "epoch 0 6 2", "eval batch", "eval 0",
        "batch 1 0", "batch 1 1", "epoch 1 6 2", "eval batch", "eval 1",
    ]  # fmt: skip


@pytest.mark.parametrize("states", [False, True])
def test_a_checkpoint_goes_on_as_if_nothing_had_happened(store, shared_path, states):
    def source():
        return Part(*data(36), 12)

    whole = fitted(net(), source(), store, epochs=4)
    again = kvstore.create("dist_sync", store.group)
    first = fitted(net(), source(), again, epochs=2)
    first.save_checkpoint(shared_path / "m", 2, save_optimizer_states=states)

    loaded = Module.load(shared_path / "m", 2, load_optimizer_states=states)
    fitted_on(loaded, source(), kvstore.create("dist_sync", store.group))

    equal = all((values(loaded)[k] == v).all() for k, v in values(whole).items())
    assert equal == states


def fitted_on(module, source, store):
    given = {"learning_rate": 0.1, "momentum": 0.9, "wd": 0.01}
    module.fit(source, begin_epoch=2, num_epoch=4, kvstore=store, optimizer_params=given)


@pytest.mark.serial
def test_a_checkpoint_of_another_kind_is_refused(tmp_path):
    module = fitted(net(), NDArrayIter(*data(8), 4), epochs=1)
    module.save_checkpoint(tmp_path / "m", 1)
    (tmp_path / "m-0002.params").write_bytes(b"\x12\x01\0\0")

    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "m-0001.params", "m-0002.params", "m-symbol.json",
    ]  # fmt: skip
    with pytest.raises(DataError, match=r"m-0002\.params"):
        Module.load(tmp_path / "m", 2)
    with pytest.raises(CheckpointError, match=r"m-0003\.params: cannot be read"):
        Module.load(tmp_path / "m", 3)


@pytest.mark.serial
def test_first_values_follow_names():
    module = Module(net())
    module.bind([("data", (4, 12))], [("softmax_label", (4,))])
    module.init_params(nn.initializer.Constant(0.5))
    found = values(module)

    assert (found["fc1_bias"] == 0).all() and (found["bn_beta"] == 0).all()
    assert (found["fc1_weight"] == 0.5).all() and (found["bn_moving_var"] == 1).all()


@pytest.mark.serial
def test_a_file_may_say_how_its_variables_begin():
    own = sym.var("own_weight", init='["normal", {"sigma": 0.0, "unheard": 3}]')
    symbol = sym.FullyConnected(sym.var("data"), own, num_hidden=3, name="fc")
    module = Module(symbol, label_names=None)
    module.bind([("data", (4, 12))])
    module.init_params("ones")

    assert (values(module)["own_weight"] == 0).all()
    bad = Module(
        sym.FullyConnected(sym.var("data"), sym.var("w", init="[3"), num_hidden=3),
        label_names=None,
    )
    bad.bind([("data", (4, 12))])
    with pytest.raises(ConfigError, match="initializer"):
        bad.init_params("ones")


@pytest.mark.serial
def test_fixed_parameters_and_factors_are_respected():
    w = sym.var("w", lr_mult=0.0)
    symbol = sym.FullyConnected(sym.var("data"), w, num_hidden=6, name="fc1")
    symbol = sym.SoftmaxOutput(
        sym.FullyConnected(symbol, num_hidden=4, name="fc2"), name="softmax"
    )
    module = Module(symbol, fixed_param_names=["fc2_weight"])
    source = NDArrayIter(*data(8), 4)
    module.bind(source.provide_data, source.provide_label)
    module.init_params("xavier")
    before = values(module)
    module.fit(source, num_epoch=1, optimizer_params={"learning_rate": 0.5})
    after = values(module)

    changed = {name for name, value in after.items() if (value != before[name]).any()}
    assert changed == {"fc1_bias", "fc2_bias"}


def test_gradients_are_scaled_by_the_rows_of_all_ranks(store):
    """T5: whatever the store is called, the mean is over the rows of all ranks."""
    module = Module(net())
    module.bind([("data", (8, 12))], [("softmax_label", (8,))])
    module.init_params()
    module.init_optimizer(store)

    assert module.updater.optimizer.rescale_grad == 1 / (8 * SIZE)


@pytest.mark.serial
def test_the_learning_rate_can_change_between_steps():
    module = Module(net())
    module.bind([("data", (8, 12))], [("softmax_label", (8,))])
    module.init_params()
    module.init_optimizer(optimizer=SGD(lr=0.5))
    batch = next(NDArrayIter(*data(8), 8))
    module.forward_backward(batch)
    before = values(module)
    module.updater.lr = 0.0
    module.update()

    assert all((value == before[name]).all() for name, value in values(module).items())


@pytest.mark.serial
def test_modules_chain_by_the_gradients_of_their_inputs():
    symbol = sym.FullyConnected(sym.var("data"), num_hidden=3, no_bias=True, name="fc")
    module = Module(symbol, label_names=None, context=[nn.cpu(0), nn.cpu(1)])
    module.bind([("data", (4, 2))], inputs_need_grad=True)
    module.init_params("xavier")
    features = np.random.default_rng(1).standard_normal((5, 2)).astype("f4")
    given = np.random.default_rng(2).standard_normal((5, 3)).astype("f4")
    module.forward(DataBatch([Tensor(features)]))
    module.backward([Tensor(given)])

    weight = values(module)["fc_weight"]
    np.testing.assert_allclose(
        module.get_input_grads()[0].asnumpy(), given @ weight, 1e-5, 1e-6
    )
    np.testing.assert_allclose(
        module.get_outputs()[0].asnumpy(), features @ weight.T, 1e-5, 1e-6
    )


@pytest.mark.serial
def test_parameters_can_be_replaced_while_training():
    source = NDArrayIter(*data(8), 4)
    module = fitted(net(), source, epochs=1)
    args = module.get_params()[0]
    module.set_params({"fc2_bias": args["fc2_bias"] + 1}, {}, allow_missing=True)
    moved = values(module)
    module.updater.lr = 0.0
    module.forward_backward(next(NDArrayIter(*data(8), 4)))
    module.update()

    np.testing.assert_array_equal(moved["fc2_bias"], args["fc2_bias"].asnumpy() + 1)
    np.testing.assert_array_equal(values(module)["fc2_bias"], moved["fc2_bias"])
    np.testing.assert_array_equal(moved["fc1_weight"], args["fc1_weight"].asnumpy())


@pytest.mark.serial
def test_binding_anew_keeps_the_parameters():
    module = fitted(net(), NDArrayIter(*data(8), 4), epochs=1)
    before = values(module)
    module.bind([("data", (2, 12))], [("softmax_label", (2,))], force_rebind=True)

    assert all((value == before[name]).all() for name, value in values(module).items())


@pytest.mark.serial
def test_wrong_calls_are_named():
    with pytest.raises(ConfigError, match="'pixels'"):
        Module(net(), data_names=["pixels"])
    module = Module(net())
    with pytest.raises(ConfigError, match="call bind first"):
        module.init_params()
    module.bind([("data", (4, 12))])
    with pytest.raises(ConfigError, match="'fc1_weight'"):
        module.init_params(arg_params={"fc1_bias": Tensor(np.zeros(6, np.float32))})
    with pytest.raises(ConfigError, match="'extra'"):
        module.set_params({"extra": Tensor(np.zeros(1, np.float32))}, {}, allow_missing=True)
    with pytest.raises(ConfigError, match="init_optimizer first"):
        module.update()
