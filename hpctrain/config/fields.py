"""The keys of the schema as rows of a table: name, type, default, limits in words, meaning."""

import ast
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import msgspec

from hpctrain.config import schema

__all__ = ["Key", "keys", "sections"]


@dataclass(frozen=True, slots=True)
class Key:
    """One setting."""

    section: str
    name: str
    type: Any
    default: Any
    doc: str

    @property
    def path(self) -> str:
        """Full name, ``section.name``."""
        return f"{self.section}.{self.name}"

    @property
    def plain(self) -> Any:
        """Type without its limits: ``int``, ``list``, ``dict``, ``Literal`` for a choice."""
        bare = get_args(self.type)[0] if get_origin(self.type) is Annotated else self.type
        return get_origin(bare) or bare

    @property
    def choices(self) -> tuple[str, ...]:
        """The words that are allowed, if only some are."""
        return get_args(self.type) if self.plain is Literal else ()

    @property
    def needed(self) -> str:
        """Say in words what values are allowed, as in ``a number > 0``."""
        return _needed(self)


def sections() -> dict[str, type[schema.Section]]:
    """Return the sections by name, in the order in which they are written."""
    return dict(get_type_hints(schema.Config))


def keys() -> dict[str, Key]:
    """Return all keys by full name, section after section.

    Notes
    -----
    Reads the source of the schema for the documentation: about 5 ms.  Call it once and hand
    the table on.
    """
    return {key.path: key for key in _rows()}


def _rows() -> Iterator[Key]:
    docs = _docs(inspect.getsource(schema))
    for section, kind in sections().items():
        for item in msgspec.structs.fields(kind):
            default = (
                item.default
                if item.default is not msgspec.NODEFAULT
                else item.default_factory()
            )
            yield Key(section, item.name, item.type, default, docs[kind.__name__, item.name])


def _docs(source: str) -> dict[tuple[str, str], str]:
    """Collect the string that follows each annotated name, by class and name."""
    found = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef):
            for before, after in zip(node.body, node.body[1:], strict=False):
                if isinstance(before, ast.AnnAssign) and isinstance(after, ast.Expr):
                    target = ast.unparse(before.target)
                    found[node.name, target] = ast.literal_eval(after.value)
    return found


_WORDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a string",
    list: "a list of strings",
    dict: "a table of plain values",
}
_SIGNS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}


def _needed(key: Key) -> str:
    if key.choices:
        quoted = [f'"{choice}"' for choice in key.choices]
        return " or ".join([", ".join(quoted[:-1]), quoted[-1]] if quoted[1:] else quoted)
    words = _WORDS[key.plain]
    limits = []
    for meta in get_args(key.type)[1:] if get_origin(key.type) is Annotated else ():
        words = (meta.extra or {}).get("needed", words)
        bounds = [(sign, getattr(meta, name)) for name, sign in _SIGNS.items()]
        limits += [f"{sign} {bound:g}" for sign, bound in bounds if bound is not None]
    return " ".join([words, " and ".join(limits)]).strip()
