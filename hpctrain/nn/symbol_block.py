"""`SymbolBlock`: a symbol as a block, with its variables as parameters."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hpctrain import symbol as sym
from hpctrain.autograd import Tensor
from hpctrain.backend import Device
from hpctrain.errors import CheckpointError, ConfigError, ShapeError
from hpctrain.nn.declared import initializer_of
from hpctrain.nn.hybrid import HybridBlock
from hpctrain.nn.initializer import RandomStream
from hpctrain.nn.parameter import Parameter
from hpctrain.symbol.arrays import named, read_arrays
from hpctrain.symbol.evaluate import infer, run
from hpctrain.symbol.node import Node, auxiliary, in_order

__all__ = ["SymbolBlock"]


class SymbolBlock(HybridBlock):
    """Compute the outputs of a symbol; what is not an input of it is a parameter.

    Parameters
    ----------
    outputs : Symbol or sequence of Symbol
    inputs : Symbol or sequence of Symbol
        Variables of it, in the order in which the block takes them.
    params : mapping of str to array_like or Tensor, optional
        First values of parameters and state by name; ``arg:`` and ``aux:`` may be in front.
    prefix : str, optional

    Notes
    -----
    The structural name of a parameter is the variable's name. Others than those in ``params``
    begin as the symbol says, or by `initialize`.
    """

    def __init__(
        self,
        outputs: sym.Symbol | Sequence[sym.Symbol],
        inputs: sym.Symbol | Sequence[sym.Symbol],
        params: Mapping[str, Any] | None = None,
        prefix: str | None = None,
    ) -> None:
        super().__init__(prefix)
        whole = outputs if isinstance(outputs, sym.Symbol) else sym.Group(outputs)
        self.symbol = whole
        self._heads, self._nodes = list(whole.heads), in_order(whole.heads)
        self._inputs = [head[0] for symbol in inputs for head in symbol.heads]
        values = {
            key.removeprefix("arg:").removeprefix("aux:"): v
            for key, v in (params or {}).items()
        }
        state = auxiliary(self._nodes)
        self._variables = [node for node in self._nodes if node.operator is None]
        for node in self._inputs:
            if node not in self._variables:
                raise ConfigError(
                    f"SymbolBlock: got the input {node.name!r}, which is not used"
                )
        self._variables = [node for node in self._variables if node not in self._inputs]
        for node in self._variables:
            self._declare(node, values.get(node.name), id(node) not in state)
        self._drawing = [node for node in self._nodes if node.operator and node.operator.random]
        for node in self._drawing:
            self.params.get(
                _stream(node), shape=(3,), dtype=np.uint64, init=RandomStream(),
                differentiable=False,
            )  # fmt: skip

    def _declare(self, node: Node, value: Any, learned: bool) -> None:
        array = None if value is None else _host(value)
        init = array
        if array is None:
            init = initializer_of(node.name, None, node.texts.get("__init__"))
        self.params.get(
            node.name,
            shape=None if array is None else array.shape,
            dtype=np.float32 if array is None else array.dtype,
            init=init,
            lr_mult=float(node.texts.get("__lr_mult__", 1)),
            wd_mult=float(node.texts.get("__wd_mult__", 1)),
            differentiable=learned,
        )

    @staticmethod
    def imports(
        symbol_file: str | Path,
        input_names: str | Sequence[str],
        param_file: str | Path | None = None,
        ctx: Device | Sequence[Device] | None = None,
        allow_missing: bool = False,
        ignore_extra: bool = False,
    ) -> "SymbolBlock":
        """Return the block of a symbol in a file, of ours or of MXNet.

        Parameters
        ----------
        symbol_file : path
        input_names : str or sequence of str
        param_file : path, optional
            ``.params`` or ``.npz``; with it the block is initialized.
        ctx : Device or sequence of Device, optional
            Where parameters are created; the host if None.
        allow_missing, ignore_extra : bool
            Whether the file may lack parameters, or have others.

        Raises
        ------
        CheckpointError
            If the file lacks a parameter, or has one too many.
        """
        symbol = sym.load(symbol_file)
        names = [input_names] if isinstance(input_names, str) else list(input_names)
        nodes = {node.name: node for node in in_order(symbol.heads) if node.operator is None}
        for name in names:
            if name not in nodes:
                raise ConfigError(
                    f"{symbol_file}: got the input {name!r}, needed one of {', '.join(nodes)}"
                )
        inputs = [sym.Symbol([(nodes[name], 0)]) for name in names]
        if param_file is None:
            return SymbolBlock(symbol, inputs)
        values = named(param_file, read_arrays(param_file))
        given = {key.removeprefix("arg:").removeprefix("aux:") for key in values}
        for what, found, allowed in (
            ("lacks", set(nodes) - given - set(names), allow_missing),
            ("has, and the symbol has not,", given - set(nodes), ignore_extra),
        ):
            if found and not allowed:
                raise CheckpointError(f"{param_file}: {what} {', '.join(sorted(found))}")
        block = SymbolBlock(symbol, inputs, values)
        block.initialize(ctx=ctx)
        return block

    def infer_shape(self, *args: Any) -> None:
        """Take the shapes of the parameters that follow from those of the inputs."""
        shapes = {n.name: x.shape for n, x in zip(self._inputs, args, strict=True)}
        types = {n.name: x.dtype for n, x in zip(self._inputs, args, strict=True)}
        own = {node.name: self.params[node.name] for node in self._variables}
        shapes.update({n: p.shape for n, p in own.items() if p.known and p.shape is not None})
        found = infer(self._heads, shapes, types)[0]
        for name, parameter in own.items():
            if name in found:
                parameter.complete(found[name].shape)

    def forward(self, x: Any, *args: Any) -> Any:
        """Return the output, or a list of them if there are several."""
        given = (x, *args)
        if len(given) != len(self._inputs):
            names = ", ".join(node.name for node in self._inputs)
            raise ShapeError(f"{self.name}: got {len(given)} inputs, needed {names}")
        values = {id(n): v for n, v in zip(self._inputs, given, strict=True)}
        values.update({id(n): self._of(n.name, x) for n in self._variables})
        streams = {id(n): self._of(_stream(n), x) for n in self._drawing}
        outputs = run(self._nodes, self._heads, values, streams)
        return outputs[0] if len(outputs) == 1 else outputs

    def _of(self, name: str, x: Any) -> Any:
        parameter: Parameter = self.params[name]
        return parameter.data(x.device)


def _stream(node: Node) -> str:
    return f"{node.name}_stream"


def _host(value: Any) -> np.ndarray:
    return value.asnumpy() if isinstance(value, Tensor) else np.asarray(value)
