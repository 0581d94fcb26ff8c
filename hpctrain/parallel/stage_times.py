"""How long the parts of stages take here, and messages between them: measured before training.

Each part is run as in a step, on made-up numbers; what it changes is put back.
"""

from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Any

import numpy as np

from hpctrain import backend
from hpctrain.autograd import Spec
from hpctrain.comm.group import Group
from hpctrain.comm.mesh import Mesh
from hpctrain.parallel.bound_stage import BoundStage
from hpctrain.parallel.node_times import made_up_array
from hpctrain.parallel.pipeline_times import Times
from hpctrain.parallel.state import ModelState

__all__ = ["Seconds", "agreed_times", "message_seconds", "stage_seconds"]

Seconds = tuple[float, float, float]  # of F, B and W
REPEATS = 5  # of which the fastest counts, after one to warm up
_TAG = 7330


def stage_seconds(
    stages: Mapping[int, BoundStage], specs: Sequence[Spec], state: ModelState
) -> dict[int, Seconds]:
    """Return the seconds of F, B and W of stages for one micro-batch.

    Parameters
    ----------
    stages : mapping of int to BoundStage
    specs : sequence of Spec
        Of inputs and targets of the micro-batch.
    state : ModelState
        Of the parameters; layer state is as before afterwards, and no gradient is wanted.
    """
    before = {name: backend.to_host(t.value).copy() for name, t in state.fixed.items()}
    with np.errstate(all="ignore"):  # numbers without meaning
        batch = [made_up_array(spec, state.device) for spec in specs]
        found = {number: _measured(stage, batch, state) for number, stage in stages.items()}
    for name, tensor in state.fixed.items():
        tensor.value[...] = tensor.device.module.asarray(before[name])
    return found


def _measured(stage: BoundStage, batch: Sequence[Any], state: ModelState) -> Seconds:
    parts, times = _parts(stage, batch, state), []
    for _ in range(REPEATS + 1):
        row = []
        for part in parts:
            began = perf_counter()
            part()
            backend.to_host(state.flat.grads[:1])  # a device must have come to its end
            row.append(perf_counter() - began)
        times.append(row)
    f, b, w = np.min(times[1:], axis=0).tolist()
    return f, b, w


def _parts(
    stage: BoundStage, batch: Sequence[Any], state: ModelState
) -> tuple[Callable[[], None], ...]:
    """Return what does F, B and W in slot 0."""
    stage.derive()
    program, device = stage.program, state.device
    received, answered = (_filled(p, device) for p in (program.received, program.answered))
    sent, returned = (
        backend.empty((p.nbytes,), "uint8", device) for p in (program.sent, program.returned)
    )

    def forward() -> None:
        if received is not None:
            stage.enter(0, received)
        stage.forward(0, batch, sent)

    def backward() -> None:
        if answered is not None:
            stage.answer(0, answered)
        if program.makes_loss:
            stage.weigh(0, 1.0)
        stage.backward(0, batch, returned)

    def weight() -> None:
        stage.weight(0, batch, message=returned, add=add)

    def add(place: int, part: Any) -> None:
        sums = state.flat.view(state.flat.grads, place)
        sums += part

    return forward, backward, weight


def message_seconds(group: Group, nbytes: int) -> tuple[float, float]:
    """Return for how long a message between neighbours keeps them busy, and its latency.

    Collective; the slowest neighbours count, and all ranks get the same numbers.
    """
    found = []
    for size in (1, max(1, nbytes)):
        box = np.zeros(size, np.uint8)
        taken = 0.0
        for left in range(group.size - 1):
            if group.rank in (left, left + 1):
                other = 2 * left + 1 - group.rank
                taken = max(taken, _round_trip(group, box, other, group.rank == left) / 2)
            group.barrier()
        found.append(taken)
    times = np.array([max(0.0, found[1] - found[0]), found[0]])
    group.allreduce(times, "max")
    return float(times[0]), float(times[1])


def _round_trip(group: Group, box: Any, other: int, first: bool) -> float:
    times = []
    for _ in range(REPEATS + 1):
        began = perf_counter()
        if first:
            group.send(box, other, _TAG)
        group.recv(box, other, _TAG)
        if not first:
            group.send(box, other, _TAG)
        times.append(perf_counter() - began)
    return min(times[1:])


def agreed_times(
    mesh: Mesh, mine: Mapping[int, Seconds], message: tuple[float, float]
) -> Times:
    """Return the times of all stages of a pipeline, the same on all ranks of the mesh.

    Those that the first pipeline of all has measured count; collective.
    """
    rows = [[number, *seconds] for number, seconds in mine.items()]
    every = mesh.pipeline.allgather_obj(rows)
    agreed = mesh.data.bcast_obj([sorted(row for part in every for row in part), *message], 0)
    agreed = mesh.tensor.bcast_obj(agreed, 0)
    f, b, w = (tuple(row[kind] for row in agreed[0]) for kind in (1, 2, 3))
    return Times(f, b, w, *agreed[1:])


def _filled(packing: Any, device: backend.Device) -> Any:
    """Return a message of made-up numbers; None if there is none."""
    if not packing.specs:
        return None
    message = backend.empty((packing.nbytes,), "uint8", device)
    for key, view in packing.views(message).items():
        view[...] = made_up_array(packing.specs[key], device)
    return message
