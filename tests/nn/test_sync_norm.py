"""Layers whose statistics may be over several processes: here over one, or over twins."""

import numpy as np
import pytest

from hpctrain import nn, ops
from hpctrain.autograd import Tensor, record

pytestmark = pytest.mark.serial


class Counting:
    """A combiner of one process that counts its calls."""

    def __init__(self):
        self.calls = 0

    def __call__(self, array, merge):
        self.calls += 1
        return array


def net(norm=nn.BatchNorm, **attrs):
    made = nn.HybridSequential()
    with made.name_scope():
        made.add(nn.Dense(6, flatten=False, in_units=3))
        made.add(norm(axis=-1, in_channels=6, **attrs), nn.Activation("relu"))
    made.initialize(seed=3)
    made.cast("float64")
    return made


def trained(model, seed=1):
    """Return the output of a training pass, all gradients, and the running statistics."""
    x = Tensor(np.random.default_rng(seed).standard_normal((7, 3)))
    with record():
        y = model(x)
        loss = ops.sum(ops.square(y))
    loss.backward()
    parameters = model.collect_params().values()
    grads = [p.grad().asnumpy() for p in parameters if p.grad_req != "null"]
    state = [p.data().asnumpy() for p in parameters if p.grad_req == "null"]
    return [y.asnumpy(), *grads, *state]


def assert_close(found, wanted):
    assert len(found) == len(wanted)
    for have, want in zip(found, wanted, strict=True):
        np.testing.assert_allclose(have, want, 1e-11, 1e-13)


@pytest.mark.parametrize("hybrid", [False, True], ids=["eager", "captured"])
def test_the_layer_of_one_process_is_batch_normalisation(hybrid):
    model = net(nn.SyncBatchNorm, num_devices=1, momentum=0.8)
    if hybrid:
        model.hybridize()

    assert_close(trained(model), trained(net(momentum=0.8)))


def test_the_layer_has_the_parameters_of_batch_normalisation():
    names = [list(net(norm).collect_params()) for norm in (nn.BatchNorm, nn.SyncBatchNorm)]

    assert names[0] == names[1]


def test_all_layers_of_a_model_are_converted_once_wherever_they_are():
    shared, model = net(), nn.HybridSequential()
    model.add(shared, nn.Dense(3, flatten=False, in_units=6), shared)
    combine = Counting()

    assert nn.convert_sync_batch_norm(model, combine) == 1
    assert nn.convert_sync_batch_norm(nn.Dense(2), combine) == 0
    model.initialize()
    with record():
        model(Tensor(np.ones((2, 3), np.float32)))
    assert combine.calls == 2


def test_a_captured_model_is_captured_anew_when_it_is_converted():
    model, combine = net(), Counting()
    model.hybridize()
    trained(model)

    nn.convert_sync_batch_norm(model, combine)
    trained(model)
    calls = combine.calls
    nn.convert_sync_batch_norm(model, None)
    trained(model)

    assert (calls, combine.calls) == (2, 2)  # forward and backward


def test_in_inference_nobody_is_asked():
    model, combine = net(), Counting()
    nn.convert_sync_batch_norm(model, combine)

    model(Tensor(np.ones((2, 3))))

    assert combine.calls == 0


@pytest.mark.parametrize("hybrid", [False, True], ids=["eager", "captured"])
def test_recomputation_asks_nobody_again(hybrid):
    plain, model, combine = net(), net(), Counting()
    nn.convert_sync_batch_norm(model, combine)
    nn.recompute(model)
    if hybrid:
        model.hybridize()

    assert_close(trained(model), trained(plain))
    assert combine.calls == 2
