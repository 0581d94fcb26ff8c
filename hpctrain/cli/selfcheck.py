"""``selfcheck``: training on P ranks must give what training on one rank gives."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from hpctrain import backend, engine, models, nn, optim
from hpctrain.autograd import Spec
from hpctrain.cli.arguments import call
from hpctrain.cli.selfcheck_stages import Goal, Staged, stages_of
from hpctrain.cli.selfcheck_teams import Teams, shape_for
from hpctrain.cli.threads import limit_threads
from hpctrain.comm.group import Group
from hpctrain.comm.world import World, start
from hpctrain.io.sampler import part
from hpctrain.parallel.data_parallel import DataParallel
from hpctrain.parallel.program import Objective, count_correct
from hpctrain.parallel.roles import roles
from hpctrain.parallel.serve import serve
from hpctrain.parallel.served_parallel import ServedParallel
from hpctrain.parallel.server import lanes_of_server
from hpctrain.parallel.staged import Layout
from hpctrain.parallel.state import ModelState
from hpctrain.parallel.terms import Terms
from hpctrain.parallel.together import Combine
from hpctrain.parallel.trade import Trade
from hpctrain.parallel.ways import to_servers
from hpctrain.parallel.work import Options, Work

__all__ = ["CASES", "Case", "run"]

LIMIT = 1e-10  # largest relative difference in float64


@dataclass(frozen=True, slots=True)
class Case:
    """One row: a small model, an optimizer, and how gradients are exchanged.

    ``together``: batch statistics are over all ranks. ``stages``: the model is cut, where there
    are several ranks. ``teams``: these share layers. ``terms``: some ranks serve, where enough
    are left to work. On one rank the batch is never divided, and nothing scaled.
    """

    name: str
    workload: str
    sizes: dict[str, Any]
    optimizer: optim.Optimizer
    options: Options = field(default_factory=Options)
    slice_bytes: int = 4096
    together: bool = False
    terms: Terms | None = None
    stages: Layout | None = None
    teams: bool = False


_MLP = {"inputs": 12, "hidden": (16, 16), "classes": 5}
_LENET = {"size": 16, "dropout": 0.5}
_GPT = {"vocab": 17, "width": 16, "heads": 2, "depth": 2, "steps": 6}
_LSTM = {"vocab": 11, "width": 8, "steps": 5}
_WORDS = {"vocab": 1000, "width": 4, "steps": 5}
_SGD = optim.SGD(momentum=0.9, weight_decay=1e-3)
_ADAMW = optim.AdamW(weight_decay=0.1)
_1F1B = Layout(1, "1f1b", 3)
CASES = (
    Case("mlp, sgd", "mlp", _MLP, _SGD),
    Case("mlp, sgd, overlap off", "mlp", _MLP, _SGD, Options(overlap=False)),
    Case("mlp, adam", "mlp", _MLP, optim.Adam()),
    Case("mlp, clipped", "mlp", _MLP, _SGD, Options(clip_norm=0.1)),
    Case("mlp, loss scale", "mlp", _MLP, _SGD, Options(loss_scale=256.0, skip=True)),
    Case("mlp, adam, sharded", "mlp", _MLP, optim.Adam(), Options(sharded=True)),
    Case("mlp, sharded, clipped", "mlp", _MLP, _SGD, Options(sharded=True, clip_norm=0.1)),
    Case("lenet with dropout", "lenet", _LENET, _SGD),
    Case("lenet, accumulate 3", "lenet", _LENET, _SGD, Options(accumulate=3)),
    Case("lenet, reproducible", "lenet", _LENET, _SGD, Options(shard=2)),
    Case("lstm", "lstm", _LSTM, _SGD),
    Case("gpt, adamw", "gpt", _GPT, _ADAMW),
    Case("cosmo", "cosmo", {"size": 8, "channels": (2, 3, 4, 5)}, _SGD),
    Case("sync batch norm", "resnet20", {"depth": 8, "size": 8}, _SGD, together=True),
    Case("mlp, server", "mlp", _MLP, _SGD, terms=Terms()),
    Case("mlp, clipped, server", "mlp", _MLP, _SGD, Options(clip_norm=0.1), terms=Terms()),
    Case("gpt, adamw, 2 servers", "gpt", _GPT, _ADAMW, terms=Terms(servers=2)),
    Case("lenet, accumulate, s.", "lenet", _LENET, _SGD, Options(accumulate=2), terms=Terms()),
    Case("lstm, rows, server", "lstm", _WORDS, _SGD, terms=Terms(shared=False)),
    Case("mlp, gpipe", "mlp", _MLP, _SGD, stages=Layout(1, "gpipe", 3)),
    Case("mlp, 1f1b, clipped", "mlp", _MLP, _SGD, Options(clip_norm=0.1), stages=_1F1B),
    Case("lenet, 1f1b", "lenet", _LENET, _SGD, Options(accumulate=2), stages=_1F1B),
    Case("gpt, interleaved", "gpt", _GPT, _ADAMW, stages=Layout(1, "interleaved", 4, 2)),
    Case("gpt, sharded stages", "gpt", _GPT, _ADAMW, Options(sharded=True), stages=_1F1B),
    Case("lstm, zero bubble", "lstm", _LSTM, _SGD, stages=Layout(1, "zero_bubble", 3)),
    Case("mlp, teams", "mlp", _MLP, _SGD, Options(clip_norm=0.1), teams=True),
    Case("lenet, teams", "lenet", _LENET, _SGD, Options(accumulate=2), teams=True),
    Case("gpt, teams, sharded", "gpt", _GPT, _ADAMW, Options(sharded=True), teams=True),
    Case("gpt, teams in stages", "gpt", _GPT, _ADAMW, stages=_1F1B, teams=True),
)


def run(argv: Sequence[str]) -> int:
    """Compare, print a table, and return 1 if anything differs; collective."""
    return int(call({"run": check}, ["run", *argv], "selfcheck"))


def check(steps: int = 5, batch: int = 13) -> int:
    """Train small models in float64 on all ranks and on one, with the same global batches.

    Args:
        steps: steps to train.
        batch: samples of a global batch; it need not be a multiple of the ranks.
    """
    with start() as world:
        limit_threads(world, 0)
        alone = world.control.split(world.rank)
        if world.rank == 0:
            print(f"{steps} steps on {world.size} rank(s) against 1, float64")
            print(f"{'case':<24}{'parameters':>12}{'loss':>12}{'replicas':>10}")
        failed = sum(_row(case, world, alone, steps, batch) for case in CASES)
        if world.rank == 0:
            print("PASS" if not failed else f"FAIL: {failed} of {len(CASES)}", flush=True)
        alone.free()
    return 1 if failed else 0


def _row(case: Case, world: World, alone: Group, steps: int, batch: int) -> bool:
    """Check one case, print its row, and return whether it failed: the same on all ranks."""
    many, losses = _trained(case, world.group, steps, batch)
    plain = replace(
        case.options, accumulate=1, shard=0, loss_scale=1.0, skip=False, sharded=False
    )
    one, expected = _trained(replace(case, options=plain), alone, steps, batch)
    scale = max(float(np.abs(one).max()), 1e-300)
    found = np.array([
        float(np.abs(many - one).max()) / scale,
        max(abs(a - b) / max(abs(b), 1e-300) for a, b in zip(losses, expected, strict=True)),
    ])  # fmt: skip
    world.control.allreduce(found, "max")
    lowest, highest = many.copy(), many.copy()
    world.control.allreduce(lowest, "min")
    world.control.allreduce(highest, "max")
    equal = bool((lowest == highest).all())
    good = bool((found < LIMIT).all()) and equal
    if world.rank == 0:
        replicas = "equal" if equal else "differ"
        row = f"{case.name:<24}{found[0]:>12.1e}{found[1]:>12.1e}{replicas:>10}"
        print(f"{row}  {'PASS' if good else 'FAIL'}", flush=True)
    return not good


def _trained(
    case: Case, group: Group, steps: int, batch: int
) -> tuple[np.ndarray, list[float]]:
    """Train a case on the ranks of ``group``; return parameters and losses."""
    work = models.workload(case.workload, batch, **case.sizes)
    work.net.initialize(ctx=backend.CPU, seed=1)
    work.net.cast("float64")
    combine = Combine(group) if case.together and group.size > 1 else None
    if combine:
        nn.convert_sync_batch_norm(work.net, combine)
    count = None if case.workload == "cosmo" else count_correct
    goal = Goal(
        Objective(work.net, work.loss, count, combine),
        work.net.collect_params(),
        case.optimizer,
        optim.Cosine(base_lr=0.05, total_steps=steps + 1),
        case.options,
        case.slice_bytes,
        work.batch_axis,
    )
    rng = np.random.default_rng(7)
    batches = [work.make(rng) for _ in range(steps)]
    if case.terms is not None and group.size > case.terms.servers:
        return _served(case, case.terms, goal, group, batches)
    if case.teams and group.size > 1:
        return _in_teams(case, goal, group, batches)
    if case.stages is not None and group.size > 1:
        return _in_stages(case, case.stages, goal, group, batches)
    found = _on_all(case, goal, group, batches)
    if combine:
        combine.free()
    return found


def _on_all(
    case: Case, goal: Goal, group: Group, batches: Sequence[Any]
) -> tuple[np.ndarray, list[float]]:
    """Train with the whole model on every rank."""
    state = ModelState(goal.parameters, goal.optimizer, goal.slice_bytes)
    with engine.create() as lanes:
        step = DataParallel(
            goal.objective, state, goal.optimizer, goal.schedule, lanes, group, goal.options
        )
        step.prepare(*_shapes(case, goal, group, batches[0]))
        losses = _losses(step, case, goal, group, batches)
        lanes.wait_all()
    trained = [p.data() for p in goal.parameters.values() if p.grad_req != "null"]
    return np.concatenate([t.asnumpy().reshape(-1) for t in trained]), losses


def _served(
    case: Case, terms: Terms, goal: Goal, group: Group, batches: Sequence[Any]
) -> tuple[np.ndarray, list[float]]:
    """Train with servers; these get the results of the first worker."""
    state = ModelState(goal.parameters, goal.optimizer, goal.slice_bytes)
    losses: list[float] = []
    with roles(group, terms) as place:
        kinds = lanes_of_server(1) if place.serves else engine.DEFAULT_LANES
        with engine.create(lanes=kinds) as lanes:
            parts = state, goal.optimizer, goal.schedule
            if place.serves:
                serve(*parts, goal.options, terms, place.post, place.own, lanes)
            else:
                way = to_servers(Trade(place.post, terms, place.own), state, goal.options)
                step = ServedParallel(
                    goal.objective, *parts, lanes, place.own, goal.options, way
                )
                step.prepare(*_shapes(case, goal, place.own, batches[0]))
                losses = _losses(step, case, goal, place.own, batches)
                step.close()
    trained = [p.data() for p in goal.parameters.values() if p.grad_req != "null"]
    weights = np.concatenate([t.asnumpy().reshape(-1) for t in trained])
    told = weights.copy()
    group.bcast(told, terms.servers)
    first = group.bcast_obj(losses, terms.servers)
    return (told, first) if group.rank < terms.servers else (weights, losses)


def _in_stages(
    case: Case, layout: Layout, goal: Goal, group: Group, batches: Sequence[Any]
) -> tuple[np.ndarray, list[float]]:
    """Train with the model in stages."""
    size = group.size // stages_of(group.size)
    some = part(_total(goal, batches[0]), 0, size)
    shapes = [[Spec.of(_share(a, some, goal.batch_axis))] for a in batches[0]]
    with Staged(goal, layout, group, shapes) as staged:
        losses = _losses(staged.step, case, goal, staged.mesh.data, batches)
        staged.step.engine.wait_all()
        return staged.weights(), losses


def _in_teams(
    case: Case, goal: Goal, group: Group, batches: Sequence[Any]
) -> tuple[np.ndarray, list[float]]:
    """Train with layers that teams share."""
    size = shape_for(group.size, case.stages is not None).data
    some = part(_total(goal, batches[0]), 0, size)
    shapes = [[Spec.of(_share(a, some, goal.batch_axis))] for a in batches[0]]
    with Teams(goal, case.stages, group, shapes) as teams:
        losses = _losses(teams.step, case, goal, teams.mesh.data, batches)
        teams.step.engine.wait_all()
        return teams.weights(), losses


def _losses(
    step: DataParallel, case: Case, goal: Goal, group: Group, batches: Sequence[Any]
) -> list[float]:
    axis, count = goal.batch_axis, case.options.accumulate
    losses = []
    for whole in batches:
        total = _total(goal, whole)
        pieces = [_piece(case, group, whole, part(total, i, count), axis) for i in range(count)]
        losses.append(step.result(step.step(*pieces)).loss)
    return losses


def _total(goal: Goal, whole: Sequence[Any]) -> int:
    return int(whole[0].shape[goal.batch_axis])


def _shapes(case: Case, goal: Goal, group: Group, whole: Sequence[Any]) -> list[list[Spec]]:
    places = part(_total(goal, whole), 0, case.options.accumulate)
    mine = _piece(case, group, whole, places, goal.batch_axis)
    some = slice(0, max(1, mine.count))  # this rank may have none of it
    return [[Spec.of(_share(a, some, goal.batch_axis))] for a in whole]


def _piece(case: Case, group: Group, whole: Sequence[Any], places: slice, axis: int) -> Work:
    """Return what this rank has of the batch that is at ``places`` of ``whole``."""
    total = places.stop - places.start
    mine = part(total, group.rank, group.size, case.options.shard or 1)
    own = slice(places.start + mine.start, places.start + mine.stop)
    inputs, targets = (_share(a, own, axis) for a in whole)
    return Work((inputs,), (targets,), mine.stop - mine.start, total, mine.start)


def _share(array: np.ndarray, mine: slice, axis: int) -> np.ndarray:
    if array.dtype == np.float32:
        array = array.astype(np.float64)
    if axis >= array.ndim:
        axis = 0
    return np.ascontiguousarray(array[(slice(None),) * axis + (mine,)])
