"""``config``: write a configuration to start from, or show what a run would use."""

import os
from collections.abc import Sequence

from hpctrain.cli.defaults import DEFAULT
from hpctrain.config import Config, load, split, to_toml
from hpctrain.errors import ConfigError

__all__ = ["run"]

_USAGE = """python -m hpctrain config init
    print all settings with their defaults and meaning
python -m hpctrain config show [run.toml …] [--section.key value …]
    print all settings, and where each comes from"""


def run(argv: Sequence[str]) -> int:
    """Print a configuration; no MPI."""
    words = list(argv)
    if not words or {"-h", "--help"}.intersection(words):
        print(_USAGE)
        return 0
    command = words.pop(0)
    if command == "init":
        print(to_toml(Config()), end="")
    elif command == "show":
        paths, flags = split(words)
        print(to_toml(*load(paths or [DEFAULT], flags, os.environ)), end="")
    else:
        raise ConfigError(f"config: got {command!r}, needed init or show")
    return 0
