"""A pipeline stage bound to arrays: one set of bound plans for each slot."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hpctrain import backend
from hpctrain.graph.derived import Shelves
from hpctrain.graph.execute import Executor
from hpctrain.graph.plan import Plan
from hpctrain.graph.pool import Pool
from hpctrain.graph.repeated import Once
from hpctrain.graph.segments import Segment, cut
from hpctrain.parallel.flat import FlatParameters
from hpctrain.parallel.stage_program import StageProgram

__all__ = ["BoundStage", "StageMemory"]

Add = Callable[[int, Any], None]


class StageMemory:
    """Memory of the slots and of the area of one stage, for all shapes of micro-batches.

    Only one shape may use a slot at a time.

    Attributes
    ----------
    shelves : Shelves
        What is made of parameters alone.
    """

    def __init__(self, device: backend.Device) -> None:
        self._device = device
        self._pieces: dict[int, Any] = {}
        self.shelves = Shelves(device)

    def piece(self, index: int, nbytes: int) -> Any:
        """Return a piece of at least ``nbytes``, the same one as long as it is large enough."""
        known = self._pieces.get(index)
        if known is None or known.nbytes < nbytes:
            known = backend.empty((nbytes,), "uint8", self._device)
            self._pieces[index] = known
        return known

    @property
    def nbytes(self) -> int:
        """Bytes of all pieces."""
        return sum(int(piece.nbytes) for piece in self._pieces.values()) + self.shelves.nbytes


class BoundStage:
    """One stage for one shape of micro-batch, ready to run.

    Parameters
    ----------
    program : StageProgram
    flat : FlatParameters
        Of this rank; gradients of a micro-batch are written into its buffer, or added to it.
    memory : StageMemory
    slots : int
        How many micro-batches it keeps at once.
    pool : Pool
        Working memory of all stages of this rank.

    Attributes
    ----------
    program
    reads, slices : tuple of int
        Slices of the parameters that it reads, and of the gradient that it writes.
    segments : list of Segment
        Of its W.
    derived : frozenset
        What the values of this stage that come of parameters alone are made of.
    places : list of int
        The parameters, by their places in ``flat``, that it has gradients of.
    """

    def __init__(
        self,
        program: StageProgram,
        flat: FlatParameters,
        memory: StageMemory,
        slots: int,
        pool: Pool,
    ) -> None:
        self.program = program
        device = flat.device
        self._device = device
        self._area = program.area.views(memory.piece(-1, program.area.nbytes))
        self._slots = [
            program.slot.views(memory.piece(k, program.slot.nbytes)) for k in range(slots)
        ]
        self._results = [
            _empty(program.forward, place, device)
            for place in range(
                len(program.sent.specs), len(program.sent.specs) + len(program.results)
            )
        ]
        own = [t.value for t in program.leaves]
        self._once = Once(program.once, program.keys, own, memory.shelves, device)
        self.derived = frozenset((program.number, key) for key in program.keys)
        own += self._once.arrays
        self._runs = [self._bind(slot, flat, pool, own) for slot in self._slots]
        places = {id(t): place for place, t in enumerate(flat.tensors)}
        where = flat.where()
        self.places = [places[id(t)] for t in program.wanted]
        graph = program.weight.graph
        by_value = dict(zip(graph.outputs, self.places, strict=False))
        written = {value: where[place] for value, place in by_value.items()}
        self.segments: list[Segment] = cut(program.weight, {}, written)
        self.slices = tuple(sorted({index for found in written.values() for index in found}))
        self._landings: dict[int, list[tuple[int, int]]] = {}  # by step: value and place
        for step, node in enumerate(graph.nodes):
            made = [(value, by_value[value]) for value in node.outputs if value in by_value]
            if made:
                self._landings[step] = made

    def _bind(
        self, slot: dict[int, Any], flat: FlatParameters, pool: Pool, own: Sequence[Any]
    ) -> list[Executor]:
        program, device = self.program, self._device
        arrays = {**self._area, **slot}

        def executor(number: int, plan: Plan, outputs: Mapping[int, Any]) -> Executor:
            statics = [arrays[v] for v in program.statics[number]]
            return Executor(plan, [*own, *statics], outputs, device, pool)

        first = len(program.sent.specs)
        made = [*self._results, *(slot[v] for v in program.forward_keeps)]
        back = 0 if program.whole else len(program.returned.specs)
        kept = [slot[v] for v in program.backward_keeps]
        gradients = [t.grad.value for t in program.wanted if t.grad is not None]
        return [
            executor(0, program.forward, dict(enumerate(made, first))),
            executor(1, program.backward, dict(enumerate(kept, back))),
            executor(2, program.weight, dict(enumerate(gradients))),
            executor(2, program.added, {}),
        ]

    def derive(self) -> None:
        """Make what comes of parameters alone, before the first F of an update."""
        self._once.run()

    def enter(self, slot: int, message: Any) -> None:
        """Take what the stage before has sent out of its message."""
        self._take(slot, self.program.entering, self.program.received.views(message))

    def answer(self, slot: int, message: Any) -> None:
        """Take the cotangents out of the message of the next stage."""
        count = len(self.program.answered.specs)
        views = self.program.answered.views(message) if count else {}
        self._take(slot, self.program.given[:count], views)

    def weigh(self, slot: int, value: float) -> None:
        """Set the weight of a sample in the loss."""
        place = self.program.given[-1]
        self._array(slot, place)[...] = value

    def _take(self, slot: int, values: Sequence[int], views: Mapping[int, Any]) -> None:
        for position, value in enumerate(values):
            self._array(slot, value)[...] = views[position]

    def _array(self, slot: int, value: int) -> Any:
        kept = self._slots[slot]
        return kept[value] if value in kept else self._area[value]

    def forward(self, slot: int, batch: Sequence[Any], message: Any) -> None:
        """Compute F of the micro-batch in a slot.

        Parameters
        ----------
        slot : int
        batch : sequence of array
            Inputs, then targets, on the device.
        message : array of uint8
            For the next stage.
        """
        sent = self.program.sent
        outputs = list(sent.views(message).values()) if sent.specs else []
        self._runs[slot][0]([batch[p] for p in self.program.fed], outputs)

    def backward(self, slot: int, batch: Sequence[Any], message: Any) -> None:
        """Compute B; ``message`` is for the stage before."""
        outputs = [] if self.program.whole else self._returned(message)
        self._runs[slot][1]([batch[p] for p in self.program.fed_later[0]], outputs)

    def weight(
        self,
        slot: int,
        batch: Sequence[Any],
        index: int = -1,
        message: Any = None,
        add: Add | None = None,
    ) -> None:
        """Compute a segment of W, all of it if ``index`` is negative.

        Parameters
        ----------
        slot : int
        batch : sequence of array
        index : int
        message : array of uint8, optional
            For the stage before, if this part makes the cotangents too.
        add : callable, optional
            Gets the place of a parameter and the array of its gradient, as soon as it is made
            and only then; without it gradients are written into the flat buffer. The same for
            all segments.
        """
        run = self._runs[slot][2 if add is None else 3]
        if index <= 0:
            outputs = self._returned(message) if self.program.whole else []
            run.feed([batch[p] for p in self.program.fed_later[1]], outputs)
        start, stop = 0, len(run.steps)
        if index >= 0:
            start, stop = self.segments[index].start, self.segments[index].stop
        if add is not None:
            for step in sorted(self._landings.keys() & range(start, stop)):
                run.run(start, step + 1)
                for value, place in self._landings[step]:
                    add(place, run.value(value))
                start = step + 1
        run.run(start, stop)

    def _returned(self, message: Any) -> list[Any]:
        returned = self.program.returned
        return list(returned.views(message).values()) if returned.specs else []

    def result(self, which: int) -> Any:
        """Return losses (0) or number of right answers (1) of the last F; None if not here."""
        if which not in self.program.results:
            return None
        return self._results[self.program.results.index(which)]


def _empty(plan: Plan, output: int, device: backend.Device) -> Any:
    spec = plan.graph.specs[plan.graph.outputs[output]]
    return backend.empty(spec.shape, spec.dtype, device)
