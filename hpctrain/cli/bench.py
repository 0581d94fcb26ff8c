"""``bench``: measure, and print one line of JSON."""

from collections.abc import Sequence

from hpctrain.cli.arguments import call
from hpctrain.cli.bench_fusion import fusion
from hpctrain.cli.bench_memory import memory
from hpctrain.cli.bench_step import step

__all__ = ["run"]


def run(argv: Sequence[str]) -> int:
    """Run a benchmark; collective over all ranks that were started."""
    call({"step": step, "memory": memory, "fusion": fusion}, argv, "bench")
    return 0
