"""How a model is divided over a team: the same on all ranks, by the table of rules."""

import numpy as np
import pytest
from teams import Zoo

from hpctrain import nn
from hpctrain.autograd import Spec
from hpctrain.errors import ConfigError
from hpctrain.ops.cut import Cut, Seat
from hpctrain.parallel.program import Objective
from hpctrain.parallel.share_moves import _through
from hpctrain.parallel.shared_model import divide, local_parameters

pytestmark = pytest.mark.serial


def division_of(model, team):
    inputs, targets = model.data(1)[0]
    specs = [Spec.of(inputs)], [Spec.of(targets)]
    return divide(model.objective, model.parameters, specs, team)


@pytest.mark.parametrize("name", ["mlp", "lenet", "gpt", "resnet20", "lstm", "cosmo"])
@pytest.mark.parametrize("size", [2, 3, 4])
def test_all_ranks_divide_alike_and_their_parts_make_the_whole(name, size):
    model = Zoo(name)
    found = [division_of(model, Seat(rank, size)) for rank in range(size)]

    assert all(other.cuts == found[0].cuts for other in found)
    assert any(found[0].cuts)
    parts = [
        local_parameters(model.parameters, found[0], Seat(rank, size)) for rank in range(size)
    ]
    for path, whole in model.parameters.items():
        sizes = [part[path].data().size for part in parts]
        cut = found[0].cut_of(path)
        expected = size * [whole.data().size] if cut is None else None
        assert sizes == expected or (cut and sum(sizes) == whole.data().size)


def test_layers_of_a_transformer_go_in_pairs():
    division = division_of(Zoo("gpt"), Seat(1, 2))
    cuts = {name: division.cut_of(name) for name in division.names}

    assert cuts["tokens.weight"] == Cut(0)
    assert cuts["blocks.0.attention.qkv.weight"] == Cut(0, 3, 4)  # by heads
    assert cuts["blocks.0.attention.proj.weight"] == Cut(1, 1, 4)
    assert (cuts["blocks.0.up.weight"], cuts["blocks.0.up.bias"]) == (Cut(0), Cut(0))
    assert (cuts["blocks.0.down.weight"], cuts["blocks.0.down.bias"]) == (Cut(1), None)
    assert cuts["blocks.0.norm1.gamma"] is None
    assert cuts["head.weight"] == Cut(0)


def test_running_statistics_are_divided_like_their_channels():
    division = division_of(Zoo("resnet20"), Seat(0, 2))
    cuts = dict(zip(division.names, division.cuts, strict=True))
    moving = {n: cut for n, cut in cuts.items() if "running" in n}

    assert moving and set(moving.values()) == {Cut(0)}


def test_a_user_overrules_the_table():
    net = nn.HybridSequential()
    for _ in range(3):
        net.add(nn.Dense(8, in_units=8))
    net[0].to_tensor("row")
    net[1].to_tensor("whole")
    net[2].to_tensor("column")
    net.initialize()
    specs = [Spec((2, 8), np.dtype("f4"))], [Spec((2,), np.dtype("i8"))]
    goal = Objective(net, nn.SoftmaxCrossEntropyLoss())

    found = divide(goal, net.collect_params(), specs, Seat(0, 2))

    weights = [found.cut_of(f"{place}.weight") for place in range(3)]
    assert weights == [Cut(1), None, Cut(0)]


def test_words_that_say_nothing_are_refused():
    with pytest.raises(ConfigError, match="got 'rows', needed column, row or whole"):
        nn.Dense(2).to_tensor("rows")


def test_a_model_with_nothing_to_divide_is_refused():
    with pytest.raises(ConfigError, match="got 40 ranks, but the model has no layer that so"):
        division_of(Zoo("mlp"), Seat(0, 40))


@pytest.mark.parametrize(
    ("shape", "cut", "to", "expected"),
    [
        ((2, 3, 4), Cut(2), (2, 12), Cut(1, 3)),  # pixels become features
        ((2, 12), Cut(1, 3), (2, 3, 4), Cut(2)),
        ((2, 12), Cut(1, 1, 4), (2, 3, 4), Cut(1)),  # features become heads
        ((2, 6, 4), Cut(1), (12, 4), Cut(0, 2)),  # steps become rows
        ((6, 4), Cut(0), (6, 4, 1), Cut(0)),
        ((2, 12), Cut(1), (2, 3, 4), None),
    ],
)
def test_a_cut_goes_through_a_reshape(shape, cut, to, expected):
    assert _through(shape, cut, to) == expected
    if expected is not None:
        numbers = np.arange(np.prod(shape)).reshape(shape)
        for rank in range(2):
            seat = Seat(rank, 2)
            part = cut.part(numbers, seat)
            want = expected.part(numbers.reshape(to), seat)
            np.testing.assert_array_equal(part.reshape(want.shape), want)
