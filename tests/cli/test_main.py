"""What needs no MPI works where MPI cannot be started."""

import tomllib

import pytest
from launched import ROOT

from hpctrain import __version__
from hpctrain.cli.main import COMMANDS

pytestmark = pytest.mark.serial


@pytest.fixture
def no_mpi(tmp_path):
    """Variables with which ``mpi4py.MPI`` cannot be imported."""
    (tmp_path / "mpi4py").mkdir()
    (tmp_path / "mpi4py/__init__.py").write_text("class rc: pass\n")
    (tmp_path / "mpi4py/MPI.py").write_text("raise RuntimeError('cannot load MPI library')\n")
    return {"PYTHONPATH": f"{tmp_path}:{ROOT}"}


@pytest.mark.slow
def test_what_needs_no_mpi_works_without_it(hpctrain, data, no_mpi):
    def said(*words):
        ended = hpctrain(0, *words, **no_mpi).end()
        assert (ended.code, ended.err) == (0, ""), words
        return ended.out

    assert said("--version") == f"hpctrain {__version__}\n"
    assert all(f"\n  {name} " in said("--help") for name in COMMANDS)
    assert "--optim.lr" in said("train", "--help")
    assert "usage:" in said("data", "--help").lower()
    assert tomllib.loads(said("config", "init"))["data"]["batch"] == 64
    shown = said("config", "show", "--optim.lr", "0.5")
    assert tomllib.loads(shown)["optim"]["lr"] == 0.5 and "[--optim.lr]" in shown
    assert "image" in said("data", "inspect", data / "train")
    assert "100 records" in said("data", "verify", data / "train")


@pytest.mark.slow
def test_without_mpi_the_doctor_says_so(hpctrain, no_mpi):
    ended = hpctrain(0, "doctor", **no_mpi).end()

    assert (ended.code, ended.err) == (1, "")
    assert "[FAIL] mpi: mpi4py cannot load an MPI library" in ended.out


@pytest.mark.slow
def test_the_configuration_to_start_from_is_one(hpctrain, tmp_path):
    (tmp_path / "run.toml").write_text(hpctrain(0, "config", "init").end().out)

    ended = hpctrain(0, "config", "show", "run.toml").end()

    assert (ended.code, ended.err) == (0, "")
    first, second = (tmp_path / "run.toml").read_text(), ended.out
    assert tomllib.loads(first) == tomllib.loads(second)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "fragment"),
    [
        (["config", "shw"], "hpctrain: config: got 'shw', needed init or show"),
        (["data", "verify", "none"], "hpctrain: none: "),
        (["config", "show", "--optim.lrr", "1"], "did you mean"),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(hpctrain, words, fragment):
    ended = hpctrain(0, *words).end()

    assert ended.code == 2
    assert fragment in ended.said and ended.said.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bench", "selfcheck", "doctor"])
def test_each_command_has_help(hpctrain, name):
    ended = hpctrain(0, name, "--help").end()

    assert (ended.code, ended.err) == (0, "")
    assert f"usage: python -m hpctrain {name}" in ended.out
