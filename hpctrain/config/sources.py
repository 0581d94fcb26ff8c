"""Bring files, environment variables and flags to one form: settings that know their place."""

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from hpctrain.config.fields import Key, keys, sections
from hpctrain.config.lookup import find, section_exists
from hpctrain.errors import ConfigError

__all__ = ["Flag", "Setting", "settings", "split"]

PREFIX = "HPCTRAIN__"
Flag = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Setting:
    """A value for a key, and the place where it was written."""

    source: str
    path: tuple[str, ...]
    value: Any
    is_text: bool  # from a flag or a variable, still to be read as the key's type

    @property
    def where(self) -> str:
        """Place for messages: a flag and a variable name the key themselves."""
        return self.source if self.is_text else f"{self.source}: {'.'.join(self.path)}"


# Flags that are asked for so often that the section may be left out.
SHORT = MappingProxyType(
    {
        "precision": "device.precision",
        "profile": "run.profile",
        "resume": "run.resume",
        "reproducible": "exchange.reproducible",
    }
)


def settings(
    paths: Iterable[str | Path], flags: Iterable[Flag], environ: Mapping[str, str]
) -> Iterator[Setting]:
    """Yield the settings of all sources, the weakest first."""
    for path in paths:
        yield from _of_file(Path(path))
    for name in sorted(environ):
        if name.startswith(PREFIX):
            parts = tuple(name.removeprefix(PREFIX).lower().split("__"))
            yield Setting(name, parts, environ[name], True)
    for name, text in flags:
        yield Setting(f"--{name}", tuple(name.split(".")), text, True)


def split(argv: Sequence[str]) -> tuple[list[str], list[Flag]]:
    """Part a command line into its plain words and its ``--section.key value`` flags.

    ``--section.key=value`` is the same; a switch alone, as ``--run.dry_run``, means true;
    ``--precision``, ``--profile``, ``--resume`` and ``--reproducible`` need no section.

    Raises
    ------
    ConfigError
        If a flag is unknown, or its value is missing.
    """
    table = keys()
    words: list[str] = []
    flags: list[Flag] = []
    rest = list(argv)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--"):
            words.append(word)
            continue
        name, equals, text = word[2:].partition("=")
        name = name.replace("-", "_")
        name = SHORT.get(name, name)
        key = find(tuple(name.split(".")), table, f"--{name}")
        flags.append((name, text if equals else _value_after(name, key, rest)))
    return words, flags


def _value_after(name: str, key: Key, rest: list[str]) -> str:
    """Take the value of a flag off the front of ``rest``."""
    if key.plain is bool and not (rest and rest[0].lower() in ("true", "false")):
        return "true"
    if not rest or rest[0].startswith("--"):
        raise ConfigError(f"--{name}: got no value, needed {key.needed}")
    return rest.pop(0)


def _of_file(path: Path) -> Iterator[Setting]:
    for section, content in _read(path).items():
        if not isinstance(content, dict):
            raise ConfigError(
                f"{path}: {section}: got a key outside any section, needed it under one of "
                f"{', '.join(f'[{name}]' for name in sections())}"
            )
        section_exists(section, f"{path}: [{section}]")
        for name, value in content.items():
            yield Setting(str(path), (section, name), value, False)


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path}: got a byte at {error.start} that is not UTF-8, needed a TOML file"
        ) from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(_syntax(path, str(error))) from None


def _syntax(path: Path, complaint: str) -> str:
    """Put the line to the file's name, where an editor can follow it."""
    reason, _, place = complaint.partition(" (at ")
    line = re.search(r"line (\d+), column (\d+)", place)
    at = f":{line[1]}:{line[2]}" if line else ""
    end = "" if line else " at the end of the file"
    return f"{path}{at}: not valid TOML: {reason[:1].lower() + reason[1:]}{end}"
