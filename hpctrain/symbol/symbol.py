"""`Symbol`: outputs of named operator nodes, which can be combined, saved, and bound."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hpctrain.autograd import Spec, Tensor
from hpctrain.backend import CPU, Device
from hpctrain.errors import ConfigError, ShapeError
from hpctrain.ops.mxnet import OPERATORS
from hpctrain.ops.mxnet_row import Operator, Shape, text_of
from hpctrain.symbol.binding import Given, by_name, gradient_requests, zeros
from hpctrain.symbol.evaluate import infer
from hpctrain.symbol.executor import Executor
from hpctrain.symbol.files import to_json
from hpctrain.symbol.names import HIDDEN
from hpctrain.symbol.node import Entry, Node, apply_operator, auxiliary, in_order

__all__ = ["Symbol", "compose"]

_LOG = logging.getLogger(__name__)


class Symbol:
    """One or several outputs of a network of operators.

    Notes
    -----
    Made by ``sym.var``, by operators such as ``sym.FullyConnected``, by `Group` or from a
    file. A symbol holds no arrays; `bind` gives it some.
    """

    __array_priority__ = 1000.0
    __array_ufunc__ = None

    def __init__(self, heads: Sequence[Entry]) -> None:
        self.heads = tuple(heads)

    # What is in it

    @property
    def name(self) -> str | None:
        """Name of the node; None for a group."""
        return self.heads[0][0].name if len({id(node) for node, _ in self.heads}) == 1 else None

    def __repr__(self) -> str:
        return f"<Symbol {self.name or ', '.join(self.list_outputs())}>"

    def __len__(self) -> int:
        return len(self.heads)

    def __iter__(self) -> Iterator["Symbol"]:
        return (Symbol([head]) for head in self.heads)

    def __getitem__(self, which: int | str) -> "Symbol":
        if isinstance(which, str):
            names = self.list_outputs()
            if names.count(which) != 1:
                raise ConfigError(
                    f"symbol: got the output {which!r}, needed one of {', '.join(names)}"
                )
            which = names.index(which)
        return Symbol([self.heads[which]])

    def _variables(self, state: bool) -> list[str]:
        nodes = in_order(self.heads)
        states = auxiliary(nodes)
        return [n.name for n in nodes if n.operator is None and (id(n) in states) == state]

    def list_arguments(self) -> list[str]:
        """Return the names of data and parameters, in the order of MXNet."""
        return self._variables(state=False)

    def list_auxiliary_states(self) -> list[str]:
        """Return the names of state that training changes without gradients."""
        return self._variables(state=True)

    def list_inputs(self) -> list[str]:
        """Return arguments and state in the order in which they are met."""
        return [node.name for node in in_order(self.heads) if node.operator is None]

    def list_outputs(self) -> list[str]:
        """Return the names of the outputs."""
        return [node.output_names()[place] for node, place in self.heads]

    def get_internals(self) -> "Symbol":
        """Return the group of all outputs of all nodes."""
        nodes = in_order(self.heads)
        return Symbol([(node, i) for node in nodes for i in range(node.outputs)])

    def get_children(self) -> "Symbol | None":
        """Return the group of the inputs of the node; None for a variable."""
        inputs = [entry for node, _ in self.heads for entry in node.inputs]
        return Symbol(inputs) if inputs else None

    # Attributes

    def attr(self, key: str) -> str | None:
        """Return an attribute of the node, None if it is not set."""
        texts = self.heads[0][0].texts
        return texts.get(key, texts.get(f"__{key}__"))

    def list_attr(self) -> dict[str, str]:
        """Return the attributes of the node."""
        return _shown(self.heads[0][0])

    def attr_dict(self) -> dict[str, dict[str, str]]:
        """Return the attributes of all nodes by name, without those that have none."""
        nodes = in_order(self.heads)
        return {node.name: _shown(node) for node in nodes if node.texts}

    # Shapes

    def infer_shape(self, **shapes: Sequence[int]) -> tuple[Any, Any, Any]:
        """Infer the shapes of arguments, outputs and state from those of some arguments.

        Returns
        -------
        (arguments, outputs, state) : lists of tuple of int
            Three times None, with a warning in the log, if not all could be inferred.

        Raises
        ------
        ShapeError
            If shapes do not fit together.
        """
        found = self.infer_shape_partial(**shapes)
        unknown = [n for n, s in zip(self.list_arguments(), found[0], strict=True) if s is None]
        if unknown or None in found[1]:
            _LOG.warning("infer_shape: the shapes of %s are not known", ", ".join(unknown))
            return None, None, None
        return found

    def infer_shape_partial(
        self, **shapes: Sequence[int]
    ) -> tuple[list[Shape | None], list[Shape | None], list[Shape | None]]:
        """Return what `infer_shape` returns, with None in the place of unknown shapes."""
        variables, outputs = infer(self.heads, shapes)

        def shape_of(spec: Spec | None) -> Shape | None:
            return None if spec is None else spec.shape

        return (
            [shape_of(variables.get(name)) for name in self.list_arguments()],
            [shape_of(spec) for spec in outputs],
            [shape_of(variables.get(name)) for name in self.list_auxiliary_states()],
        )

    # Files

    def tojson(self) -> str:
        """Return the symbol as JSON in the layout of MXNet 1.x."""
        return to_json(self.heads)

    def save(self, path: str | Path) -> None:
        """Write `tojson` to a file."""
        Path(path).write_text(self.tojson(), "utf-8")

    # Arrays

    def simple_bind(
        self,
        ctx: Device = CPU,
        grad_req: Any = "write",
        type_dict: Mapping[str, Any] | None = None,
        seed: int = 0,
        **shapes: Sequence[int],
    ) -> Executor:
        """Bind to new arrays of zeros, of shapes inferred from ``shapes``.

        Parameters
        ----------
        ctx : Device
        grad_req : str, sequence or mapping
            ``write``, ``add`` or ``null``, for all arguments or for each.
        type_dict : mapping of str to dtype, optional
            Of arguments; float32 where nothing is said.
        seed : int
            Of random numbers that the operators draw.
        **shapes : tuple of int
            By name of an argument.
        """
        specs = infer(self.heads, shapes, type_dict)[0]
        names = self.list_arguments()
        for name in [*names, *self.list_auxiliary_states()]:
            if name not in specs:
                raise ShapeError(f"simple_bind: the shape of {name!r} is not known; give it")
        args = {name: zeros(specs[name], ctx) for name in names}
        aux = {name: zeros(specs[name], ctx) for name in self.list_auxiliary_states()}
        return Executor(
            self.heads, ctx, args, {}, gradient_requests(names, grad_req), aux, seed
        )

    def bind(  # noqa: PLR0913 (MXNet's signature)
        self,
        ctx: Device,
        args: Given,
        args_grad: Given = None,
        grad_req: Any = "write",
        aux_states: Given = None,
        seed: int = 0,
        shared_exec: Executor | None = None,
    ) -> Executor:
        """Bind to arrays of the caller, which are used as they are.

        Parameters
        ----------
        ctx : Device
            Where the arrays lie.
        args : sequence or mapping of Tensor
            One for each argument.
        args_grad : sequence or mapping of Tensor, optional
            Where gradients are written; only these are computed if it is a mapping.
        grad_req : str, sequence or mapping
        aux_states : sequence or mapping of Tensor, optional
        seed : int
        shared_exec : Executor, optional
            Whose working memory is used; only one of them may run at a time.
        """
        names = self.list_arguments()
        grads = by_name("args_grad", names, args_grad, partly=True)
        requests = gradient_requests(names, grad_req)
        if args_grad is not None:
            requests = {n: r if n in grads else "null" for n, r in requests.items()}
        aux = by_name("aux_states", self.list_auxiliary_states(), aux_states)
        given = by_name("args", names, args)
        pool = None if shared_exec is None else shared_exec.pool
        return Executor(self.heads, ctx, given, grads, requests, aux, seed, pool)

    def eval(self, ctx: Device = CPU, **args: Any) -> list[Any]:
        """Return the outputs for arguments and state given by name, without gradients."""
        given = {name: value if isinstance(value, Tensor) else Tensor(value, device=ctx)
                 for name, value in args.items()}  # fmt: skip
        return self.bind(ctx, given, grad_req="null", aux_states=given).forward()

    def __neg__(self) -> "Symbol":
        return _with_scalar("_mul_scalar", self, -1.0)

    def __pow__(self, other: Any) -> "Symbol":
        if isinstance(other, Symbol):
            return compose(OPERATORS["broadcast_power"], [self, other], {}, hint="_power")
        return _with_scalar("_power_scalar", self, other)


def compose(
    operator: Operator,
    inputs: Sequence[Symbol | None],
    attrs: Mapping[str, Any],
    name: str | None = None,
    hint: str = "",
) -> Symbol:
    """Apply an operator to symbols; see `hpctrain.symbol.node.apply_operator`."""
    entries: list[Entry | None] = []
    for symbol in inputs:
        if symbol is None:
            entries.append(None)
        elif isinstance(symbol, Symbol) and (len(symbol) == 1 or operator.count):
            entries += symbol.heads
        else:
            raise ConfigError(
                f"{operator.name}: got {symbol!r} for an input, needed a symbol of one output"
            )
    texts = {key: text_of(value) for key, value in attrs.items()}
    if operator.count:
        texts.setdefault(operator.count, str(len(entries)))
    node = apply_operator(operator, entries, texts, name, hint)
    return Symbol([(node, i) for i in range(node.outputs)])


def _with_scalar(name: str, symbol: Symbol, scalar: Any) -> Symbol:
    if not isinstance(scalar, int | float | np.number):
        raise ConfigError(f"symbol: got {scalar!r}, needed a symbol or a number")
    hint = name.replace("_scalar", "scalar")
    return compose(OPERATORS[name], [symbol], {"scalar": scalar}, hint=hint)


def _arithmetic(plain: str, scalar: str, hint: str) -> Any:
    def method(self: Symbol, other: Any) -> Symbol:
        if isinstance(other, Symbol):
            return compose(OPERATORS[plain], [self, other], {}, hint=hint)
        return _with_scalar(scalar, self, other)

    return method


for _sign, _plain, _forward, _swapped in (
    ("add", "elemwise_add", "plus", "plus"), ("sub", "elemwise_sub", "minus", "rminus"),
    ("mul", "elemwise_mul", "mul", "mul"), ("truediv", "elemwise_div", "div", "rdiv"),
):  # fmt: skip
    setattr(Symbol, f"__{_sign}__", _arithmetic(_plain, f"_{_forward}_scalar", f"_{_forward}"))
    setattr(Symbol, f"__r{_sign}__", _arithmetic(_plain, f"_{_swapped}_scalar", f"_{_forward}"))


def _shown(node: Node) -> dict[str, str]:
    plain = {f"__{key}__": key for key in HIDDEN}
    return {**node.texts, **{plain[k]: v for k, v in node.texts.items() if k in plain}}
