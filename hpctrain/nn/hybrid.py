"""Blocks that can be captured as a graph and run as a plan."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hpctrain.autograd.mode import capturing
from hpctrain.backend import CPU, Device
from hpctrain.control.nested import pack, unpack
from hpctrain.errors import ConfigError, ShapeError
from hpctrain.graph.cached import CachedGraph, Statistics
from hpctrain.graph.recent import Recent
from hpctrain.nn.block import Block
from hpctrain.nn.functions import F
from hpctrain.nn.parameter import Parameter
from hpctrain.nn.parameter_dict import ParameterDict

__all__ = ["HybridBlock", "device_of", "pack", "unpack"]

_FLAGS = frozenset(
    {"static_alloc", "static_shape", "inline_limit", "forward_bulk_size", "backward_bulk_size"}
)


def device_of(args: Sequence[Any]) -> Device:
    """Return where the first tensor in ``args`` lives; the host if there is none."""
    tensors: list[Any] = []
    pack(tuple(args), tensors)
    return tensors[0].device if tensors else CPU


@dataclass(slots=True)
class _Captured:
    """A captured graph, and the form of what the block returns."""

    graph: CachedGraph
    forms: list[Any]


class HybridBlock(Block):
    """A block that behaves the same run operation by operation and run as a graph.

    A subclass defines either ``forward(x, ...)``, where a parameter's value is
    ``self.weight.data(x.device)``, or MXNet's ``hybrid_forward(F, x, ..., weight)``, where
    ``F`` has the functions of `hpctrain.ops`, and `hpctrain.control` as ``F.contrib``;
    parameters arrive by attribute name.
    """

    def __init__(self, prefix: str | None = None, params: ParameterDict | None = None) -> None:
        super().__init__(prefix, params)
        self._active = False
        self._captured: Recent[_Captured] = Recent()

    def _changed(self) -> None:
        super()._changed()
        object.__setattr__(self, "_captured", Recent())

    def hybridize(self, active: bool = True, **flags: Any) -> None:
        """Run this block as a captured graph from now on, or no longer.

        Parameters
        ----------
        active : bool
        **flags
            MXNet's ``static_alloc``, ``static_shape`` and so on: accepted, and without effect,
            because plans always have static shapes and memory.

        Notes
        -----
        A graph is captured anew for each shape, dtype and mode of the inputs. Hooks of
        children run at capture only.
        """
        unknown = sorted(set(flags) - _FLAGS)
        if unknown:
            raise ConfigError(
                f"hybridize: got {unknown[0]!r}, needed one of {', '.join(sorted(_FLAGS))}"
            )
        self._active = active
        self._captured = Recent()
        super().hybridize(active, **flags)

    def _run(self, *args: Any) -> Any:
        if self._active and not capturing():
            return self._run_captured(args)
        return super()._run(*args)

    def _run_captured(self, args: tuple[Any, ...]) -> Any:
        tensors: list[Any] = []
        form = pack(args, tensors)
        if not tensors:
            raise ShapeError(
                f"{self.name}: got no tensor to run a graph on, needed one or more"
            )
        key = (tensors[0].device, form)
        if key not in self._captured:
            self.complete_shapes(*args)
        known = self._captured.get(key, lambda: self._captured_for(tensors[0].device, form))
        results = known.graph(*tensors)
        return unpack(known.forms[0], iter(results))

    def _captured_for(self, device: Device, form: Any) -> _Captured:
        forms: list[Any] = []

        def function(*tensors: Any) -> tuple[Any, ...]:
            results: list[Any] = []
            plain = super(HybridBlock, self)._run(*unpack(form, iter(tensors)))
            forms[:] = [pack(plain, results)]
            return tuple(results)

        leaves = [parameter.data(device) for parameter in self.collect_params().values()]
        pool = next((known.graph.pool for known in self._captured), None)
        return _Captured(CachedGraph(function, leaves, pool), forms)

    def statistics(self) -> Statistics:
        """Return how often this block was run as a graph and captured, and what that keeps.

        Counted since `hybridize`, or since parts were added. A kind of call is captured anew
        when it has not been seen, or not among the last 64.
        """
        found = [known.graph.statistics() for known in self._captured]
        return Statistics(
            sum(each.calls for each in found),
            sum(each.captures for each in found),
            sum(each.kept for each in found),
            max((each.arena_bytes for each in found), default=0),  # they share one pool
        )

    def forward(self, x: Any, *args: Any) -> Any:
        """Return `hybrid_forward` of the inputs and the block's own parameters."""
        device = device_of((x, *args))
        own = {k: m.data(device) for k, m in self._members.items() if isinstance(m, Parameter)}
        return self.hybrid_forward(F, x, *args, **own)

    def hybrid_forward(self, F: Any, x: Any, *args: Any, **params: Any) -> Any:  # noqa: N803
        """Compute the outputs with the functions of ``F``; to be overridden."""
        raise NotImplementedError(f"{type(self).__name__} defines no forward or hybrid_forward")
