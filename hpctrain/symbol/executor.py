"""A symbol bound to arrays on one device: forward, backward, in MXNet's words."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hpctrain.autograd import Spec, Tensor, backward, pause, record
from hpctrain.backend import Device, empty, to_device
from hpctrain.errors import ConfigError, ShapeError
from hpctrain.graph.cached import CachedGraph
from hpctrain.graph.pool import Pool
from hpctrain.symbol.evaluate import run
from hpctrain.symbol.node import Entry, auxiliary, in_order
from hpctrain.symbol.streams import make_stream

__all__ = ["Executor"]


class Executor:
    """Runs a symbol through captured graphs; made by ``Symbol.bind`` or ``simple_bind``.

    Parameters
    ----------
    heads : sequence of (Node, int)
    ctx : Device
    args, aux : mapping of str to Tensor
        Arrays on ``ctx``; used as they are, not copied.
    grads : mapping of str to Tensor
        Where gradients go; made where they are wanted and not given.
    requests : mapping of str to str
        ``write``, ``add`` or ``null`` for each argument.
    seed : int
        Of the random numbers that ``Dropout`` draws.
    pool : Pool, optional
        Working memory, which executors share that do not run at the same time.

    Attributes
    ----------
    ctx : Device
    arg_dict, grad_dict, aux_dict : dict of str to Tensor
        The arrays by name; ``grad_dict`` has those only that are wanted.
    outputs : list of Tensor
        Of the last `forward`.
    """

    def __init__(  # noqa: PLR0913 (what a symbol is bound to)
        self,
        heads: Sequence[Entry],
        ctx: Device,
        args: Mapping[str, Tensor],
        grads: Mapping[str, Tensor],
        requests: Mapping[str, str],
        aux: Mapping[str, Tensor],
        seed: int = 0,
        pool: Pool | None = None,
    ) -> None:
        self._heads, self.ctx, self._requests = list(heads), ctx, dict(requests)
        self._nodes = in_order(heads)
        state = auxiliary(self._nodes)
        plain = [node for node in self._nodes if node.operator is None]
        self._arguments = [node for node in plain if id(node) not in state]
        self._states = [node for node in plain if id(node) in state]
        self.arg_dict = {name: self._argument(name, args[name], grads) for name in args}
        self.aux_dict = {name: _wrapped(tensor) for name, tensor in aux.items()}
        self._drawing = [node for node in self._nodes if node.operator and node.operator.random]
        self._streams = [make_stream(seed, node.name, ctx) for node in self._drawing]
        self._graph = CachedGraph(self._function, [*self.aux_arrays, *self._streams], pool)
        self.pool = self._graph.pool
        self.outputs: list[Any] = []

    def _argument(self, name: str, tensor: Tensor, grads: Mapping[str, Tensor]) -> Any:
        """Wrap an argument's array in a leaf that gradients flow into."""
        leaf = _wrapped(tensor)
        leaf.attach_grad(self._requests[name])
        if name in grads and leaf.grad is not None:
            if grads[name].spec != leaf.spec:
                raise ShapeError(
                    f"bind: got {grads[name].spec} for the gradient of {name!r}, needed "
                    f"{leaf.spec}"
                )
            leaf.grad = grads[name]
        return leaf

    def _function(self, *args: Any) -> list[Any]:
        leaves = self.aux_arrays
        values = {id(n): t for n, t in zip(self._arguments, args, strict=True)}
        values.update({id(n): t for n, t in zip(self._states, leaves, strict=True)})
        streams = {id(n): t for n, t in zip(self._drawing, self._streams, strict=True)}
        return run(self._nodes, self._heads, values, streams)

    @property
    def arg_arrays(self) -> list[Any]:
        """The arguments, in the order of ``list_arguments``."""
        return [self.arg_dict[node.name] for node in self._arguments]

    def request(self, name: str) -> str:
        """Return ``write``, ``add`` or ``null``: what becomes of an argument's gradient."""
        return self._requests[name]

    @property
    def grad_arrays(self) -> list[Any]:
        """Their gradients, None where none is wanted."""
        return [tensor.grad for tensor in self.arg_arrays]

    @property
    def grad_dict(self) -> dict[str, Any]:
        """The gradients that are wanted, by name of the argument."""
        return {n: t.grad for n, t in self.arg_dict.items() if t.grad is not None}

    @property
    def output_dict(self) -> dict[str, Any]:
        """The outputs of the last `forward`, by the names of ``list_outputs``."""
        names = [node.output_names()[place] for node, place in self._heads]
        return dict(zip(names, self.outputs, strict=True)) if self.outputs else {}

    @property
    def aux_arrays(self) -> list[Any]:
        """The state, in the order of ``list_auxiliary_states``."""
        return [self.aux_dict[node.name] for node in self._states]

    def set_row(self, row: int) -> None:
        """Say which row of the whole batch the next first row is, for random numbers.

        A batch that is divided over devices and ranks then draws what it would draw whole.
        """
        for stream in self._streams:
            stream.array[2] = row

    def skip(self) -> None:
        """Let a training pass go by without rows, so that random numbers stay in step."""
        for stream in self._streams:
            stream.array[1] += np.uint64(1)

    def forward(self, is_train: bool = False, **values: Any) -> list[Any]:
        """Compute the outputs.

        Parameters
        ----------
        is_train : bool
            Whether layers behave as in training, and `backward` follows.
        **values : Tensor or array_like
            New elements of arguments. Another number of rows than the bound one is taken,
            too, with a new array for the gradient if one is wanted.

        Returns
        -------
        list of Tensor
            Also in ``outputs``; new arrays in each call.
        """
        for name, value in values.items():
            self._set(name, value)
        with record(True) if is_train else pause():
            self.outputs = list(self._graph(*self.arg_arrays))
        return self.outputs

    def _set(self, name: str, value: Any) -> None:
        if name not in self.arg_dict:
            raise ConfigError(
                f"forward: got {name!r}, needed one of {', '.join(self.arg_dict)}"
            )
        leaf = self.arg_dict[name]
        given = value.array if isinstance(value, Tensor) else np.asarray(value)
        if given.shape != leaf.shape:
            wanted = self._requests[name]
            if wanted != "null" and given.shape[1:] != leaf.shape[1:]:
                raise ShapeError(
                    f"forward: got shape {given.shape} for {name!r}, needed {leaf.shape}, "
                    "or another number of rows"
                )
            array = empty(given.shape, leaf.dtype, self.ctx)
            leaf = self.arg_dict[name] = Tensor.from_value(array, Spec.of(array), self.ctx)
            leaf.attach_grad(wanted)
        leaf.array[...] = to_device(given, self.ctx)

    def backward(self, out_grads: Any = None) -> None:
        """Compute the gradients of the last ``forward(is_train=True)`` into ``grad_dict``.

        Parameters
        ----------
        out_grads : Tensor or sequence of Tensor, optional
            Cotangents of the outputs; ones if None, which output operators do not look at.
        """
        heads = self.outputs
        given = [out_grads] if isinstance(out_grads, Tensor) else out_grads
        given = [None] * len(heads) if given is None else list(given)
        pairs = [pair for pair in zip(heads, given, strict=True) if pair[0].requires_grad]
        if not pairs:
            raise ShapeError(
                "backward: the outputs do not depend on an argument with a gradient, or "
                "forward was not called with is_train=True"
            )
        backward([head for head, _ in pairs], [cotangent for _, cotangent in pairs])

    def copy_params_from(
        self, arg_params: Mapping[str, Any], aux_params: Mapping[str, Any] | None = None,
        allow_extra_params: bool = False,
    ) -> None:  # fmt: skip
        """Copy arrays into arguments and state, by name."""
        for given, own in ((arg_params, self.arg_dict), (aux_params or {}, self.aux_dict)):
            for name, value in given.items():
                if name in own:
                    array = value.array if isinstance(value, Tensor) else np.asarray(value)
                    own[name].array[...] = to_device(array, self.ctx)
                elif not allow_extra_params:
                    raise ConfigError(f"copy_params_from: got {name!r}, which is not there")


def _wrapped(tensor: Tensor) -> Any:
    """Return another tensor of the same array, so that the caller's is left as it is."""
    return Tensor.from_value(tensor.array, tensor.spec, tensor.device)
