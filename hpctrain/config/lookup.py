"""Find the key that a dotted name means, or say which one may have been meant."""

import difflib
from collections.abc import Iterable, Mapping

from hpctrain.config.fields import Key, sections
from hpctrain.errors import ConfigError

__all__ = ["find", "section_exists"]


def find(path: tuple[str, ...], table: Mapping[str, Key], where: str) -> Key:
    """Return the key at ``path``; a third part names one entry of a table.

    Raises
    ------
    ConfigError
        If there is none: ``where``, and the nearest name or the names there are.
    """
    key = table.get(".".join(path[:2]))
    if key is not None and (len(path) == 2 or (len(path) == 3 and key.plain is dict)):
        return key
    raise ConfigError(f"{where}: no such key; {_hint('.'.join(path), table)}")


def section_exists(section: str, where: str) -> None:
    """Raise ``ConfigError``, with the nearest name, unless there is such a section."""
    if section not in sections():
        raise ConfigError(f"{where}: no such section; {_nearest(section, sections())}")


def _hint(full: str, table: Mapping[str, Key]) -> str:
    section, _, name = full.partition(".")
    mine = [key.name for key in table.values() if key.section == section]
    same = [path for path, key in table.items() if key.name == (name or section)]
    if len(same) != 1:
        same = difflib.get_close_matches(full, table, n=1, cutoff=0.75) or same
    if same:
        return f"did you mean {' or '.join(same)}?"
    if not mine:
        return _nearest(section, sections())
    return f"the keys of [{section}] are {', '.join(mine)}"


def _nearest(word: str, words: Iterable[str]) -> str:
    words = list(words)
    if close := difflib.get_close_matches(word, words, n=1):
        return f"did you mean {close[0]}?"
    return f"the sections are {', '.join(words)}"
