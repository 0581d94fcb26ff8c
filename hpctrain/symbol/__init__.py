"""Symbols: networks as named operator nodes, in the words of MXNet 1.x; ``hpctrain.sym``.

    data = sym.var("data")
    net = sym.FullyConnected(data, num_hidden=10, name="fc1")
    net = sym.SoftmaxOutput(net, name="softmax")
    net.list_arguments()            # data, fc1_weight, fc1_bias, softmax_label
    net.save("net-symbol.json")     # MXNet reads it, and sym.load reads MXNet's

A symbol is data: a list of heads, each an output of a `node`. An operator is a row of
`hpctrain.ops.mxnet`; a parameter that is not given becomes a variable named after the node.
`evaluate` makes a function over tensors of it, by which shapes are inferred as well; the
`executor` runs this function through captured graphs, so that a symbol trains by the same
kernels, gradients and passes as a block. ``nd`` applies the same operators to arrays at once.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hpctrain.errors import ConfigError
from hpctrain.ops.mxnet import ALIASES, OPERATORS
from hpctrain.ops.mxnet_row import Operator, text_of
from hpctrain.symbol.executor import Executor
from hpctrain.symbol.files import from_json, read
from hpctrain.symbol.names import HIDDEN, AttrScope, NameManager
from hpctrain.symbol.node import variable
from hpctrain.symbol.symbol import Symbol, compose

__all__ = [
    "AttrScope", "Executor", "Group", "NameManager", "Symbol", "Variable", "load", "load_json",
    "var",
]  # fmt: skip


def var(name: str, attr: dict[str, str] | None = None, **attrs: Any) -> Symbol:
    """Return a variable: data, a label, or a parameter.

    Parameters
    ----------
    name : str
    attr : dict of str to str, optional
    **attrs
        ``shape``, ``lr_mult``, ``wd_mult``, ``init``, or anything with two underscores on
        both sides.
    """
    texts = {_hidden(key): value for key, value in (attr or {}).items()}
    for key, value in attrs.items():
        plain = key.startswith("__") and key.endswith("__")
        if not plain and key not in ("shape", "dtype", "init", *HIDDEN):
            raise ConfigError(
                f"var: got {key!r} for {name!r}, needed shape, lr_mult or the like"
            )
        if value is not None:
            texts[key if plain else f"__{key}__"] = text_of(value)
    return Symbol([(variable(name, texts), 0)])


Variable = var


def _hidden(key: str) -> str:
    return f"__{key}__" if key in HIDDEN else key


def Group(symbols: Sequence[Symbol]) -> Symbol:  # noqa: N802 (MXNet's name)
    """Return a symbol with the outputs of several."""
    if not symbols:
        raise ConfigError("Group: got no symbols, needed at least one")
    return Symbol([head for symbol in symbols for head in symbol.heads])


def load(path: str | Path) -> Symbol:
    """Return the symbol in a JSON file, of ours or of MXNet 1.x; see `files.from_json`."""
    return Symbol(read(path))


def load_json(text: str) -> Symbol:
    """Return the symbol in JSON text; see `files.from_json`."""
    return Symbol(from_json(text))


def __getattr__(name: str) -> Any:
    """Return the function that makes nodes of the operator ``name``."""
    operator = OPERATORS.get(ALIASES.get(name, name))
    if operator is None:
        raise AttributeError(f"module 'hpctrain.symbol' has no operator {name!r}")
    return _maker(operator, name.lower())


def __dir__() -> list[str]:
    return sorted({*__all__, *OPERATORS, *ALIASES})


def _maker(operator: Operator, hint: str) -> Any:
    def make(*inputs: Any, name: str | None = None, attr: Any = None, **attrs: Any) -> Symbol:
        given: list[Any] = list(inputs)
        if len(given) == 1 and isinstance(given[0], list | tuple):
            given = list(given[0])
        slots = [*operator.inputs, *operator.aux]
        named = {key: attrs.pop(key) for key in list(attrs) if key in slots}
        for key in slots[len(given) :] if named else ():
            given.append(named.pop(key, None))
        if named:
            raise ConfigError(f"{operator.name}: got the input {next(iter(named))!r} twice")
        while given and given[-1] is None:
            given.pop()
        plain = {key: value for key, value in attrs.items() if value is not None}
        texts = {_hidden(key): value for key, value in (attr or {}).items()}
        return compose(operator, given, {**plain, **texts}, name, hint)

    make.__name__ = operator.name
    make.__doc__ = f"Make a node of MXNet's operator {operator.name}."
    return make
