"""The runs of one name: which there are, what they are, where the next one goes."""

import json
import re
import tomllib
from collections.abc import Collection, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import msgspec

from hpctrain.errors import ConfigError

__all__ = ["Record", "next_path", "refusal", "runs_of"]

_OURS = ("config.toml", "metrics.jsonl", "checkpoints", "done.json")


class Record(msgspec.Struct, frozen=True):
    """What ``run.json`` holds."""

    name: str
    digest: str
    config: str
    origin: str = ""  # the path that the run was told to begin from
    format: int = 1


def runs_of(dir: Path, name: str) -> Iterator[tuple[Path, Record]]:
    """Yield the runs of one name in the order in which they were begun."""
    for _, path in sorted(_numbered(dir, name)):
        if (path / "run.json").exists():
            record = _read(path / "run.json")
            if record.name == name:
                yield path, record


def _numbered(dir: Path, name: str) -> Iterator[tuple[int, Path]]:
    """Yield what is at ``name``, ``name-2``, … with its number."""
    pattern = re.compile(re.escape(name) + r"(?:-([2-9]|[1-9]\d+))?")
    for path in dir.iterdir() if dir.is_dir() else ():
        if match := pattern.fullmatch(path.name):
            yield int(match[1] or 1), path


def next_path(dir: Path, name: str) -> Path:
    """Return the directory of a new run: the first free one after the last run of this name.

    The first may exist, as long as it has no files that a run would overwrite: a job script
    may have made it to put its own log there.
    """
    own = {path for path, _ in runs_of(dir, name)}
    taken = dict(_numbered(dir, name))
    last = max((number for number, path in taken.items() if path in own), default=0)
    if last == 0 and 1 in taken and not (taken[1] / "run.json").exists():
        return _adopted(taken[1])
    number = next(number for number in count(last + 1) if number not in taken)
    return dir / (f"{name}-{number}" if number > 1 else name)


def _adopted(path: Path) -> Path:
    theirs = [item for item in _OURS if (path / item).exists()]
    if theirs or not path.is_dir():
        raise ConfigError(
            f"{path}: is not a run, but holds {', '.join(theirs) or 'no files'}; "
            "use another --run.name"
        )
    return path


def _read(path: Path) -> Record:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Record)
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(f"{path}: is damaged: {error}; use another --run.name") from None


def refusal(path: Path, record: Record, config_toml: str, ignore: Collection[str]) -> str:
    """Say which settings differ from those of an unfinished run, and what to do."""
    before, now = _flat(record.config), _flat(config_toml)
    changes = [
        f"{key} was {_shown(before.get(key))} and is {_shown(now.get(key))}"
        for key in sorted(before.keys() | now.keys())
        if before.get(key) != now.get(key) and key not in ignore
    ]
    return (
        f"{path}: holds an unfinished run with other settings"
        f"{': ' if changes else ''}{', '.join(changes)}; "
        "add --run.name OTHER for a run of its own, or --run.resume never to begin anew"
    )


def _flat(text: str) -> dict[str, Any]:
    sections = tomllib.loads(text)
    return {f"{s}.{key}": value for s, keys in sections.items() for key, value in keys.items()}


def _shown(value: Any) -> str:
    return "unset" if value is None else json.dumps(value, default=str, ensure_ascii=False)
