"""``summary``: layers, parameters, work and memory of a model, before anything is run."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Annotated, Any

import tyro

from hpctrain.autograd import pause
from hpctrain.cli.arguments import call
from hpctrain.cli.measure import measure
from hpctrain.cli.subject import Subject, divide, of_words
from hpctrain.errors import ConfigError
from hpctrain.graph.capture import capture
from hpctrain.graph.flops import flops, node_flops
from hpctrain.graph.ir import Graph
from hpctrain.graph.marks import marked
from hpctrain.graph.passes import EXACT, optimise
from hpctrain.graph.plan import Plan
from hpctrain.nn import Block
from hpctrain.parallel.flat import make_offsets
from hpctrain.parallel.pieces import pieces
from hpctrain.parallel.program import training_plan

__all__ = ["Layer", "layers", "run"]

LAYER = "layer"  # the mark of what a block computes


@dataclass(frozen=True)
class Wanted:
    """Show layers, parameters, floating-point operations and planned memory, for one rank."""

    model: tyro.conf.Positional[tuple[str, ...]]
    """a workload, or a configuration file with its settings as flags"""
    batch: int = 0
    """samples of one rank"""
    ranks: Annotated[int, tyro.conf.arg(aliases=["-n"])] = 1
    """for the traffic of a step; a configuration's batch is spread over them"""
    small: bool = False
    """the workload in sizes for a quick look"""
    measure: bool = False
    """run two steps and compare the memory of the process with the plan"""


def run(argv: Sequence[str]) -> int:
    """Print a summary; no MPI."""
    words, settings = divide(argv)
    wanted = call({"run": Wanted}, ["run", *words], "summary")
    if wanted.ranks < 1:
        raise ConfigError(f"summary: got -n {wanted.ranks}, needed at least 1 rank")
    subject = of_words([*wanted.model, *settings], wanted.batch, wanted.small, wanted.ranks)
    shapes = ", ".join(str(s) for specs in subject.specs for s in specs)
    print(f"{subject.name}: {subject.batch} samples a rank: {shapes}\n")
    _print_layers(layers(subject))
    _print_facts(_work(subject))
    _print_facts(_memory(subject))
    _print_facts(_traffic(subject, wanted.ranks))
    if wanted.measure:
        _print_facts(measure(subject))
    return 0


@dataclass(frozen=True)
class Layer:
    """One block: path, kind, shape of its output, elements of its own parameters, work."""

    path: str
    kind: str
    shape: tuple[int, ...]
    parameters: int
    state: int
    flops: int


def layers(subject: Subject) -> list[Layer]:
    """Return the blocks of a model that have parameters, or no children, in order.

    Work is that of the forward pass in inference, of the block itself without its children.
    """
    blocks = dict(_walk(subject.net))
    shapes: dict[str, tuple[int, ...]] = {}
    graph = _capture_by_layer(subject, blocks, shapes)
    work: dict[Any, int] = {}
    for node in graph.nodes:
        path = node.mark(LAYER)
        work[path] = work.get(path, 0) + node_flops(graph, node)
    found = []
    for path, block in blocks.items():
        own = [p for _, p in block.own_params()]
        if own or not block.children:
            sizes = [(p.data().size, p.grad_req != "null") for p in own]
            found.append(
                Layer(
                    path or type(block).__name__.lower(),
                    type(block).__name__,
                    shapes.get(path, ()),
                    sum(size for size, trained in sizes if trained),
                    sum(size for size, trained in sizes if not trained),
                    work.get(path, 0),
                )
            )
    return found


def _walk(block: Block, path: str = "") -> list[tuple[str, Block]]:
    """Return all blocks by path; one that is used twice has its first path."""
    found = [(path, block)]
    for name, child in block.children.items():
        found += _walk(child, f"{path}.{name}" if path else name)
    return found


def _capture_by_layer(
    subject: Subject, blocks: dict[str, Block], shapes: dict[str, tuple[int, ...]]
) -> Graph:
    """Capture the forward pass with each node marked by its block; fill in ``shapes``."""
    open_: list[Any] = []
    with ExitStack() as stack:
        for path, block in blocks.items():

            def enter(_: Any, __: Any, path: str = path) -> None:
                open_.append(marked(**{LAYER: path}))
                open_[-1].__enter__()

            def leave(_: Any, __: Any, output: Any, path: str = path) -> None:
                open_.pop().__exit__(None, None, None)
                first = output[0] if isinstance(output, tuple | list) else output
                shapes.setdefault(path, first.shape)

            stack.callback(block.register_forward_pre_hook(enter).detach)
            stack.callback(block.register_forward_hook(leave).detach)
        with pause():
            return capture(subject.net, subject.specs[0], list(subject.leaves().values()))


def _print_layers(found: Sequence[Layer]) -> None:
    rows = [("layer", "kind", "output", "parameters", "state", "forward FLOPs")]
    rows += [
        (x.path, x.kind, str(x.shape), f"{x.parameters:,}", f"{x.state:,}", f"{x.flops:,}")
        for x in found
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [
            cell.ljust(w) if i < 3 else cell.rjust(w)
            for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        ]
        print("  ".join(cells).rstrip())


def _print_facts(facts: dict[str, str]) -> None:
    print()
    for name, value in facts.items():
        print(f"{name:<28} {value}")


def _work(subject: Subject) -> dict[str, str]:
    training, evaluation = (optimise(subject.graph(t), EXACT) for t in (True, False))
    wanted = sum(t.size for t in subject.wanted().values())
    whole = sum(t.size for t in subject.leaves().values())
    return {
        "parameters": f"{wanted:,} trained, {whole - wanted:,} fixed or state",
        "FLOPs of an evaluation": f"{flops(evaluation):,}",
        "FLOPs of a training step": f"{flops(training):,}",
    }


def _memory(subject: Subject) -> dict[str, str]:
    training = training_plan(subject.step())
    flat = flat_bytes(subject)
    arrays = len(subject.optimizer.state_names)
    batch = sum(s.nbytes for specs in subject.specs for s in specs)
    return {
        "planned, training": _planned(training, training.naive_bytes),
        "planned, inference": _inference(subject),
        "parameters": _bytes(flat),
        "gradients": _bytes(flat),
        "state of the optimizer": f"{_bytes(arrays * flat)} ({subject.optimizer.name})",
        "a batch": _bytes(batch),
        "training, all of it": _bytes(training.arena_bytes + (2 + arrays) * flat + batch),
    }


def _inference(subject: Subject) -> str:
    """Compare what a piece takes with what all of the batch would take without sharing."""
    count = pieces(subject.inference, subject.batch, budget_bytes=subject.memory.budget)
    piece = subject.inference(-(-subject.batch // count))
    return _planned(
        piece, subject.inference(subject.batch).naive_bytes, f" in {count} piece(s)"
    )


def _planned(plan: Plan, naive: int, how: str = "") -> str:
    return (
        f"{_bytes(plan.arena_bytes)}{how}; "
        f"naive {_bytes(naive)} ({plan.arena_bytes / max(1, naive):.0%} of it), "
        f"lower bound {_bytes(plan.bound_bytes)} "
        f"({plan.arena_bytes / max(1, plan.bound_bytes):.3f} of it)"
    )


def flat_bytes(subject: Subject) -> int:
    """Return the bytes of the buffer of all trained parameters."""
    tensors = list(subject.wanted().values())
    itemsize = tensors[0].dtype.itemsize
    return make_offsets([t.size for t in tensors], itemsize)[1] * itemsize


def _traffic(subject: Subject, ranks: int) -> dict[str, str]:
    """Return what a rank sends in a step: an allreduce sends 2 (n - 1) / n of the buffer."""
    sent = 2 * (ranks - 1) * flat_bytes(subject) // ranks
    return {"sent in a step by a rank": f"{_bytes(sent)} of {ranks} rank(s), and received"}


def _bytes(count: int) -> str:
    return f"{count:,} bytes ({count / 2**20:.1f} MiB)"
