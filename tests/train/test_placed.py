"""Groups of a symbol on several ranks: the bits of a module on one rank."""

import numpy as np
import pytest
from mpi4py import MPI

from hpctrain import symbol as sym
from hpctrain.autograd import Tensor
from hpctrain.comm.group import Group
from hpctrain.errors import ConfigError
from hpctrain.io import NDArrayIter
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
    """A group that is used twice, a skip connection over it, and a weight that two groups read."""
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
ORDERS = [(0, 1, 2), (2, 1, 0), (1, 1, 3)]


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


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("net", NETS)
def test_fit_over_ranks_gives_the_bits_of_one_rank(group, net, order):
    symbol = NETS[net]()
    alone = fitted(symbol, optimizer="adam")

    spread = fitted(symbol, optimizer="adam", group2ctx=places(order), group=group)

    assert_equal(values(spread), values(alone))
    assert spread.score(source(13), ["acc", "ce"]) == alone.score(source(13), ["acc", "ce"])
    np.testing.assert_array_equal(
        spread.predict(source(13)).asnumpy(), alone.predict(source(13)).asnumpy()
    )
