"""Find the subcommand, and load its module only then."""

import importlib
from collections.abc import Sequence

from hpctrain import __version__
from hpctrain.errors import HpctrainError

__all__ = ["COMMANDS", "main"]

# name: (module, what it does, whether it needs MPI)
COMMANDS = {
    "train": ("hpctrain.cli.train", "train a model (the default)", True),
    "selfcheck": ("hpctrain.cli.selfcheck", "compare training on P ranks with 1 rank", True),
    "bench": ("hpctrain.cli.bench", "time the training step of a workload", True),
    "doctor": ("hpctrain.cli.doctor", "report on installation and launch", True),
    "graph": ("hpctrain.cli.graph", "show a model's graph, pass by pass", False),
    "summary": ("hpctrain.cli.summary", "show a model's layers, work and memory", False),
    "plan": ("hpctrain.cli.plan", "draw a pipeline schedule", False),
    "config": ("hpctrain.cli.config", "write or show a configuration", False),
    "data": ("hpctrain.cli.data", "look at data files, or check them", False),
    "import-mxnet": ("hpctrain.cli.import_mxnet", "take over a checkpoint of MXNet", False),
}

_HEAD = """hpctrain {version}: neural-network training over MPI

  mpirun -n 8 python -m hpctrain                     train the default model
  mpirun -n 8 python -m hpctrain train run.toml --optim.lr 0.1
  python -m hpctrain config init > run.toml          a configuration to start from

commands (each has --help):
"""


def usage() -> str:
    """Return the text of ``--help``."""
    rows = [f"  {name:<12} {what}" for name, (_, what, _) in COMMANDS.items()]
    return _HEAD.format(version=__version__) + "\n".join(rows)


def main(argv: Sequence[str]) -> int:
    """Run the command line and return its exit code.

    Parameters
    ----------
    argv : sequence of str
        Without the program's name. What begins with no command is ``train``.

    Returns
    -------
    int
        0 done, 1 failed, 2 bad input found before anything was done, 75 stopped early with a
        checkpoint, 86 numbers no longer finite, 130 interrupted.
    """
    words = list(argv)
    if words[:1] in (["-h"], ["--help"], ["help"]):
        print(usage())
        return 0
    if words[:1] == ["--version"]:
        print(f"hpctrain {__version__}")
        return 0
    name = words.pop(0) if words and words[0] in COMMANDS else "train"
    module, _, needs_mpi = COMMANDS[name]
    helping = bool({"-h", "--help"}.intersection(words))
    if helping and name == "train":
        print(importlib.import_module("hpctrain.config").help_text())
        return 0
    if helping or not needs_mpi:  # what they import may import MPI
        importlib.import_module("hpctrain.comm.installed").keep_from_starting()
    run = importlib.import_module(module).run
    if needs_mpi and not helping:
        return int(run(words))  # errors are the business of all ranks: see comm.guard
    try:
        return int(run(words))
    except HpctrainError as error:
        print(f"hpctrain: {error}")
        return error.exit_code
