"""``bench peers``: a training step beside PyTorch's and MXNet's, in turn on one core."""

import functools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Literal

from hpctrain.cli.bench_floor import Floor, floor
from hpctrain.errors import ConfigError
from hpctrain.train.console import Console

__all__ = ["contenders", "peers", "table"]

STEPS = {"mlp": 60, "resnet20": 15, "lstm": 6, "gpt": 15, "cosmo": 30}
IMAGES = ("resnet20", "cosmo")
LIMIT_S = 900  # of one run; torch.compile takes minutes on a slow machine
Precision = Literal["float32", "bf16"]
_POOLS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
ONE_THREAD = dict.fromkeys(_POOLS, "1")
BARS = {  # over eager, over the best of PyTorch, over MXNet, share of the floor
    "mlp": (1.05, 1.05, 1.2, 0.9),
    "resnet20": (1.5, 1.1, 1.8, 0.8),
    "lstm": (1.1, 1.1, 1.15, 0.85),
    "gpt": (1.15, 1.15, None, 0.85),
    "cosmo": (1.7, 1.2, 1.2, 0.75),
}
NARROW_BARS = (None, 1.2, None, None)  # over autocast, in bfloat16
HEAD = ("", "ours", "eager", "best torch", "MXNet", "/ eager", "/ best", "/ MXNet",
        "floor", "share", "MiB ours", "MiB torch")  # fmt: skip


def peers(  # noqa: PLR0913 (its flags)
    torch: str = "",
    mxnet: str = "",
    models: str = "mlp,resnet20,lstm,gpt,cosmo",
    rounds: int = 3,
    steps: int = 0,
    json: bool = False,
    precision: Precision = "float32",
) -> None:
    """Compare the training step of the workloads with other frameworks, one thread.

    Each round runs every contender once, each in a process of its own on the same core; the
    median over rounds of their medians counts. The floor is what the products and
    convolutions take at this machine's own best rate for their shapes, and what other arrays
    take to be moved at the rate of a copy; it is measured in each round, too.

    Args:
        torch: a Python that has PyTorch.
        mxnet: a Python that has MXNet 1.9.
        models: workloads, with commas between them.
        rounds: how often each contender runs.
        steps: of a run; as many as take some seconds if 0.
        json: print one JSON object a workload instead of a table.
        precision: bf16: beside PyTorch's autocast, as it is and with channels last; MXNet has
            none, and the floor is not known.
    """
    names = [name for name in models.split(",") if name]
    if unknown := [name for name in names if name not in STEPS]:
        raise ConfigError(
            f"bench peers: got --models {','.join(unknown)}, needed some of {', '.join(STEPS)}"
        )
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    console, rows = Console(), []
    for name in names:
        commands = contenders(name, torch, mxnet, steps or STEPS[name], precision)
        bound = functools.partial(floor, name) if precision == "float32" else None
        rows.append(
            {**_row(name, *_alternate(commands, rounds, bound)), "precision": precision}
        )
        if json:
            print(_line(rows[-1]), flush=True)
    if not json:
        for line in table(rows):
            console.line(line)


def contenders(
    name: str, torch: str, mxnet: str, steps: int, precision: Precision = "float32"
) -> dict[str, list[str]]:
    """Return the command of each contender for one workload, ours first."""
    there, narrow = Path(__file__).parents[1] / "peers", precision == "bf16"
    given = [name, "--steps", str(steps)]
    ours = [sys.executable, "-m", "hpctrain", "bench", "step", *given]
    found = {"hpctrain": [*ours, "--precision", precision]}
    if torch:
        variants = ["eager", *["channels_last"] * (name in IMAGES)]
        for variant in variants if narrow else [*variants, "compile"]:
            script = [torch, str(there / "torch_step.py"), *given, *["--bf16"] * narrow]
            found[f"torch {variant}"] = [*script, "--variant", variant]
    if mxnet and name != "gpt" and not narrow:  # it has no layers of that kind
        found["mxnet"] = [mxnet, str(there / "mxnet_step.py"), *given]
    return found


def _alternate(
    commands: Mapping[str, Sequence[str]], rounds: int, bound: Callable[[], Floor] | None
) -> tuple[dict[str, Any], Floor | None]:
    """Run each command in turn; return median ms, and MiB, of those that ran, and the floor."""
    lines: dict[str, list[dict[str, Any]]] = {who: [] for who in commands}
    floors: list[Floor] = []
    for _ in range(rounds):
        for who, command in commands.items():
            if (line := _run(who, command)) is not None:
                lines[who].append(line)
        floors += [bound()] if bound else []
    found = {
        who: {
            key: median(line[key] for line in found) for key in ("ms_per_step", "peak_rss_mb")
        }
        for who, found in lines.items()
        if found
    }
    return found, sorted(floors, key=lambda f: f.ms)[len(floors) // 2] if floors else None


def _run(who: str, command: Sequence[str]) -> dict[str, Any] | None:
    """Run a contender; return its line of JSON, or None after saying why there is none."""
    try:
        done = subprocess.run(
            command, env={**os.environ, **ONE_THREAD}, capture_output=True, text=True,
            timeout=LIMIT_S, check=True,
        )  # fmt: skip
        return dict(json.loads(done.stdout.splitlines()[-1]))
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
        output = getattr(error, "stderr", None) or str(error)
        last = str(output).strip().splitlines()[-1:]
        print(f"bench peers: {who}: no result: {''.join(last)}", file=sys.stderr, flush=True)
        return None


def _row(name: str, found: Mapping[str, Any], least: Floor | None) -> dict[str, Any]:
    """Return what the table shows of one workload."""
    ms = {who: line["ms_per_step"] for who, line in found.items()}
    torch = {who: value for who, value in ms.items() if who.startswith("torch")}
    ours = ms.get("hpctrain")
    memory = [line["peak_rss_mb"] for who, line in found.items() if who in torch]
    best = min(torch, key=lambda who: torch[who], default="")

    def over(other: float | None) -> float | None:
        return round(other / ours, 3) if ours and other else None

    bounds = {} if least is None else {
        "floor_ms": round(least.ms, 2),
        "floor_products_ms": round(least.products_ms, 2),
        "floor_bytes_ms": round(least.bytes_ms, 2),
        "share_of_floor": over(least.ms),
    }  # fmt: skip

    return {
        "workload": name,
        "ms": ms,
        "best_torch": best.removeprefix("torch "),
        "over_eager": over(ms.get("torch eager")),
        "over_best": over(torch.get(best)),
        "over_mxnet": over(ms.get("mxnet")),
        **bounds,
        "peak_rss_mb": found.get("hpctrain", {}).get("peak_rss_mb"),
        "peak_rss_mb_torch": min(memory, default=None),
    }


def _line(row: Mapping[str, Any]) -> str:
    return json.dumps({**row, "bars": _bars(row)})


def _bars(row: Mapping[str, Any]) -> tuple[float | None, ...]:
    return NARROW_BARS if row["precision"] == "bf16" else BARS[row["workload"]]


def table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return lines of a table; what misses its bar has the bar behind it."""
    cells = [HEAD]
    for row in rows:
        ms, bars = row["ms"], _bars(row)
        keys = ("over_eager", "over_best", "over_mxnet", "share_of_floor")
        eager, best, mxnet, share = map(_judged, map(row.get, keys), bars)
        fastest = ms.get(f"torch {row['best_torch']}")
        name = f" ({row['best_torch']})" if row["best_torch"] else ""
        cells.append((
            row["workload"], _number(ms.get("hpctrain")), _number(ms.get("torch eager")),
            _number(fastest) + name, _number(ms.get("mxnet")), eager, best, mxnet,
            _number(row.get("floor_ms")), share, _number(row["peak_rss_mb"]),
            _number(row["peak_rss_mb_torch"]),
        ))  # fmt: skip
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) for row in cells]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _judged(value: float | None, bar: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.2f}" + ("" if bar is None or value >= bar else f" (< {bar:g})")
