"""Groups of a symbol on several ranks: the bits of a module on one rank."""

import numpy as np
import pytest
from mpi4py import MPI

from hpctrain import nn
from hpctrain import symbol as sym
from hpctrain.autograd import Tensor
from hpctrain.comm.group import Group
from hpctrain.errors import ConfigError
from hpctrain.io import DataBatch, DataDesc, NDArrayIter
from hpctrain.parallel import kvstore
from hpctrain.train.bucketing import BucketingModule
from hpctrain.train.module import Module

SIZE, RANK = MPI.COMM_WORLD.size, MPI.COMM_WORLD.rank


@pytest.fixture
def group():
    with Group(MPI.COMM_WORLD.Dup(), debug=True) as made:
        yield made


def scope(name):
    return sym.AttrScope(ctx_group=name)


def straight():
    """Three groups in a row, with batch normalisation and dropout."""
    with scope("a"):
        x = sym.FullyConnected(sym.var("data"), num_hidden=6, name="fc1")
        x = sym.BatchNorm(x, name="bn", fix_gamma=False)
    x = sym.Activation(x, act_type="tanh", name="act")
    with scope("b"):
        x = sym.Dropout(sym.FullyConnected(x, num_hidden=5, name="fc2"), p=0.3, name="drop")
    with scope("c"):
        x = sym.FullyConnected(x, num_hidden=4, name="fc3")
    return sym.SoftmaxOutput(x, name="softmax")


def back_and_forth():
    """A group used twice, a skip connection over it, and a weight that two groups read."""
    weight = sym.var("tied_weight")
    with scope("a"):
        first = sym.FullyConnected(sym.var("data"), num_hidden=6, name="fc1")
        x = sym.FullyConnected(first, weight, num_hidden=6, no_bias=True, name="in")
    with scope("b"):
        x = sym.Activation(x, act_type="tanh", name="act")
        y = sym.FullyConnected(x, weight, num_hidden=6, no_bias=True, name="out")
    with scope("a"):
        x = sym.FullyConnected(y + first, num_hidden=6, name="fc2") * x
    with scope("c"):
        x = sym.FullyConnected(sym.reshape(x + first, shape=(-1, 6)), num_hidden=4, name="fc3")
    with scope("b"):
        return sym.SoftmaxOutput(x, name="softmax")


NETS = {"straight": straight, "back and forth": back_and_forth}
CASES = [("straight", (2, 1, 0)), ("back and forth", (0, 1, 2)), ("back and forth", (1, 1, 3))]


def places(order):
    return {name: rank % SIZE for name, rank in zip("abc", order, strict=True)}


def data(n=22, seed=7):
    rng = np.random.RandomState(seed)
    return rng.standard_normal((n, 12)).astype("f4"), rng.randint(0, 4, n).astype("f4")


def source(n=22, batch=8):
    return NDArrayIter(*data(n), batch)


def fitted(symbol, epochs=2, optimizer="sgd", **options):
    module = Module(symbol, **options)
    given = {"learning_rate": 0.1, "wd": 0.01}
    module.fit(source(), num_epoch=epochs, optimizer=optimizer, optimizer_params=given,
               initializer="xavier", eval_metric=["acc", "ce"])  # fmt: skip
    return module


def values(module):
    args, aux = module.get_params()
    return {name: value.asnumpy() for name, value in {**args, **aux}.items()}


def assert_equal(found, wanted):
    assert list(found) == list(wanted)
    for name, value in wanted.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


@pytest.mark.parametrize(("net", "order"), CASES)
def test_fit_over_ranks_gives_the_bits_of_one_rank(group, net, order):
    symbol = NETS[net]()
    alone = fitted(symbol, optimizer="adam")

    spread = fitted(symbol, optimizer="adam", group2ctx=places(order), group=group)

    assert_equal(values(spread), values(alone))
    assert spread.score(source(13), ["acc", "ce"]) == alone.score(source(13), ["acc", "ce"])
    np.testing.assert_array_equal(
        spread.predict(source(13)).asnumpy(), alone.predict(source(13)).asnumpy()
    )


def scattered(seed):
    """A network in which every node is in a group of its own choice."""
    rng = np.random.default_rng(seed)

    def anywhere():
        return scope(str(rng.choice(["a", "b", "c"])))

    found = [sym.var("data")]
    for number in range(6):
        with anywhere():
            x = sym.FullyConnected(found[-1], num_hidden=6, name=f"fc{number}")
        with anywhere():
            x = sym.Activation(x, act_type="tanh", name=f"act{number}")
        with anywhere():
            found.append(sym.BatchNorm(x, name=f"bn{number}"))
    with anywhere():
        x = found[1]
        for other in found[2:]:
            with anywhere():
                x = x + other
        x = sym.FullyConnected(x, num_hidden=4, name="last")
    with anywhere():
        return sym.SoftmaxOutput(x, name="softmax")


@pytest.mark.parametrize("seed", range(2))
def test_any_scattering_of_nodes_over_ranks_gives_the_same_bits(group, seed):
    symbol = scattered(seed)

    spread = fitted(symbol, 1, group2ctx=places((0, 1, 2)), group=group)

    assert_equal(values(spread), values(fitted(symbol, 1)))


def test_a_rank_has_the_parameters_of_its_groups_alone(group):
    module = fitted(straight(), 1, "adam", group2ctx=places((0, 1, 2)), group=group)

    mine = {name for name, place in {"fc1": 0, "bn": 0, "fc2": 1, "fc3": 2}.items()
            if place % SIZE == RANK}  # fmt: skip
    bound = module._bound
    names = [name for name in module.param_names if name.partition("_")[0] in mine]
    assert bound.here(module.param_names) == names
    assert [name for name in module.param_names if bound.grads(name)] == names
    assert {key.partition("/")[0] for key in module.updater.state()} == set(names)


def lstm(length):
    """Two layers of cells, step by step, each layer in a group, as in MXNet's example."""
    steps, hidden = [], 5
    with scope("embed"):
        words = sym.Embedding(sym.var("data"), input_dim=9, output_dim=4, name="embed")
        words = sym.SliceChannel(words, num_outputs=length, axis=1, squeeze_axis=True)
    states = [None, None]
    names = ("i2h_weight", "i2h_bias", "h2h_weight", "h2h_bias")
    weights = []
    for layer in range(2):
        with scope(f"layer{layer}"):
            weights.append([sym.var(f"l{layer}_{name}") for name in names])
    for step in range(length):
        x = words[step]
        for layer in range(2):
            with scope(f"layer{layer}"):
                x, states[layer] = cell(x, states[layer], weights[layer], hidden)
        steps.append(x)
    with scope("decode"):
        x = sym.Concat(*[sym.expand_dims(x, axis=1) for x in steps], dim=1)
        x = sym.FullyConnected(sym.reshape(x, shape=(-1, hidden)), num_hidden=9, name="decode")
        label = sym.reshape(sym.var("softmax_label"), shape=(-1,))
        return sym.SoftmaxOutput(x, label, name="softmax")


def cell(x, state, weights, hidden):
    gates = sym.FullyConnected(x, weights[0], weights[1], num_hidden=4 * hidden)
    if state is not None:
        gates = gates + sym.FullyConnected(
            state[0], weights[2], weights[3], num_hidden=4 * hidden
        )
    parts = sym.SliceChannel(gates, num_outputs=4, axis=1)
    into, forget, out = (sym.Activation(parts[i], act_type="sigmoid") for i in range(3))
    kept = into * sym.Activation(parts[3], act_type="tanh")
    if state is not None:
        kept = kept + forget * state[1]
    h = out * sym.Activation(kept, act_type="tanh")
    return h, (h, kept)


class Sentences:
    """Batches of two lengths."""

    batch_size = 6

    def __init__(self):
        self.provide_data = [("data", (6, 4))]
        self.provide_label = [("softmax_label", (6, 4))]

    def reset(self):
        """Begin anew."""

    def __iter__(self):
        rng = np.random.RandomState(3)
        for length in (4, 2, 4):
            rows = rng.randint(0, 9, (6, length)).astype("f4")
            shape = [[DataDesc(name, rows.shape)] for name in ("data", "softmax_label")]
            yield DataBatch([Tensor(rows)], [Tensor((rows + 1) % 9)], bucket_key=length,
                            provide_data=shape[0], provide_label=shape[1])  # fmt: skip


def test_an_lstm_with_its_layers_on_several_ranks_trains_as_on_one(group):
    def trained(**options):
        with sym.NameManager():
            module = BucketingModule(
                lambda length: (lstm(length), ("data",), ("softmax_label",)), 4, **options
            )
            module.fit(
                Sentences(), num_epoch=2, eval_metric="ce", initializer="xavier",
                optimizer_params={"learning_rate": 0.3, "momentum": 0.9},
            )  # fmt: skip
        return module

    where = {"embed": 0, "layer0": 0, "layer1": 1 % SIZE, "decode": 2 % SIZE}
    spread = trained(group2ctx=where, group=group)

    assert_equal(values(spread), values(trained()))


@pytest.mark.mpi(min_size=2)
def test_copies_divide_a_batch_as_devices_do(group):
    symbol = plain()
    copies = {"a": [0, 1], "c": [0, 1]} if SIZE < 4 else {"a": [0, 1], "c": [3, 2]}
    whole = fitted(symbol, context=[nn.cpu(0), nn.cpu(1)])

    module = fitted(symbol, group2ctx=copies, group=group)

    found = values(module)
    for name, value in values(whole).items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)
    score = dict(whole.score(source(13), ["acc", "ce"]))
    assert dict(module.score(source(13), ["acc", "ce"])) == score
    assert dict(module.score(source(1, 1), "acc")) == dict(whole.score(source(1, 1), "acc"))


def plain():
    with scope("a"):
        x = sym.FullyConnected(sym.var("data"), num_hidden=6, name="fc1")
        x = sym.Dropout(sym.BatchNorm(x, name="bn"), p=0.3, name="drop")
    with scope("c"):
        x = sym.FullyConnected(x, num_hidden=4, name="fc2")
        return sym.SoftmaxOutput(x, name="softmax")


@pytest.mark.parametrize("states", [False, True])
def test_checkpoints_go_on_wherever_the_groups_are(group, shared_path, states):
    options = {"group2ctx": places((0, 1, 2)), "group": group}
    whole = fitted(back_and_forth(), 2, "adam", **options)
    fitted(back_and_forth(), 1, "adam", **options).save_checkpoint(shared_path / "m", 1, states)

    other = {"group2ctx": places((2, 0, 1)), "group": group}
    for given in (other, {}):
        loaded = Module.load(shared_path / "m", 1, load_optimizer_states=states, **given)
        loaded.fit(source(), begin_epoch=1, num_epoch=2, optimizer="adam",
                   optimizer_params={"learning_rate": 0.1, "wd": 0.01})  # fmt: skip
        found = values(loaded)
        assert all((found[n] == a).all() for n, a in values(whole).items()) == states


def test_modules_chain_by_input_gradients_over_ranks(group):
    with scope("a"):
        x = sym.FullyConnected(sym.var("data"), num_hidden=3, no_bias=True, name="fc1")
    with scope("b"):
        x = sym.FullyConnected(x, num_hidden=2, no_bias=True, name="fc2")
    given = np.random.default_rng(2).standard_normal((5, 2)).astype("f4")
    features = np.random.default_rng(1).standard_normal((5, 4)).astype("f4")

    def chained(**options):
        module = Module(x, label_names=None, **options)
        module.bind([("data", (5, 4))], inputs_need_grad=True, grad_req="add")
        module.init_params("xavier")
        module.forward(DataBatch([Tensor(features)]))
        for _ in range(2):
            module.backward([Tensor(given)])
        return [*module.get_outputs(), *module.get_input_grads()]

    spread = chained(group2ctx={"a": SIZE - 1, "b": 0}, group=group)

    for found, wanted in zip(spread, chained(), strict=True):
        np.testing.assert_array_equal(found.asnumpy(), wanted.asnumpy())


def test_one_rank_may_ask_for_the_parameters_of_all(group):
    module, seen = Module(straight(), group2ctx=places((0, 1, 2)), group=group), []
    module.fit(
        source(), num_epoch=1,
        epoch_end_callback=(lambda *told: seen.append(told)) if RANK == 0 else None,
    )  # fmt: skip

    found = values(module)
    assert len(seen) == (RANK == 0)
    for _, _, args, aux in seen:
        assert_equal({n: v.asnumpy() for n, v in {**args, **aux}.items()}, found)


def test_what_cannot_be_placed_is_refused_in_one_sentence(group):
    def refused(where, match, symbol=None, **options):
        with pytest.raises(ConfigError, match=match):
            Module(symbol or straight(), group2ctx=where, group=group, **options).bind(
                source().provide_data
            )

    refused({"d": 0}, r"got the group 'd', needed one of the symbol's: a, b, c")
    refused({"a": SIZE}, rf"got rank {SIZE} for 'a', needed 0 to {SIZE - 1}")
    refused({"a": -1}, "got rank -1")
    refused({"a": True}, "got True for 'a', needed the number of a rank")
    refused({"a": nn.gpu(0), "b": nn.gpu(1)}, "start one rank for each device")
    refused({"a": []}, "needed the number of a rank")
    refused({"a": [0, 0]}, "needed each rank in one copy")
    refused({"a": 0}, "got 2 devices", context=[nn.cpu(0), nn.cpu(1)])
    if SIZE > 1:
        refused({"a": [0, 1], "b": 0}, "got 1 ranks for 'b' and 2 for 'a'")
        refused({"a": [0, 1], "b": [1, 0]}, "needed each rank in one copy")
        refused({"a": 0, "b": RANK % 2}, "agree: group2ctx is")
        net = straight() if RANK else back_and_forth()
        refused({"a": 0}, "agree: symbol is", net)
        shared = two_users_of_state()
        refused({"a": 0, "b": 1}, "got the state 'mean' of", shared)


def two_users_of_state():
    mean, x = sym.var("mean"), sym.var("data")
    for name in "ab":
        with scope(name):
            x = sym.BatchNorm(x, moving_mean=mean, name=f"bn_{name}")
    return x


def test_a_store_over_ranks_is_refused(group):
    module = Module(straight(), group2ctx={"a": 0}, group=group)
    module.bind(source().provide_data)
    module.init_params()

    with pytest.raises(ConfigError, match="got the store 'dist_sync' with group2ctx"):
        module.init_optimizer(kvstore.create("dist_sync", group))


def test_devices_of_the_host_are_one(group):
    where = {"a": nn.cpu(0), "b": nn.cpu(1)}

    found = values(fitted(straight(), 1, group2ctx=where))

    assert_equal(found, values(fitted(straight(), 1)))
