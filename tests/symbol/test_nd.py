"""Arrays in MXNet's words."""

import numpy as np
import pytest

from hpctrain import autograd
from hpctrain.errors import CheckpointError, ConfigError, DataError
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


@pytest.mark.parametrize("name", ["x.params", "x.npz"])
def test_arrays_by_name_survive_a_file(name, tmp_path):
    data = {"arg:a": nd.array([1.5]), "file": nd.array(np.arange(3))}
    nd.save(tmp_path / name, data)

    found = nd.load(tmp_path / name)

    assert {k: v.asnumpy().tolist() for k, v in found.items()} == {
        "arg:a": [1.5], "file": [0, 1, 2],
    }  # fmt: skip


def test_arrays_without_names_come_back_as_a_list(tmp_path):
    nd.save(tmp_path / "x", [nd.ones(2), nd.zeros(1)])
    nd.save(tmp_path / "y", nd.ones(1))

    assert [x.asnumpy().tolist() for x in nd.load(tmp_path / "x")] == [[1, 1], [0]]
    assert len(nd.load(tmp_path / "y")) == 1
    with pytest.raises(ConfigError, match="without names"):
        nd.save(tmp_path / "x.npz", [nd.ones(2)])


@pytest.mark.parametrize(("name", "error"), [("x.npz", CheckpointError), ("x", DataError)])
def test_a_damaged_file_is_named(name, error, tmp_path):
    nd.save(tmp_path / name, {"a": nd.ones(100)})
    data = bytearray((tmp_path / name).read_bytes())
    (tmp_path / name).write_bytes(data[:100])

    with pytest.raises(error, match=name):
        nd.load(tmp_path / name)
