"""Devices by MXNet's names."""

import pytest

from hpctrain.backend import CPU, Device
from hpctrain.errors import ConfigError
from hpctrain.nn.context import as_devices, cpu, gpu

pytestmark = pytest.mark.serial


def test_devices_have_kind_and_number():
    assert cpu() == CPU
    assert cpu(1) != CPU
    assert gpu(2) == Device("gpu", 2)


def test_one_device_several_or_none_become_a_list():
    assert as_devices(None) == [CPU]
    assert as_devices(cpu(1)) == [cpu(1)]
    assert as_devices((cpu(0), cpu(1))) == [cpu(0), cpu(1)]


@pytest.mark.parametrize("wrong", [[], [cpu(0), cpu(0)]])
def test_no_device_and_one_twice_are_refused(wrong):
    with pytest.raises(ConfigError, match="one device, or several different ones"):
        as_devices(wrong)
