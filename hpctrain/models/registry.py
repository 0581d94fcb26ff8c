"""Models by name."""

import importlib
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from hpctrain.errors import ConfigError
from hpctrain.models.cosmo import Cosmo
from hpctrain.models.gpt import GPT
from hpctrain.models.imported import load
from hpctrain.models.lenet import LeNet
from hpctrain.models.lstm import LSTMModel
from hpctrain.models.mlp import MLP
from hpctrain.models.resnet import ResNet
from hpctrain.models.seq2seq import Seq2Seq
from hpctrain.nn import Block

__all__ = ["create", "names"]


def resnet20(**args: Any) -> ResNet:
    """Return the residual network of 20 layers."""
    return ResNet(**{"depth": 20, **args})


_KINDS: dict[str, Callable[..., Block]] = {
    "mlp": MLP, "lenet": LeNet, "resnet": ResNet, "resnet20": resnet20, "lstm": LSTMModel,
    "gpt": GPT, "cosmo": Cosmo, "seq2seq": Seq2Seq,
}  # fmt: skip


def names() -> tuple[str, ...]:
    """Return the names of the models in the zoo."""
    return tuple(_KINDS)


def create(name: str, **args: Any) -> Block:
    """Make a model.

    Parameters
    ----------
    name : str
        One of `names`, ``symbol:FOLDER`` for what ``import-mxnet`` wrote, or
        ``package.module:function`` for a function or class that can be imported and returns a
        block.
    **args
        Given to it.

    Raises
    ------
    ConfigError
        If there is no such model, or it does not take the arguments.
    """
    if name.startswith("symbol:"):
        make: Callable[..., Any] | None = partial(load, name.removeprefix("symbol:"))
    else:
        make = _imported(name) if ":" in name else _KINDS.get(name)
    if make is None:
        raise ConfigError(
            f"model: got {name!r}, needed one of {', '.join(_KINDS)}, module:function "
            "or symbol:FOLDER"
        )
    try:
        inspect.signature(make).bind(**args)
    except (TypeError, ValueError) as error:  # the latter: it shows no signature
        raise ConfigError(f"model {name}: {error}") from None
    net = make(**args)
    if not isinstance(net, Block):
        raise ConfigError(f"model {name}: got a {type(net).__name__}, needed a nn.Block")
    return net


def _imported(name: str) -> Callable[..., Any]:
    module, _, function = name.partition(":")
    try:
        return getattr(importlib.import_module(module), function)
    except ModuleNotFoundError as error:
        if error.name is not None and (module + ".").startswith(error.name + "."):
            raise ConfigError(f"model: there is no module {module!r} to import") from None
        raise
    except AttributeError:
        raise ConfigError(f"model: the module {module!r} has no {function!r}") from None
