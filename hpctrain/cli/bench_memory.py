"""``bench memory``: what a rank of a mesh takes, planned and measured."""

import gc
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import tyro

from hpctrain import models
from hpctrain.cli.measure import peak_bytes, reset_peak, warm_up
from hpctrain.cli.on_mesh import OnMesh, lanes_of, place_of
from hpctrain.cli.pipeline import Place
from hpctrain.cli.room import state_bytes
from hpctrain.cli.stages import work_of
from hpctrain.cli.threads import limit_threads
from hpctrain.comm.world import World, start
from hpctrain.config import Config, load, split
from hpctrain.engine import Engine
from hpctrain.models.workloads import Workload
from hpctrain.parallel.pipeline import Pipeline

__all__ = ["measurable", "memory", "taken"]

Name = Literal["deep", "gpt", "mlp", "resnet20", "lstm", "cosmo", "lenet"]
KINDS = ("parameters", "gradients", "sums of gradients", "optimizer", "values", "messages")
HEAD = (
    "model    D x S x T rank |  params   grads    sums   optim  values   boxes |"
    " planned measured\n"
)


def memory(  # noqa: PLR0913 (its flags)
    workload: Annotated[Name, tyro.conf.Positional],
    pipeline: int = 1,
    tensor: int = 1,
    schedule: Literal["gpipe", "1f1b", "interleaved", "zero_bubble"] = "1f1b",
    micro: int = 4,
    batch: int = 0,
    layers: int = 0,
    width: int = 0,
    optimizer: Literal["sgd", "adam"] = "adam",
    sharded: bool = False,
    budget: str = "",
    precision: Literal["float32", "bf16"] = "float32",
    steps: int = 3,
    head: bool = True,
) -> None:
    """Print what each rank takes of memory to train a workload on a mesh, in MiB.

    Planned is what a run asks for before it trains: parameters, gradients and their sums over
    micro-batches, the optimizer's state, values of a step, and boxes for messages. Measured is
    the largest resident memory while the model is made and trained, beyond that of the process
    before, which has trained a small model on the same mesh already: code, compiled kernels,
    stacks and the scratch memory of libraries are there. Memory that ranks share is divided
    by their number.

    Ranks that neither stages nor teams need are replicas, each with the same batch. One line
    for each rank, so that several runs make one table:

        for m in "1 1" "2 1" "4 1" "1 2" "2 2" "4 2"; do set -- $m
        mpirun -n $(($1 * $2)) python -m hpctrain bench memory gpt --pipeline $1 --tensor $2
        done

    Args:
        workload: which model; deep: an mlp of equal layers.
        pipeline: ranks of a pipeline.
        tensor: ranks that share each layer.
        schedule: of the pipeline.
        micro: micro-batches of it.
        batch: samples of a replica; 512 for deep, that of the workload for others if 0.
        layers: of deep and gpt; 0: 16 of deep, 8 of gpt.
        width: of deep and gpt; 0: 1024 of deep, 512 of gpt.
        optimizer: sgd has momentum.
        sharded: each replica has a part of the optimizer's state.
        budget: what values of a step may take, such as 20MiB; others are computed again.
        precision: bf16: factors of products are bfloat16.
        steps: how many are made.
        head: print the names of the columns.
    """
    settings = {
        "parallel.pipeline": pipeline,
        "parallel.tensor": tensor,
        "parallel.schedule": schedule,
        "parallel.micro_batches": micro,
        "parallel.balance": "memory",
        "optim.name": optimizer,
        "optim.momentum": 0.9,
        "optim.sharded": str(sharded).lower(),
        "memory.budget": budget,
        "device.precision": precision,
        "device.threads": 1,
    }
    with start() as world:
        cores = limit_threads(world, 1)[1]
        work, config = _workload(workload, batch, layers, width), _config(settings)
        small, plain = _small(workload, pipeline), _config({**settings, "memory.budget": ""})
        place = place_of(config, world, cores)
        with lanes_of(config, place) as lanes:
            lanes.push(partial(warm_up, "f4"))
            taken(small, plain, world, place, lanes, steps)
            work = replace(work, narrow=precision == "bf16")
            planned, measured = taken(work, config, world, place, lanes, steps)
        rows = world.control.allgather_obj([*planned.values(), measured])
        if world.rank == 0:
            mesh = f"{world.size // (pipeline * tensor)} x {pipeline} x {tensor}"
            lines = [_line(f"{workload:<8} {mesh}", *row) for row in enumerate(rows)]
            print("".join([HEAD] * head + lines), end="", flush=True)


def _config(settings: Mapping[str, object]) -> Config:
    flags = [word for name, value in settings.items() for word in (f"--{name}", str(value))]
    return load([], split(flags)[1], {})[0]


def _workload(name: str, batch: int, layers: int, width: int) -> Workload:
    if name != "gpt":
        return work_of(name, batch, layers or 16, width or 1024)
    sizes = {"vocab": 4096, "width": width or 512, "heads": 8, "depth": layers or 8}
    return models.workload(name, batch, **sizes, steps=128)


def _small(name: str, stages: int) -> Workload:
    """Return a model of the same kind that takes next to nothing."""
    if name == "deep":
        return work_of(name, 8, 2 * stages, 64)
    if name == "gpt":
        sizes = {"vocab": 64, "width": 64, "heads": 8, "depth": stages, "steps": 8}
        return models.workload(name, 8, **sizes)
    return work_of(name, 8)


def taken(
    work: Workload, config: Config, world: World, place: Place, lanes: Engine, steps: int
) -> tuple[dict[str, int], int]:
    """Train a workload on a mesh and return the bytes of this rank; collective.

    Returns
    -------
    planned : dict of str to int
        By kind, those of `KINDS`.
    measured : int
    """
    gc.collect()
    before = reset_peak() - _shared()
    with OnMesh(work, config, world, place, lanes) as made:
        for _ in range(steps):
            made.step.result(made.step.step(made.part))
        world.control.barrier()
        measured = peak_bytes() - _shared() - before
        planned = _planned(made)
        world.control.barrier()  # who leaves first takes its part of shared memory along
    return planned, measured


def _planned(made: OnMesh) -> dict[str, int]:
    step, config = made.step, made.config
    own = {n: p for n, p in made.parts.parameters.items() if n in step.state.names}
    found = state_bytes(own, config, made.mesh.shape.data, summed=False)
    if isinstance(step, Pipeline):
        found["values"] = step.stages.arena_bytes + step.stages.kept_bytes
        found["messages"] = step.parcels.nbytes
    else:
        found["values"], found["messages"] = step.of_first_shape().working_bytes, 0
    return {kind: found[kind] for kind in KINDS}


def measurable() -> bool:
    """Return whether this system tells what a process takes."""
    return Path("/proc/self/smaps_rollup").exists() and Path("/proc/self/clear_refs").exists()


def _shared() -> int:
    """Return what of the resident memory is shared and counted by other ranks."""
    rollup = Path("/proc/self/smaps_rollup").read_text()
    status = Path("/proc/self/status").read_text()
    mine = re.search(r"Pss_Shmem:\s*(\d+) kB", rollup)
    every = re.search(r"RssShmem:\s*(\d+) kB", status)
    assert mine is not None and every is not None, "Linux reports both"
    return (int(every[1]) - int(mine[1])) * 1024


def _line(mesh: str, rank: int, row: Sequence[int]) -> str:
    *kinds, measured = row
    planned = sum(kinds)
    mib = [f"{n / 2**20:>7.1f}" for n in (*kinds, planned, measured)]
    parts, both = (" ".join(mib[:-2]), " ".join(mib[-2:]))
    return f"{mesh} {rank:>4} | {parts} | {both} {measured / planned - 1:+.0%}\n"
