"""The interpreter of plans: bind a plan to arrays once, then run its steps in order.

Everything that can be decided at binding is: the arena is cut into arrays, views are made,
and a step becomes one call with its arguments. What changes from run to run are the inputs,
and those outputs that are handed out.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from hpctrain import backend
from hpctrain.autograd import Spec
from hpctrain.errors import ShapeError
from hpctrain.graph.ir import Node, describe_attrs
from hpctrain.graph.plan import Plan
from hpctrain.graph.pool import Pool
from hpctrain.graph.strips import Strip

__all__ = ["Executor"]


class Executor:
    """A plan bound to arrays on one device.

    Parameters
    ----------
    plan : Plan
    leaves : sequence of array
        One for each leaf of the graph, of its shape and dtype, on ``device``.
    outputs : mapping of int to array
        Arrays to write outputs into, by position; the others are given at each run.
    device : Device
    pool : Pool, optional
        Where the arena is; shared with executors that do not run at the same time.
    strips : sequence of Strip, optional
        The steps, if some are carried out in strips: see `hpctrain.graph.strips`.
    held_bytes : int
        Inputs of up to so many bytes are copied to arrays of its own, to which kernels can be
        bound: no outcome may then be an input, or a view of one.

    Notes
    -----
    Not thread-safe: one run at a time, since all runs share the arena.
    """

    def __init__(  # noqa: PLR0913 (what a run is bound to)
        self,
        plan: Plan,
        leaves: Sequence[Any],
        outputs: Mapping[int, Any] | None = None,
        device: backend.Device = backend.CPU,
        pool: Pool | None = None,
        strips: Sequence[Strip] | None = None,
        held_bytes: int = 0,
    ) -> None:
        self._strips = strips or [Strip(place) for place in range(len(plan.graph.nodes))]
        self.plan = plan
        self.graph = plan.graph
        self.device = device
        self.pool = pool or Pool()
        self._fixed = dict(outputs or {})
        self._free = [i for i in range(len(self.graph.outputs)) if i not in self._fixed]
        self._held = {
            value: backend.empty(spec.shape, spec.dtype, device)
            for value, spec in ((v, self.graph.specs[v]) for v in self.graph.inputs)
            if spec.nbytes <= held_bytes
        }
        self.bind(leaves)

    def bind(self, leaves: Sequence[Any]) -> None:
        """Bind the leaves (anew) and make the list of calls."""
        graph = self.graph
        self.leaves = list(leaves)
        self.arena = self.pool.arena(self.plan.arena_bytes, self.device)
        self._values: dict[int, Any] = dict(graph.constants)
        for value, array in zip(graph.leaves, leaves, strict=True):
            self._check(array, graph.specs[value], f"leaf %{value}")
            self._values[value] = array
        for position, array in self._fixed.items():
            value = graph.outputs[position]
            self._check(array, graph.specs[value], f"output {position}")
            self._values[value] = array
        for value, offset in self.plan.offsets.items():
            self._values[value] = self._cut(graph.specs[value], offset)
        self._values.update(self._held)
        fed = {v for v in graph.inputs if v not in self._held}
        self._moving = {*fed, *(graph.outputs[i] for i in self._free)}
        self.steps = [self._strip(strip) for strip in self._strips]
        # Inputs and outputs that change must not keep arrays of an earlier run alive.
        self._changing = tuple(self._moving)

    def _check(self, array: Any, spec: Spec, what: str) -> None:
        if Spec.of(array) != spec:
            raise ShapeError(f"plan: got {Spec.of(array)} for {what}, needed {spec}")

    def _cut(self, spec: Spec, offset: int) -> Any:
        return self.arena[offset : offset + spec.nbytes].view(spec.dtype).reshape(spec.shape)

    def _strip(self, strip: Strip) -> Callable[[], None]:
        """Make the call that carries out a node, or some rows of its output."""
        node = self.graph.nodes[strip.node]
        if strip.rows is None:
            return self._step(strip.node, node)
        attrs, (start, stop) = dict(node.attrs), strip.rows
        assert node.row.part is not None, "only what can be divided is in strips"
        ins = node.row.part([self._values[v] for v in node.inputs], start, stop, **attrs)
        outs = [self._values[node.outputs[0]][start:stop]]
        assert ins is not None, "what may be in strips is known by the specs"
        return self._ready(node, ins, outs, self._room(strip.node, node, ins, attrs), attrs)

    def _room(self, place: int, node: Node, ins: Sequence[Any], attrs: Any) -> list[Any]:
        """Return scratch for a strip: that of the whole node where it is large enough."""
        if node.row.scratch is None:
            return []
        wanted = node.row.scratch([Spec.of(a) for a in ins], **attrs)
        planned = self.plan.scratch.get(place, ())
        if len(planned) == len(wanted) and all(
            spec.nbytes >= want.nbytes for (spec, _), want in zip(planned, wanted, strict=True)
        ):
            return [self._cut(w, at) for w, (_, at) in zip(wanted, planned, strict=True)]
        return [backend.empty(w.shape, w.dtype, self.device) for w in wanted]

    def _step(self, place: int, node: Node) -> Callable[[], None]:
        """Make the call that carries out one node."""
        attrs = dict(node.attrs)
        moving = self._moving.intersection([*node.inputs, *node.outputs])
        if node.outputs[0] in self.plan.views:
            if moving:
                self._moving.add(node.outputs[0])
                return partial(self._look, node, attrs)
            self._values[node.outputs[0]] = self._view(node, attrs)
            return _nothing
        scratch = [self._cut(spec, at) for spec, at in self.plan.scratch.get(place, ())]
        if moving:
            kernel = partial(node.row.kernel, self.device.module, **attrs)
            return partial(self._call, node, kernel, scratch)
        ins = [self._values[v] for v in node.inputs]
        return self._ready(node, ins, [self._values[v] for v in node.outputs], scratch, attrs)

    def _ready(
        self, node: Node, ins: Any, outs: Any, scratch: Any, attrs: dict[str, Any]
    ) -> Callable[[], None]:
        """Make the call that carries out a node on arrays that stay."""
        xp = self.device.module
        if node.row.bind is not None:
            ready = node.row.bind(xp, ins, outs, scratch, **attrs)
            if ready is not None:
                return ready
        return partial(node.row.kernel, xp, ins, outs, scratch, **attrs)

    def _view(self, node: Node, attrs: dict[str, Any]) -> Any:
        assert node.row.view is not None
        seen = node.row.view(self._values[node.inputs[0]], **attrs)
        if seen is None:
            raise ShapeError(
                f"plan: {node} was planned as a view, but the array is not contiguous"
            )
        return seen

    def _look(self, node: Node, attrs: dict[str, Any]) -> None:
        self._values[node.outputs[0]] = self._view(node, attrs)

    def _call(self, node: Node, kernel: Callable[..., None], scratch: list[Any]) -> None:
        values = self._values
        kernel([values[v] for v in node.inputs], [values[v] for v in node.outputs], scratch)

    def feed(self, inputs: Sequence[Any], outputs: Sequence[Any] = ()) -> None:
        """Set the inputs of the next run, and where its outputs go that were not bound.

        Parameters
        ----------
        inputs : sequence of array
            C-contiguous, on the device; not copied, but for small ones: they must stay as they
            are until the run has ended.
        outputs : sequence of array
        """
        graph = self.graph
        if self.pool.arena(self.plan.arena_bytes, self.device) is not self.arena:
            self.bind(self.leaves)
        for value, array in zip(graph.inputs, inputs, strict=True):
            self._check(array, graph.specs[value], f"input {graph.names.get(value, value)}")
            if value in self._held:
                self._held[value][...] = array
            else:
                self._values[value] = array
        for position, array in zip(self._free, outputs, strict=True):
            self._values[graph.outputs[position]] = array

    def value(self, number: int) -> Any:
        """Return the array of a value, which holds what the steps so far have put there."""
        return self._values[number]

    def run(self, start: int = 0, stop: int | None = None) -> None:
        """Carry out steps ``start`` up to ``stop``; state is assigned after the last one."""
        stop = len(self.steps) if stop is None else stop
        place = start
        try:
            for place in range(start, stop):
                self.steps[place]()
        except Exception as error:
            error.add_note(f"in step {place} of the plan: {self._describe(place)}")
            raise
        if stop == len(self.steps):
            self._assign()

    def _assign(self) -> None:
        for leaf, source in self.graph.assigns:
            self._values[leaf][...] = self._values[source]

    def _describe(self, place: int) -> str:
        node = self.graph.nodes[self._strips[place].node]
        shapes = ", ".join(str(self.graph.specs[v]) for v in node.inputs)
        return f"{node.row.name}({shapes}){describe_attrs(node.attrs)}"

    def forget(self) -> None:
        """Drop the arrays of the last run."""
        for value in self._changing:
            self._values.pop(value, None)

    def __call__(self, inputs: Sequence[Any], outputs: Sequence[Any] = ()) -> None:
        """Run the whole plan."""
        self.feed(inputs, outputs)
        self.run()


def _nothing() -> None:
    """Stand for a step that was done at binding."""
