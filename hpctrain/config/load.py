"""Put a configuration together from all its sources, and check every value."""

import difflib
import math
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from hpctrain.config.conflicts import check
from hpctrain.config.fields import Key, keys
from hpctrain.config.lookup import find
from hpctrain.config.schema import Config
from hpctrain.config.sources import PREFIX, Flag, Setting, settings
from hpctrain.errors import ConfigError

__all__ = ["Provenance", "load"]

Provenance = dict[str, str]


def load(
    paths: Sequence[str | Path] = (),
    flags: Sequence[Flag] = (),
    environ: Mapping[str, str] | None = None,
) -> tuple[Config, Provenance]:
    """Put a configuration together from all its sources.

    Parameters
    ----------
    paths : sequence of path
        TOML files; a later one wins over an earlier one, key by key.
    flags : sequence of (name, text)
        As ``split`` returns them; they win over everything else.  Who names another model
        gives all its arguments: those of the file below were meant for that file's model.
    environ : mapping, optional
        Variables ``HPCTRAIN__SECTION__KEY``; they win over files.  Others are left alone.

    Returns
    -------
    config : Config
    provenance : dict
        Where each value came from, by ``section.key``: ``default``, a file, a variable or a
        flag.

    Raises
    ------
    ConfigError
        If a file cannot be read, a key is unknown, or a value is not of its type, out of its
        limits or at odds with another.
    """
    table = keys()
    values: dict[str, Any] = {path: key.default for path, key in table.items()}
    provenance = dict.fromkeys(table, "default")
    for setting in settings(paths, flags, environ or {}):
        key = find(setting.path, table, setting.where)
        value = _merged(setting, key, values[key.path])
        if key.path == "model.name" and value != values[key.path]:
            args = provenance["model.args"]
            if _kind(args) != _kind(setting.source):  # arguments for the model named before
                values["model.args"], provenance["model.args"] = {}, "default"
        values[key.path] = value
        provenance[key.path] = setting.source
    config = _build(values)
    check(config)
    return config, provenance


def _kind(source: str) -> str:
    """Return the file, or what the flags, or the variables, have in common."""
    return next((p for p in ("--", PREFIX) if source.startswith(p)), source)


def _merged(setting: Setting, key: Key, before: Any) -> Any:
    """Return the new value of a key, checked; one entry of a table leaves the others."""
    value = _from_text(setting.value, key, setting.where) if setting.is_text else setting.value
    if entry := setting.path[2:]:
        value = {**before, entry[0]: value}
    return _checked(value, key, setting.where, setting.value)


def _checked(value: Any, key: Key, where: str, got: Any) -> Any:
    try:
        result = msgspec.convert(value, key.type)
    except msgspec.ValidationError:
        raise ConfigError(_complaint(key, where, got)) from None
    if isinstance(result, float) and not math.isfinite(result):
        raise ConfigError(_complaint(key, where, got))
    return result


def _complaint(key: Key, where: str, got: Any) -> str:
    return f"{where}: got {_shown(got)}, needed {key.needed}{_hint(key, got)}"


def _hint(key: Key, got: Any) -> str:
    if key.plain is list and isinstance(got, str):
        words = [word.strip(" []\"'") for word in got.split(",")]
        quoted = ", ".join(f'"{word}"' for word in words)
        return f"; as a flag write {','.join(words)}, in a file [{quoted}]"
    close = difflib.get_close_matches(str(got), key.choices, n=1)
    return f'; did you mean "{close[0]}"?' if close else ""


def _shown(value: Any) -> str:
    text = f'"{value}"' if isinstance(value, str) else str(value)
    if isinstance(value, bool):
        text = text.lower()
    return text if len(text) <= 60 else f"{text[:57]}…"


def _from_text(text: str, key: Key, where: str) -> Any:
    """Read the text of a flag or variable as the type of its key.

    Text that cannot be read so stays text: the check that follows refuses it.
    """
    if key.plain is bool:
        return {"true": True, "false": False}.get(text.lower(), text)
    if key.plain in (int, float):
        try:
            return key.plain(text)
        except ValueError:
            return text
    if key.plain is list and not text.startswith("["):
        return [part.strip() for part in text.split(",") if part.strip()]
    if key.plain in (list, dict):
        return _toml_value(text)
    return text


def _toml_value(text: str) -> Any:
    """Read ``text`` as a TOML value, or as the string it is."""
    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return parsed["value"] if len(parsed) == 1 else text


def _build(values: Mapping[str, Any]) -> Config:
    nested: dict[str, dict[str, Any]] = {}
    for path, value in values.items():
        section, _, name = path.partition(".")
        nested.setdefault(section, {})[name] = value
    return msgspec.convert(nested, Config)
