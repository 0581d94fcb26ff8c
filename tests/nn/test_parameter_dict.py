"""Parameters by name."""

import pytest

from hpctrain.errors import ConfigError, ShapeError
from hpctrain.nn import Parameter, ParameterDict

pytestmark = pytest.mark.serial


def test_get_makes_a_parameter_once():
    parameters = ParameterDict("dense0_")

    weight = parameters.get("weight", shape=(2, 0))

    assert weight.name == "dense0_weight"
    assert parameters.get("weight", shape=(2, 5)) is weight
    with pytest.raises(ShapeError, match=r"got shape \(3, 5\)"):
        parameters.get("weight", shape=(3, 5))


def test_get_looks_in_the_shared_parameters_first():
    shared = ParameterDict()
    weight = shared.get("weight", shape=(2,))

    mine = ParameterDict("other_", shared)

    assert mine.get("weight", shape=(2,)) is weight
    assert mine.get("bias", shape=(2,)) is not weight
    assert list(shared) == ["weight"]


def test_names_are_selected_from_their_start_and_stay_in_order():
    parameters = ParameterDict()
    for name in ("b.weight", "b.bias", "a.weight"):
        parameters.add(name, Parameter(name, (1,)))

    assert list(parameters.select(".*weight")) == ["b.weight", "a.weight"]
    assert list(parameters.select("weight")) == []
    with pytest.raises(ConfigError, match="needed a regular expression"):
        parameters.select("*")


def test_a_name_is_taken_once():
    parameters = ParameterDict()
    parameters.add("w", Parameter("w"))

    with pytest.raises(ConfigError, match="got 'w' twice"):
        parameters.add("w", Parameter("w"))


def test_all_parameters_are_changed_together():
    parameters = ParameterDict()
    for name in "ab":
        parameters.get(name, shape=(1,), init="ones")
    parameters.initialize()

    parameters.setattr("lr_mult", 0.5)
    for parameter in parameters.values():
        parameter.grad()[:] = 1
    parameters.zero_grad()

    assert [p.lr_mult for p in parameters.values()] == [0.5, 0.5]
    assert [p.grad().asscalar() if p.grad().size == 1 else 1 for p in parameters.values()] == [
        0,
        0,
    ]
