"""What a ``with`` block gives the nodes that are made in it: names, and attributes.

Names are MXNet's: the operator in small letters and a number. The numbers are counted for the
whole process, as there, so that two branches of a network never share a name by accident.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any

from hpctrain.errors import ConfigError
from hpctrain.graph.marks import GROUP, marked

__all__ = ["HIDDEN", "AttrScope", "NameManager", "attributes", "fresh_name"]

# Attributes that are asked for without the underscores under which files keep them.
HIDDEN = ("ctx_group", "lr_mult", "wd_mult", "force_mirroring", "mirror_stage")


class NameManager:
    """Counts the nodes of each kind; ``with NameManager():`` begins anew at 0.

    Parameters
    ----------
    prefix : str
        Put before automatic names.
    """

    def __init__(self, prefix: str = "") -> None:
        self._prefix = prefix
        self._counts: dict[str, int] = {}
        self._tokens: list[Any] = []

    def get(self, name: str | None, hint: str) -> str:
        """Return ``name``, or a new one made of ``hint`` and a number."""
        if name is not None:
            return name
        number = self._counts.get(hint, 0)
        self._counts[hint] = number + 1
        return f"{self._prefix}{hint}{number}"

    def __enter__(self) -> "NameManager":
        self._tokens.append(_NAMES.set(self))
        return self

    def __exit__(self, *_: object) -> None:
        _NAMES.reset(self._tokens.pop())


_NAMES: ContextVar[NameManager] = ContextVar("hpctrain_names", default=NameManager())  # noqa: B039 (counts are for the process)
_ATTRIBUTES: ContextVar[MappingProxyType[str, str]] = ContextVar(
    "hpctrain_attributes", default=MappingProxyType({})
)


def fresh_name(name: str | None, hint: str) -> str:
    """Return ``name``, or the next automatic one for ``hint``."""
    return _NAMES.get().get(name, hint)


def attributes() -> MappingProxyType[str, str]:
    """Return the attributes of the `AttrScope` that is open, by the names that files use."""
    return _ATTRIBUTES.get()


class AttrScope:
    """Give the nodes made inside the ``with`` block attributes, such as ``ctx_group='dev1'``.

    Parameters
    ----------
    **attrs : str
        Kept with the node and its variables. ``ctx_group`` is also a mark of the nodes of
        every graph that is captured inside the block, from blocks as from symbols.
    """

    def __init__(self, **attrs: str) -> None:
        for name, value in attrs.items():
            if not isinstance(value, str):
                raise ConfigError(f"AttrScope: got {name} = {value!r}, needed text")
        self._attrs = {f"__{name.strip('_')}__": value for name, value in attrs.items()}
        self._scopes: list[Any] = []

    def __enter__(self) -> "AttrScope":
        scope = _entered(self._attrs)
        scope.__enter__()
        self._scopes.append(scope)
        return self

    def __exit__(self, *error: Any) -> None:
        self._scopes.pop().__exit__(*error)


@contextmanager
def _entered(attrs: dict[str, str]) -> Iterator[None]:
    token = _ATTRIBUTES.set(MappingProxyType({**_ATTRIBUTES.get(), **attrs}))
    group = attrs.get("__ctx_group__")
    try:
        with nullcontext() if group is None else marked(**{GROUP: group}):
            yield
    finally:
        _ATTRIBUTES.reset(token)
