"""What changed in MXNet's symbol files from release to release, and how old ones are read.

| release | change | read by |
|---|---|---|
| 0.9 | ``param`` (settings) and ``attr`` (the user's) became one ``attr`` | `texts_of` |
| 0.9 | state, such as running means, became inputs; it was not in files before | `missing` |
| 0.9 | the user's attributes got underscores on both sides: ``__lr_mult__`` | `divide` |
| 0.9 | ``weight_lr_mult`` of a layer became ``__lr_mult__`` of its weight | `divide` |
| 0.9 | inputs and heads got a third number; ``backward_source_id`` went | nobody |
| 0.9.4 | variables say how they begin, by ``__init__``: running variances, PReLU | `missing` |
| 0.9.5 | ``argmax`` over all axes is ``axis=None``, and was -1 | `settings` |
| 1.0 | ``attr`` is called ``attrs`` | `texts_of` |
| later | new settings, whose defaults do what was done before | nobody |

A file says which release wrote it in ``attrs.mxnet_version``; those before 0.9 say nothing.
Old names of operators are in `hpctrain.ops.mxnet.ALIASES`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from hpctrain.ops.mxnet_row import Operator
from hpctrain.symbol.names import HIDDEN
from hpctrain.symbol.node import Entry, variable

__all__ = ["divide", "missing", "release_of", "settings", "texts_of"]


def release_of(whole: Mapping[str, Any]) -> int:
    """Return the release that wrote a file as a number: 10901 for 1.9.1, 800 for 0.8."""
    found = whole.get("attrs", {}).get("mxnet_version", ["int", 800])
    number = found[1]
    if type(number) is not int:
        raise TypeError(f"mxnet_version is {number!r}, needed a whole number")
    return number


def texts_of(row: Mapping[str, Any], operator: Operator | None) -> dict[str, str]:
    """Return all attributes of a node; where they are apart, the user's get underscores."""
    own = {str(key): value for key, value in row.get("attr", {}).items()}
    if "param" in row and operator is not None:
        known = {*operator.attrs, *row["param"]}
        own = {k if _is_hidden(k) or k in known else f"__{k}__": v for k, v in own.items()}
    given = {**row.get("param", {}), **own, **row.get("attrs", {})}
    return {str(key): value for key, value in given.items()}


def _is_hidden(key: str) -> bool:
    return key.startswith("__") or any(key.startswith(h) or key.endswith(h) for h in HIDDEN)


def divide(
    texts: Mapping[str, str], inputs: Sequence[str]
) -> tuple[dict[str, str], dict[str, dict[str, str]]]:
    """Return the attributes that stay with a node, and those of its inputs by their names.

    Parameters
    ----------
    texts : mapping of str to str
    inputs : sequence of str
        Names of the operator's inputs; none for a variable.
    """
    stay: dict[str, str] = {}
    go: dict[str, dict[str, str]] = {}
    for key, text in texts.items():
        hidden = next((h for h in HIDDEN if key == h or key.endswith(f"_{h}")), None)
        name = key.removesuffix(f"_{hidden}")
        if hidden is None:
            stay[key] = text
        elif key == hidden:
            stay[f"__{hidden}__"] = text
        elif name in inputs:
            go.setdefault(name, {})[f"__{hidden}__"] = text
        else:
            stay[key if not inputs else f"__{key}__"] = text
    return stay, go


def settings(operator: Operator, texts: Mapping[str, str], release: int) -> dict[str, str]:
    """Return the operator's attributes as the newest release writes them."""
    changed = dict(texts)
    if release < 905 and operator.name == "argmax" and changed.get("axis") == "-1":
        del changed["axis"]
    return changed


def missing(
    operator: Operator, name: str, names: Sequence[str], inputs: list[Entry], texts: Any,
    release: int,
) -> None:  # fmt: skip
    """Append variables for the inputs that old files leave out, and say how they begin."""
    user = {k: v for k, v in texts.items() if k.startswith("__") and k.endswith("__")}
    if release < 900 or len(inputs) == len(names) - len(operator.aux):
        for wanted in names[len(inputs) :]:
            inputs.append((variable(f"{name}_{wanted}", user), 0))
    for (below, _), wanted in zip(inputs, names, strict=False):
        if below.operator is None and wanted in operator.inits and release < 904:
            below.texts.setdefault("__init__", operator.inits[wanted])
