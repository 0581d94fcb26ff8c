"""``graph``: a model's graph as text or for Graphviz, and what each pass makes of it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from hpctrain.cli.arguments import call
from hpctrain.cli.subject import divide, of_words
from hpctrain.errors import ConfigError
from hpctrain.graph.budget import least_memory
from hpctrain.graph.dot import dot
from hpctrain.graph.ir import Graph
from hpctrain.graph.passes import FUSED, PASSES, own_outputs, verify
from hpctrain.graph.plan import make_plan
from hpctrain.graph.transposes import transposed_bytes

__all__ = ["run"]

_HEAD = (
    f"{'after':<22} {'nodes':>6} {'views':>6} {'plan':>14} {'naive':>14} {'bound':>14} "
    f"{'transposed':>12}"
)


@dataclass(frozen=True)
class Wanted:
    """Show the graph of a model, pass by pass.

    Without --pass: figures after each pass, then the graph as it is planned where fusion is
    on. With it: the graph before and after that pass.
    """

    model: tyro.conf.Positional[tuple[str, ...]]
    """a workload, or a configuration file with its settings as flags"""
    name: Annotated[str, tyro.conf.arg(name="pass")] = ""
    """one pass; those before it have run. recompute comes first, memory shows the plan"""
    dot: Path | None = None
    """where to write the last graph for Graphviz"""
    training: bool = False
    """the training step, which is the default"""
    inference: bool = False
    """the evaluation instead"""
    batch: int = 0
    """samples of one rank"""
    small: bool = False
    """the workload in sizes for a quick look"""


def run(argv: Sequence[str]) -> int:
    """Print a graph; no MPI."""
    words, settings = divide(argv)
    wanted = call({"run": Wanted}, ["run", *words], "graph")
    _show(wanted, [*wanted.model, *settings])
    return 0


def _show(wanted: Wanted, words: Sequence[str]) -> None:
    name = wanted.name
    known = ("recompute", *PASSES, "memory")
    if name and name not in known:
        raise ConfigError(f"graph: got pass {name!r}, needed one of {', '.join(known)}")
    if wanted.inference and (wanted.training or name == "recompute"):
        other = "--training" if wanted.training else "--pass recompute"
        raise ConfigError(f"graph: got {other} and --inference, needed one of them")
    subject = of_words(words, wanted.batch, wanted.small, 1)
    captured = verify(subject.graph(training=not wanted.inference))
    print(f"{_HEAD}\n{_figures('capture', captured)}")
    before = after = captured
    for done, found in _passes(captured, name == "recompute"):
        print(_figures(done, found))
        before, after = after, found
        if done == name:
            break
    if name == "memory":
        print(f"\nbefore memory\n{after.text()}\n\nafter memory\n{make_plan(after).text()}")
    elif name:
        print(f"\nbefore {name}\n{before.text()}\n\nafter {name}\n{after.text()}")
    else:
        print(f"\n{after.text()}")
    if wanted.dot is not None:
        _write(wanted.dot, after, subject.name)


def _passes(start: Graph, again: bool) -> Iterator[tuple[str, Graph]]:
    """Yield name and result of each pass, beginning with recomputation if ``again``."""
    if again:
        start = verify(least_memory(start))
        yield "recompute", start
    for name in FUSED:
        start = verify(PASSES[name](start))
        yield name, start


def _figures(name: str, found: Graph) -> str:
    plan = make_plan(own_outputs(found))
    return (
        f"{name:<22} {len(found.nodes):>6} {len(plan.views):>6} {plan.arena_bytes:>14,} "
        f"{plan.naive_bytes:>14,} {plan.bound_bytes:>14,} {transposed_bytes(found):>12,}"
    )


def _write(path: Path, found: Graph, title: str) -> None:
    try:
        path.write_text(dot(found, title), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"graph: cannot write {path}: {error.strerror}") from None
    print(f"\nwritten: {path}; draw it with dot -Tsvg")
