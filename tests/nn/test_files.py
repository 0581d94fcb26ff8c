"""Parameters in a file."""

import numpy as np
import pytest

from hpctrain import nn
from hpctrain.errors import CheckpointError, ShapeError

pytestmark = pytest.mark.serial


def made(seed=0, extra=False):
    net = nn.Sequential()
    net.add(nn.Dense(3, in_units=2), nn.Dropout(0.5))
    if extra:
        net.add(nn.Dense(1, in_units=3))
    return net.initialize(seed=seed)


def values(net):
    return {k: p.data().asnumpy() for k, p in net.collect_params().items()}


def test_a_saved_model_is_the_same_after_loading(tmp_path):
    net, other = made(0), made(1)
    path = tmp_path / "net.params"

    net.save_parameters(path)
    other.load_parameters(path)

    assert [p.name for p in tmp_path.iterdir()] == ["net.params"]
    for name, value in values(net).items():
        np.testing.assert_array_equal(values(other)[name], value)


def test_loading_needs_no_initialization_and_no_known_shape(tmp_path):
    net, other = made(), nn.Sequential()
    other.add(nn.Dense(3), nn.Dropout(0.5))
    net.save_parameters(tmp_path / "net.npz")

    other.load_parameters(tmp_path / "net.npz", ctx=nn.cpu(1))

    assert other[0].weight.list_ctx() == [nn.cpu(1)]
    np.testing.assert_array_equal(values(other)["0.weight"], values(net)["0.weight"])


def test_missing_and_extra_parameters_are_named(tmp_path):
    small, large = made(), made(extra=True)
    small.save_parameters(tmp_path / "small.npz")
    large.save_parameters(tmp_path / "large.npz")

    with pytest.raises(CheckpointError, match=r"lacks 2 of 5 parameters, '2\.weight' first"):
        large.load_parameters(tmp_path / "small.npz")
    with pytest.raises(CheckpointError, match=r"has 2 parameters .* '2\.weight' first"):
        small.load_parameters(tmp_path / "large.npz")
    large.load_parameters(tmp_path / "small.npz", allow_missing=True)
    small.load_parameters(tmp_path / "large.npz", ignore_extra=True)


def test_another_shape_is_refused(tmp_path):
    other = nn.Sequential()
    other.add(nn.Dense(4, in_units=2), nn.Dropout(0.5))
    made().save_parameters(tmp_path / "net.npz")

    with pytest.raises(ShapeError, match=r"got shape \(3, 2\)"):
        other.load_parameters(tmp_path / "net.npz")


def test_a_file_of_another_kind_is_refused(tmp_path):
    (tmp_path / "net.npz").write_bytes(b"not an archive")

    with pytest.raises(CheckpointError, match="is no archive of parameters"):
        made().load_parameters(tmp_path / "net.npz")
