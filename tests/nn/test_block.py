"""The tree of blocks: names, order, sharing, hooks."""

import numpy as np
import pytest

from hpctrain import nn
from hpctrain.autograd import Tensor
from hpctrain.errors import ConfigError, ShapeError

pytestmark = pytest.mark.serial


class Net(nn.Block):
    def __init__(self, **names):
        super().__init__(**names)
        with self.name_scope():
            self.features = nn.Sequential()
            with self.features.name_scope():
                self.features.add(nn.Dense(4, in_units=3), nn.Dense(5, in_units=4))
            self.scale = self.params.get("scale", shape=(5,), init="ones")
            self.output = nn.Dense(2, in_units=5)

    def forward(self, x):
        return self.output(self.features(x) * self.scale.data(x.device))


STRUCTURE = [
    "features.0.weight", "features.0.bias", "features.1.weight", "features.1.bias", "scale",
    "output.weight", "output.bias",
]  # fmt: skip


def test_names_are_paths_in_the_order_of_declaration():
    assert list(Net().collect_params()) == STRUCTURE
    assert list(Net().collect_params(".*bias")) == [n for n in STRUCTURE if "bias" in n]


def test_a_model_made_twice_has_the_same_names():
    first, second = Net(), Net()

    assert list(first.collect_params()) == list(second.collect_params())
    displayed = [[p.name for p in net.collect_params().values()] for net in (first, second)]
    assert displayed[0] == displayed[1]


def test_display_names_follow_the_scopes():
    names = [p.name for p in Net(prefix="my_").collect_params().values()]

    assert names[0] == "my_sequential0_dense0_weight"
    assert names[2] == "my_sequential0_dense1_weight"
    assert names[-1] == "my_dense0_bias"
    assert Net().name == "net0"


def test_first_values_do_not_depend_on_what_else_there_is():
    whole, part = Net().initialize(seed=5), nn.Block()
    part.output = nn.Dense(2, in_units=5)

    part.initialize(seed=5)

    name = "output.weight"
    np.testing.assert_array_equal(
        part.collect_params()[name].data().asnumpy(),
        whole.collect_params()[name].data().asnumpy(),
    )


def test_layers_of_one_shape_get_different_values():
    net = nn.Sequential()
    net.add(nn.Dense(3, in_units=3), nn.Dense(3, in_units=3))
    net.initialize()

    assert not np.allclose(net[0].weight.data().asnumpy(), net[1].weight.data().asnumpy())


def test_the_initializer_given_is_for_parameters_without_their_own():
    net = Net().initialize(init="zeros")

    np.testing.assert_array_equal(net.output.weight.data().asnumpy(), 0)
    np.testing.assert_array_equal(net.scale.data().asnumpy(), 1)


def test_unknown_lengths_become_known_in_the_first_pass():
    net = nn.Sequential()
    net.add(nn.Dense(4), nn.Dense(2))
    net.initialize(seed=1)
    known = nn.Sequential()
    known.add(nn.Dense(4, in_units=6), nn.Dense(2, in_units=4))
    known.initialize(seed=1)
    x = Tensor(np.ones((5, 2, 3), np.float32))

    y = net(x)

    assert net[0].weight.shape == (4, 6)
    np.testing.assert_array_equal(y.asnumpy(), known(x).asnumpy())


def test_a_tied_parameter_is_listed_once():
    net = nn.Block()
    net.a, net.b = nn.Dense(3, in_units=3), nn.Dense(3, in_units=3, use_bias=False)
    net.b.weight = net.a.weight

    assert list(net.collect_params()) == ["a.weight", "a.bias"]


def test_params_of_another_block_are_shared():
    first = nn.Dense(3, in_units=3)
    second = nn.Dense(3, in_units=3, params=first.params)

    assert second.weight is first.weight


def test_setting_an_attribute_anew_replaces_the_part():
    net = Net()
    net.output = None
    assert list(net.collect_params()) == STRUCTURE[:-2]

    del net.scale
    net.params = nn.ParameterDict()
    assert list(net.collect_params()) == STRUCTURE[:-3]


def test_blocks_in_a_plain_list_are_refused():
    net = nn.Block()
    net.layers = [nn.Dense(1, in_units=1)]

    with pytest.raises(ConfigError, match="'layers' holds blocks in a list"):
        net.collect_params()


def test_hooks_see_inputs_and_outputs_until_they_are_detached():
    net, seen = nn.Identity(), []
    before = net.register_forward_pre_hook(lambda block, args: seen.append(("in", len(args))))
    after = net.register_forward_hook(lambda block, args, out: seen.append(("out", out)))

    net(7)
    before.detach()
    after.detach()
    net(8)

    assert seen == [("in", 1), ("out", 7)]


def test_apply_visits_children_first():
    seen = []

    Net().apply(lambda block: seen.append(type(block).__name__))

    assert seen == ["Dense", "Dense", "Sequential", "Dense", "Net"]


def test_cast_leaves_whole_numbers_alone():
    net = nn.Sequential()
    net.add(nn.Dense(2, in_units=2), nn.Dropout(0.5))
    net.initialize()

    net.cast("float64")

    assert net[0].weight.data().dtype == np.float64
    assert net[1].stream.data().dtype == np.uint64


def test_each_device_computes_with_its_own_copy():
    net = nn.Dense(2, in_units=2)
    net.initialize(ctx=[nn.cpu(0), nn.cpu(1)])
    net.bias.data(nn.cpu(1))[:] = 10
    x = np.zeros((1, 2), np.float32)

    first, second = net(Tensor(x, device=nn.cpu(0))), net(Tensor(x, device=nn.cpu(1)))

    np.testing.assert_array_equal(first.asnumpy(), [[0, 0]])
    np.testing.assert_array_equal(second.asnumpy(), [[10, 10]])
    assert second.device == nn.cpu(1)


def test_shapes_are_completed_without_a_trace():
    net = nn.Sequential()
    net.add(nn.Dense(4), nn.Dropout(0.5))
    net.initialize()

    net.complete_shapes(Tensor(np.ones((2, 3), np.float32)))

    assert net[0].weight.shape == (4, 3)
    np.testing.assert_array_equal(net[1].stream.data().asnumpy()[1:], 0)


def test_a_block_that_cannot_tell_its_shapes_says_so():
    class Open(nn.Block):
        def __init__(self):
            super().__init__()
            self.w = self.params.get("w", shape=(0,))

    with pytest.raises(ShapeError, match="give the whole shape or define infer_shape"):
        Open()(1)


def test_the_representation_shows_the_tree():
    text = repr(Net())

    assert "  (features): Sequential(" in text
    assert "    (0): Dense(3 -> 4, linear)" in text
