"""``bench``: measure, and print one line of JSON."""

from collections.abc import Callable, Sequence

from hpctrain.cli.arguments import call
from hpctrain.cli.bench_fusion import fusion
from hpctrain.cli.bench_memory import memory
from hpctrain.cli.bench_overhead import overhead
from hpctrain.cli.bench_peers import peers
from hpctrain.cli.bench_pipeline import pipeline
from hpctrain.cli.bench_recompute import recompute
from hpctrain.cli.bench_step import step

__all__ = ["run"]


def run(argv: Sequence[str]) -> int:
    """Run a benchmark; collective over all ranks that were started."""
    commands: dict[str, Callable[..., None]] = {
        "step": step,
        "pipeline": pipeline,
        "memory": memory,
        "recompute": recompute,
        "fusion": fusion,
        "overhead": overhead,
        "peers": peers,
    }
    call(commands, argv, "bench")
    return 0
