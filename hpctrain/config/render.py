"""Write a configuration, or the list of all settings, for people to read."""

import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

import tomli_w

from hpctrain.config.fields import Key, keys, sections
from hpctrain.config.schema import Config

__all__ = ["help_text", "to_toml"]


def to_toml(config: Config, provenance: Mapping[str, str] | None = None) -> str:
    """Write all settings as TOML, each under a comment that says what it means.

    Read back by ``load``, the text gives an equal configuration.

    Parameters
    ----------
    config : Config
    provenance : mapping, optional
        As ``load`` returns it: the comment then also says where a value came from.
    """
    table = keys()
    blocks = []
    for section, kind in sections().items():
        lines = [f"# {_doc(kind)}", f"[{section}]"]
        mine = [key for key in table.values() if key.section == section]
        for key in sorted(mine, key=lambda key: key.plain is dict):
            lines += _entry(key, getattr(getattr(config, section), key.name), provenance)
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks) + "\n"


def _entry(key: Key, value: Any, provenance: Mapping[str, str] | None) -> Iterator[str]:
    source = f"  [{provenance[key.path]}]" if provenance else ""
    yield f"# {key.doc}{source}"
    if key.plain is dict:
        yield f"[{key.path}]"
        yield from tomli_w.dumps(value).splitlines()
    else:
        yield f"{key.name} = {_inline(value)}"


def _inline(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(_inline(item) for item in value)}]"
    return tomli_w.dumps({"value": value}).removeprefix("value = ").rstrip("\n")


def _doc(kind: type) -> str:
    return (kind.__doc__ or "").splitlines()[0]


def help_text(width: int = 80) -> str:
    """List every setting with its flag, the values allowed, the default and the meaning."""
    table = keys()
    lines: list[str] = []
    for section, kind in sections().items():
        lines += ["", f"{section}: {_doc(kind)[:1].lower()}{_doc(kind)[1:].rstrip('.')}"]
        for key in table.values():
            if key.section == section:
                lines += _help_entry(key, width)
    return "\n".join(lines[1:]) + "\n"


def _help_entry(key: Key, width: int) -> list[str]:
    default = "{}" if key.plain is dict else _inline(key.default)
    head = f"  --{key.path} {_placeholder(key)}"
    needed = "" if key.choices or key.plain is bool else f"{key.needed}; "
    body = f"{key.doc} ({needed}default {default})"
    return [
        head,
        *textwrap.wrap(body, width, initial_indent=" " * 6, subsequent_indent=" " * 6),
    ]


def _placeholder(key: Key) -> str:
    if key.choices:
        return "|".join(key.choices)
    words = {bool: "true|false", int: "N", float: "X", str: "TEXT", list: "A,B,…", dict: "{…}"}
    return words[key.plain]
