"""Blocks in a row."""

import pytest

from hpctrain import nn

pytestmark = pytest.mark.serial


@pytest.mark.parametrize("kind", [nn.Sequential, nn.HybridSequential])
def test_a_sequence_behaves_like_a_list(kind):
    net = kind()
    first, second, third = nn.Identity(), nn.Flatten(), nn.Identity()

    net.add(first, second)
    net.add(third)

    assert len(net) == 3
    assert list(net) == [first, second, third]
    assert net[1] is second
    assert net[-1] is third
    assert isinstance(net[1:], kind)
    assert list(net[1:]) == [second, third]
    assert list(net.children) == ["0", "1", "2"]


def test_only_the_first_block_gets_all_arguments():
    net = nn.Sequential()
    net.add(nn.Lambda(lambda a, b: a + b), nn.Lambda(lambda a: a * 10))

    assert net(1, 2) == 30
