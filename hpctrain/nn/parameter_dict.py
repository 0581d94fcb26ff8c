"""Parameters by name."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hpctrain.backend import Device
from hpctrain.errors import ConfigError
from hpctrain.nn.parameter import Parameter

__all__ = ["ParameterDict"]


class ParameterDict(Mapping[str, Parameter]):
    """An ordered mapping of names to parameters.

    Parameters
    ----------
    prefix : str
        Put before the names of parameters that `get` makes, in messages.
    shared : ParameterDict, optional
        Where `get` looks first, so that two blocks share parameters.
    """

    def __init__(self, prefix: str = "", shared: "ParameterDict | None" = None) -> None:
        self.prefix = prefix
        self._shared = shared
        self._parameters: dict[str, Parameter] = {}

    def __getitem__(self, name: str) -> Parameter:
        return self._parameters[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._parameters)

    def __len__(self) -> int:
        return len(self._parameters)

    def __repr__(self) -> str:
        lines = [f"  {name}: {parameter}" for name, parameter in self.items()]
        return "\n".join([f"{type(self).__name__} {self.prefix}(", *lines, ")"])

    def add(self, name: str, parameter: Parameter) -> None:
        """Add ``parameter`` under a name that is free."""
        if name in self._parameters:
            raise ConfigError(f"parameters: got {name!r} twice, needed different names")
        self._parameters[name] = parameter

    def get(self, name: str, default: Any = None, **args: Any) -> Any:
        """Return the parameter ``name``; make it with ``args`` if it is not there.

        Parameters
        ----------
        name : str
        default : Any
            Not used; a mapping's signature asks for it.
        **args
            Those of `Parameter`.
        """
        known = self._parameters.get(name)
        if known is None and self._shared is not None:
            known = self._shared._parameters.get(name)
        if known is None:
            known = Parameter(self.prefix + name, **args)
        elif "shape" in args:
            known.check(args["shape"])
        self._parameters[name] = known
        return known

    def select(self, pattern: str) -> "ParameterDict":
        """Return the parameters whose names match the regular expression from their start."""
        try:
            wanted = re.compile(pattern)
        except re.error as error:
            raise ConfigError(
                f"parameters: got {pattern!r}, needed a regular expression: {error}"
            ) from None
        chosen = ParameterDict(self.prefix)
        for name, parameter in self.items():
            if wanted.match(name):
                chosen.add(name, parameter)
        return chosen

    def initialize(
        self,
        init: Any = None,
        ctx: Device | Sequence[Device] | None = None,
        seed: int = 0,
        force_reinit: bool = False,
    ) -> None:
        """Initialise each parameter under its name here; see `Parameter.initialize`."""
        for name, parameter in self.items():
            parameter.initialize(init, ctx, seed, name, force_reinit)

    def zero_grad(self) -> None:
        """Set all gradients to zero."""
        for parameter in self.values():
            parameter.zero_grad()

    def setattr(self, name: str, value: Any) -> None:
        """Set an attribute of every parameter, such as ``grad_req`` or ``lr_mult``."""
        for parameter in self.values():
            setattr(parameter, name, value)
