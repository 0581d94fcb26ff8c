"""Arrays in MXNet's words."""

import numpy as np
import pytest

from hpctrain import autograd
from hpctrain.errors import CheckpointError, ConfigError
from hpctrain.symbol import nd

pytestmark = pytest.mark.serial


def test_arrays_are_float32_unless_told():
    assert nd.array([1, 2]).dtype == np.float32
    assert nd.array(np.array([1, 2])).dtype == np.int64
    assert nd.zeros((2, 3)).shape == (2, 3)
    assert nd.ones(2, dtype="int32").asnumpy().tolist() == [1, 1]


def test_an_array_is_a_copy():
    source = np.zeros(2, np.float32)
    x = nd.array(source)
    x[:] = 5

    assert source.tolist() == [0, 0]


def test_operators_run_at_once_and_are_recorded():
    x = nd.array([[1.0, -2.0]])
    w = nd.array([[3.0, 4.0]])
    w.attach_grad()
    with autograd.record():
        y = nd.Activation(nd.FullyConnected(x, w, num_hidden=1, no_bias=True), act_type="relu")
        loss = nd.sum(nd.square(y - 1))
    loss.backward()

    assert y.asscalar() == 0
    assert w.grad.asnumpy().tolist() == [[0, 0]]
    assert nd.concat(x, w, dim=0).shape == (2, 2)
    assert nd.broadcast_add(x, w).asnumpy().tolist() == [[4, 2]]


def test_wrong_calls_are_named():
    with pytest.raises(ConfigError, match="got 1 tensors, needed data, weight, bias"):
        nd.FullyConnected(nd.ones((1, 2)), num_hidden=1)
    with pytest.raises(AttributeError, match="Warp"):
        nd.Warp  # noqa: B018


def test_arrays_by_name_survive_a_file(tmp_path):
    data = {"arg:a": nd.array([1.5]), "file": nd.array(np.arange(3))}
    nd.save(tmp_path / "x.params", data)

    found = nd.load(tmp_path / "x.params")

    assert {k: v.asnumpy().tolist() for k, v in found.items()} == {
        "arg:a": [1.5], "file": [0, 1, 2],
    }  # fmt: skip


def test_a_damaged_file_is_named(tmp_path):
    nd.save(tmp_path / "x.params", {"a": nd.ones(100)})
    data = bytearray((tmp_path / "x.params").read_bytes())
    (tmp_path / "x.params").write_bytes(data[:100])

    with pytest.raises(CheckpointError, match=r"x\.params"):
        nd.load(tmp_path / "x.params")
