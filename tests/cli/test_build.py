"""What a run is built of, where it depends on the machine."""

import pytest

from hpctrain.backend import CPU, Device
from hpctrain.cli import build
from hpctrain.config import load
from hpctrain.errors import ConfigError
from hpctrain.ops import dnnl
from hpctrain.ops.dnnl_narrow import lacking

pytestmark = pytest.mark.serial


def config(precision):
    return load(flags=[("device.precision", precision)])[0]


def test_bfloat16_is_refused_where_it_cannot_be_had(monkeypatch):
    message = (
        r"device.precision: got bf16 on gpu\(1\), needed kernels for GPUs; set it to float32"
    )
    with pytest.raises(ConfigError, match=message):
        build.narrows(config("bf16"), Device("gpu", 1))

    monkeypatch.setattr(dnnl.settings(), "kernels", "numpy")
    with pytest.raises(ConfigError, match="got bf16 on cpu, needed"):
        build.narrows(config("bf16"), CPU)


def test_an_older_cpu_is_refused_by_what_it_lacks(monkeypatch):
    if (found := dnnl.library()) is None:
        pytest.skip(dnnl.describe())
    monkeypatch.setattr(found, "narrow", False)

    assert lacking() in (
        "a CPU with AVX512_BF16 or AMX",
        "ml_dtypes (pip install 'hpctrain[fast]')",
    )


def test_parameters_are_float32_in_either_precision():
    assert [config(p).device.dtype for p in ("float32", "bf16", "float64")] == [
        "float32", "float32", "float64",
    ]  # fmt: skip
    assert not build.narrows(config("float32"), Device("gpu", 0))
