"""Hybrid blocks: captured and eager are the same function."""

import numpy as np
import pytest

from hpctrain import nn
from hpctrain.autograd import Tensor, backward, record
from hpctrain.errors import ConfigError, ShapeError
from hpctrain.nn.hybrid import pack, unpack

pytestmark = pytest.mark.serial

X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)


def made(in_units=3):
    net = nn.HybridSequential()
    net.add(nn.Dense(5, "tanh", in_units=in_units), nn.BatchNorm(), nn.Dense(2))
    return net.initialize(seed=3)


class Scaled(nn.HybridBlock):
    """MXNet's way of writing a block."""

    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.factor = self.params.get("factor", shape=(3,), init=2.0)

    def hybrid_forward(self, F, x, *rest, factor):  # noqa: N803 (the name of MXNet)
        y = F.multiply(x, factor)
        return (y, [y, *rest]) if rest else y


def test_training_steps_are_the_same():
    eager, hybrid = made(), made()
    hybrid.hybridize(static_alloc=True, static_shape=True)

    for net in (eager, hybrid):
        for _ in range(2):
            with record():
                loss = net(Tensor(X)).sum()
            backward(loss)

    for name, parameter in eager.collect_params().items():
        twin = hybrid.collect_params()[name]
        np.testing.assert_allclose(
            twin.data().asnumpy(), parameter.data().asnumpy(), rtol=1e-5, atol=1e-6
        )
        if parameter.differentiable:
            np.testing.assert_allclose(
                twin.grad().asnumpy(), parameter.grad().asnumpy(), rtol=1e-4, atol=1e-5
            )


def test_unknown_lengths_become_known_at_capture():
    late, known = made(0), made()
    late.hybridize()

    found = late(Tensor(X))

    np.testing.assert_allclose(found.asnumpy(), known(Tensor(X)).asnumpy(), rtol=1e-6)


def test_a_graph_reads_the_parameters_as_they_are():
    net = made()
    net.hybridize()
    net(Tensor(X))

    net[2].bias.data()[:] = 100

    assert (net(Tensor(X)).asnumpy() > 50).all()


def test_each_device_has_its_own_graph_and_copy():
    net = nn.Dense(2, in_units=3)
    net.initialize(ctx=[nn.cpu(0), nn.cpu(1)])
    net.hybridize()
    net.bias.data(nn.cpu(1))[:] = 10
    first = net(Tensor(X, device=nn.cpu(0)))
    second = net(Tensor(X, device=nn.cpu(1)))

    np.testing.assert_allclose(second.asnumpy() - first.asnumpy(), 10, rtol=1e-5)
    assert second.device == nn.cpu(1)


@pytest.mark.parametrize("active", [False, True])
def test_hybrid_forward_gets_functions_and_parameters(active):
    net = Scaled().initialize()
    net.hybridize(active)

    y, [same, rest] = net(Tensor(X), Tensor(X))

    np.testing.assert_array_equal(y.asnumpy(), 2 * X)
    np.testing.assert_array_equal(same.asnumpy(), 2 * X)
    np.testing.assert_array_equal(rest.asnumpy(), X)


def test_a_hybrid_child_of_a_plain_block_is_captured_alone():
    net = nn.Sequential()
    net.add(made())
    seen = []
    net[0][0].register_forward_hook(lambda *_: seen.append(1))
    net.hybridize()

    for _ in range(3):
        net(Tensor(X))

    assert len(seen) < 3


def test_a_new_part_makes_a_new_graph():
    net = made()
    net.hybridize()
    before = net(Tensor(X)).asnumpy()

    net.add(nn.HybridLambda(lambda f, x: f.negative(x)))

    np.testing.assert_array_equal(net(Tensor(X)).asnumpy(), -before)


def test_nested_lists_are_packed_and_unpacked():
    a, b = Tensor(X), Tensor(X)
    tensors = []

    form = pack(([a, 3], None, (b,)), tensors)

    assert tensors[0] is a
    assert tensors[1] is b
    assert unpack(form, iter([1, 2])) == ([1, 3], None, (2,))
    assert form == pack(([b, 3], None, (a,)), [])
    assert form != pack(([b, 4], None, (a,)), [])


def test_misuse_is_named():
    with pytest.raises(ConfigError, match="got 'static'"):
        made().hybridize(static=True)
    net = nn.HybridLambda(lambda f, x: x)
    net.hybridize()
    with pytest.raises(ShapeError, match="got no tensor"):
        net(3)
    with pytest.raises(NotImplementedError, match="HybridBlock defines no forward"):
        nn.HybridBlock()(Tensor(X))


def test_what_was_captured_is_counted():
    net = nn.Dense(3, in_units=4).initialize()
    net.hybridize()
    for rows in (2, 5, 2, 7):
        net(Tensor(np.ones((rows, 4), np.float32)))

    found = net.statistics()

    assert (found.calls, found.captures, found.kept) == (4, 3, 3)
    net.hybridize(False)
    net(Tensor(np.ones((2, 4), np.float32)))
    assert net.statistics().calls == 0
