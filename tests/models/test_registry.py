"""Models by name."""

import pytest

from hpctrain import models
from hpctrain.errors import ConfigError

pytestmark = pytest.mark.serial


def test_models_of_the_zoo_are_made_by_name():
    assert isinstance(models.create("mlp", hidden=(3,)), models.MLP)
    assert isinstance(models.create("resnet20"), models.ResNet)


def test_models_of_others_are_imported():
    net = models.create("hpctrain.nn:Dense", units=3)

    assert type(net).__name__ == "Dense"


@pytest.mark.parametrize(
    ("name", "args", "said"),
    [
        ("mpl", {}, "got 'mpl', needed one of mlp, lenet, resnet"),
        ("mlp", {"width": 3}, "model mlp: got an unexpected keyword argument 'width'"),
        ("hpctrain.nothing:net", {}, "no module 'hpctrain.nothing'"),
        ("hpctrain.nn:net", {}, "has no 'net'"),
        ("fractions:Fraction", {}, "got a Fraction, needed a nn.Block"),
        ("builtins:dict", {}, "model builtins:dict: no signature"),
        ("resnet", {"depth": 21}, "got depth 21"),
    ],
)
def test_what_cannot_be_made_is_named(name, args, said):
    with pytest.raises(ConfigError, match=said):
        models.create(name, **args)
