"""What is written explains itself and reads back as the same configuration."""

import subprocess
import sys

import msgspec
import pytest

from hpctrain.config import Config, help_text, load, split, to_toml
from hpctrain.config.fields import keys

pytestmark = pytest.mark.serial

ARGV = [
    "--run.name=other", "--run.dry_run", "--optim.lr=0.1", "--optim.eps=3e-300",
    "--data.inputs=a,b", '--data.targets=["say \\"y\\"", "ü\\\\"]',
    '--model.args={width = 3, rate = 0.5, on = true, act = "a\\nb", sizes = [1, 2]}',
]  # fmt: skip


def test_a_written_configuration_reads_back_as_itself(tmp_path):
    config, _ = load([], split(ARGV)[1])

    (tmp_path / "config.toml").write_text(to_toml(config))

    assert load([tmp_path / "config.toml"])[0] == config


def test_the_written_defaults_read_back_as_the_defaults(tmp_path):
    (tmp_path / "config.toml").write_text(to_toml(Config()))
    assert load([tmp_path / "config.toml"])[0] == Config()


def test_every_key_is_written_under_its_meaning():
    lines = to_toml(Config()).splitlines()
    for key in keys().values():
        assert f"# {key.doc}" in lines


def test_provenance_stands_in_the_comments():
    config, provenance = load([], [("optim.lr", "1")])
    text = to_toml(config, provenance)
    assert "# learning rate, at its highest  [--optim.lr]\nlr = 1.0\n" in text
    assert "  [default]\nmomentum = 0.9\n" in text


def test_the_help_lists_every_key_with_default_and_meaning_in_80_columns():
    text = help_text()
    words = " ".join(text.split())
    for key in keys().values():
        assert f"--{key.path} " in words
        assert " ".join(key.doc.split()) in words
    assert "--optim.lr X learning rate, at its highest (a number > 0; default 0.02)" in words
    assert max(map(len, text.splitlines())) <= 80


def test_every_key_has_a_meaning_and_a_default_within_its_limits():
    for key in keys().values():
        assert key.doc
        assert msgspec.convert(key.default, key.type) == key.default


def test_settings_are_immutable():
    with pytest.raises(AttributeError):
        Config().optim.lr = 1.0


@pytest.mark.slow
def test_help_needs_neither_mpi_nor_numpy():
    code = (
        "import sys; from hpctrain import config; config.help_text();"
        "assert not {'mpi4py', 'numpy', 'h5py'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
