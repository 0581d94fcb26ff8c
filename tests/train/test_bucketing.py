"""One set of parameters for many lengths, on one rank and on several."""

import numpy as np
import pytest
from mpi4py import MPI

from hpctrain import nn
from hpctrain import symbol as sym
from hpctrain.comm.group import Group
from hpctrain.errors import ConfigError
from hpctrain.io import BucketSentenceIter
from hpctrain.parallel import kvstore
from hpctrain.train.bucketing import BucketingModule
from hpctrain.train.metric import Perplexity
from hpctrain.train.module import Module

SIZE, RANK = MPI.COMM_WORLD.size, MPI.COMM_WORLD.rank
VOCAB, WIDTH = 9, 8


@pytest.fixture
def store():
    with Group(MPI.COMM_WORLD.Dup(), debug=True) as group:
        yield kvstore.create("dist_sync", group)


def recurrent(layout="NT"):
    """Return a generator of unrolled recurrent networks; that of length 1 has no h2h."""
    axis = layout.index("T")
    parts = {n: sym.var(n) for n in ("i2h_weight", "i2h_bias", "h2h_weight", "h2h_bias")}

    def dense(x, name):
        return sym.FullyConnected(
            x, weight=parts[f"{name}_weight"], bias=parts[f"{name}_bias"], num_hidden=WIDTH
        )

    def generate(length):
        words = sym.Embedding(sym.var("data"), input_dim=VOCAB, output_dim=WIDTH, name="embed")
        split = sym.SliceChannel(words, num_outputs=length, axis=axis, squeeze_axis=True)
        steps, state = [], None
        for x in [split] if length == 1 else split:
            total = dense(x, "i2h") if state is None else dense(x, "i2h") + dense(state, "h2h")
            state = sym.Activation(total, act_type="tanh")
            steps.append(state)
        flat = sym.Reshape(sym.stack(*steps, axis=axis), shape=(-1, WIDTH))
        scores = sym.FullyConnected(flat, num_hidden=VOCAB, name="out")
        label = sym.Reshape(sym.var("softmax_label"), shape=(-1,))
        loss = sym.SoftmaxOutput(
            scores, label, use_ignore=True, ignore_label=-1, name="softmax"
        )
        return loss, ("data",), ("softmax_label",)

    return generate


def sentences(n=60, seed=0):
    """Whatever comes first, the next is one more, or two more after a multiple of 3."""
    rng, found = np.random.default_rng(seed), []
    for _ in range(n):
        row = [int(rng.integers(1, VOCAB))]
        for _ in range(rng.integers(1, 9)):
            row.append((row[-1] + 1 + (row[-1] % 3 == 0)) % VOCAB)
        found.append(row)
    return found


def source(**options):
    return BucketSentenceIter(sentences(), **{"batch_size": 5, "buckets": (3, 6, 9), **options})


def bound(generate, data, context=nn.cpu(), **options):  # noqa: B008
    module = BucketingModule(generate, data.default_bucket_key, context, seed=3, **options)
    module.bind(data.provide_data, data.provide_label)
    module.init_params("xavier")
    return module


def gradients(generate, batch, params):
    """Compute the gradients of one batch by a module of its own."""
    symbol, *names = generate(batch.bucket_key)
    module = Module(symbol, *names)
    module.bind(batch.provide_data, batch.provide_label)
    known = {name: params[name] for name in module.param_names}
    module.init_params(arg_params=known)
    module.forward_backward(batch)
    return {n: module._bound.grads(n)[0].asnumpy().copy() for n in module.param_names}


def values(module):
    return {name: t.asnumpy() for name, t in module.get_params()[0].items()}


@pytest.mark.serial
@pytest.mark.parametrize("layout", ["NT", "TN"])
@pytest.mark.parametrize("devices", [1, 2])
def test_every_bucket_moves_the_same_parameters(layout, devices):
    data = source(layout=layout)
    context = [nn.cpu(i) for i in range(devices)]
    if (layout, devices) == ("TN", 2):
        with pytest.raises(ConfigError, match="needed rows first"):
            bound(recurrent(layout), data, context)
        return
    module = bound(recurrent(layout), data, context)
    module.init_optimizer(optimizer="sgd", optimizer_params={"learning_rate": 0.3, "wd": 0.0})
    twin = values(module)

    for _, batch in zip(range(9), data, strict=False):
        found = gradients(recurrent(layout), batch, twin)
        module.forward_backward(batch)
        module.update()
        for name, gradient in found.items():
            twin[name] = twin[name] - np.float32(0.3 / 5) * gradient
        for name, value in values(module).items():
            np.testing.assert_allclose(value, twin[name], 1e-4, 1e-6, err_msg=name)

    assert len(module.bucket_keys) == 3


def test_ranks_may_take_different_buckets(store):
    """A step's gradient is the sum over the ranks, also where a bucket lacks parameters."""
    generate = recurrent()
    lengths = [(1, 3, 6)[(step + RANK) % 3] for step in range(6)]
    mine = [BucketSentenceIter(
        [s[: n] for s in sentences(4, 10 * RANK + i)], 4, [n], dtype="int64"
    ).next() for i, n in enumerate(lengths)]  # fmt: skip
    data = BucketSentenceIter(sentences(4), 4, [9], dtype="int64")
    module = bound(generate, data)
    module.init_optimizer(store, "sgd", {"learning_rate": 0.2, "momentum": 0.9, "wd": 0.0})
    twin, momenta = values(module), {}

    for batch in mine:
        found = gradients(generate, batch, twin)
        for name, value in twin.items():
            total = found.get(name, np.zeros_like(value)).astype(np.float64)
            store.group.allreduce(total)
            step = -0.2 / (4 * SIZE) * total + 0.9 * momenta.get(name, 0)
            momenta[name], twin[name] = step, (value + step).astype(np.float32)
        module.forward_backward(batch)
        module.update()

    for name, value in values(module).items():
        np.testing.assert_allclose(value, twin[name], 1e-4, 1e-5, err_msg=name)
    assert {*module.bucket_keys} >= {9, 1, 3, 6}


@pytest.mark.serial
def test_all_buckets_work_in_the_memory_of_the_largest():
    data = source()
    module = bound(recurrent(), data)
    module.init_optimizer()
    alone = bound(recurrent(), data)
    for batch in data:
        module.forward_backward(batch)
        if batch.bucket_key == 9:
            alone.forward_backward(batch)

    pools = {id(m._bound.executors[0].pool): m for m in module._modules.values()}

    assert len(pools) == 1
    assert len(module._modules) == 3
    pool, largest = (m._default._bound.executors[0].pool for m in (module, alone))
    assert pool.nbytes == largest.nbytes > 0


def test_fit_learns_on_all_ranks_and_scores_alike(store):
    parts = {"num_parts": SIZE, "part_index": RANK}
    data = source(**{**parts, "batch_size": 6})
    held = BucketSentenceIter(sentences(31, 5), 4, (4, 9), **parts)
    module = BucketingModule(recurrent(), data.default_bucket_key, seed=3)

    module.fit(
        data, held, eval_metric=Perplexity(ignore_label=-1), kvstore=store, optimizer="adam",
        optimizer_params={"learning_rate": 0.02, "rescale_grad": 1 / 30}, num_epoch=15 * SIZE,
        initializer="xavier",
    )  # fmt: skip

    ((_, value),) = module.score(held, Perplexity(ignore_label=-1))
    assert value < 1.3
    sums = {name: float(v.sum()) for name, v in values(module).items()}
    seen = store.group.allgather_obj([value, sums])
    assert all(each == seen[0] for each in seen)


@pytest.mark.serial
def test_padding_rows_count_for_nothing():
    data = BucketSentenceIter(sentences(7), 5, [9])
    module = bound(recurrent(), data)

    ((_, padded),) = module.score(data, [Perplexity(ignore_label=-1)])
    single = BucketSentenceIter(sentences(7), 1, [9])
    other = bound(recurrent(), single)
    other.set_params(*module.get_params())
    ((_, plain),) = other.score(single, [Perplexity(ignore_label=-1)])

    assert padded == pytest.approx(plain, rel=1e-5)
    assert module.predict(data).shape == (7 * 9, VOCAB)


@pytest.mark.serial
def test_what_does_not_fit_is_refused():
    data = source()
    with pytest.raises(ConfigError, match="call bind first"):
        BucketingModule(recurrent(), 9).switch_bucket(3, data.provide_data)
    with pytest.raises(ConfigError, match="needed the longest"):
        BucketingModule(recurrent())
    module = bound(recurrent(), data)
    with pytest.raises(ConfigError, match="new bucket 4 without shapes"):
        module.switch_bucket(4, None)
    other = bound(recurrent(), BucketSentenceIter([[1]] * 4, 2, [1]))
    with pytest.raises(ConfigError, match="'h2h_weight'"):
        other.forward(next(iter(source(buckets=(3,)))))


@pytest.mark.serial
def test_a_checkpoint_restores_the_parameters(tmp_path):
    data = source()
    module = bound(recurrent(), data)
    module.init_optimizer()
    for batch in data:
        module.forward_backward(batch)
        module.update()
    module.save_checkpoint(tmp_path / "net", 4)
    data.reset()

    again = BucketingModule.load(tmp_path / "net", 4, recurrent(), 9)
    again.bind(data.provide_data, data.provide_label, for_training=False)

    for name, value in values(again).items():
        np.testing.assert_array_equal(value, values(module)[name])
    scores = [dict(m.score(data, Perplexity(ignore_label=-1))) for m in (again, module)]
    assert scores[0] == pytest.approx(scores[1])
