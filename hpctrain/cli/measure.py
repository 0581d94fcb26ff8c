"""How much memory a step really takes, against what was planned."""

import ctypes
import gc
import re
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from hpctrain import ops
from hpctrain.autograd import Spec, Tensor, record
from hpctrain.cli.subject import Subject
from hpctrain.errors import ConfigError
from hpctrain.graph.pool import Pool
from hpctrain.ops import dnnl
from hpctrain.parallel.bound import BoundStep
from hpctrain.parallel.state import ModelState
from hpctrain.parallel.work import Options, Work

__all__ = ["made_up", "measure", "peak_bytes", "peak_of_two_steps", "reset_peak", "warm_up"]


def measure(subject: Subject) -> dict[str, str]:
    """Return planned and measured bytes of two training steps, as text."""
    planned, peak = peak_of_two_steps(subject)
    return {
        "arena and losses, planned": f"{planned:,} bytes",
        "peak of the process": f"{peak:,} bytes beyond the state before, "
        f"{peak / max(1, planned):.3f} of the plan",
    }


def peak_of_two_steps(subject: Subject) -> tuple[int, int]:
    """Run two training steps and return planned and measured bytes.

    Returns
    -------
    planned : int
        Of the arena and of the results.
    peak : int
        Largest resident memory during the steps beyond that before them; parameters,
        gradients and the batch are there before.

    Raises
    ------
    ConfigError
        If the system cannot reset the peak of a process (it must be Linux).
    """
    state = ModelState(subject.net.collect_params(), subject.optimizer)
    rng = np.random.default_rng(0)
    inputs, targets = ([made_up(rng, s) for s in specs] for specs in subject.specs)
    work = Work(tuple(inputs), tuple(targets), subject.batch, subject.batch)
    warm_up(state.flat.dtype)
    bound = BoundStep(
        subject.objective, state, subject.specs, Pool(), Options(memory=subject.memory)
    )
    plan = bound.plan
    before = reset_peak()
    for step in range(2):
        bound.feed(work, step)
        bound.run.run()
    results = sum(plan.graph.specs[v].nbytes for v in plan.graph.outputs[:2])
    return plan.arena_bytes + results, peak_bytes() - before


def warm_up(dtype: Any) -> None:
    """Let BLAS touch the memory in which it packs factors: as much as a large product needs."""
    high, wide = np.ones((512, 1024), dtype), np.zeros((1024, 16384), dtype)
    _ = high @ wide
    _ = wide.T @ high.T
    if dnnl.library() is not None and np.dtype(dtype) == np.float32:
        # So does oneDNN, and it makes its machine code at the first use.
        x, state = np.ones((1, 32, 512), dtype), np.zeros((32, 512), dtype)
        weight, bias = np.zeros((2048, 512), dtype), np.zeros(2048, dtype)
        with record():
            inputs = [Tensor(a) for a in (x, state, state, weight, weight, bias)]
            inputs[0].attach_grad()
            ops.lstm(*inputs)[0].backward()


def made_up(rng: np.random.Generator, spec: Spec) -> np.ndarray:
    """Return an array of ``spec``: small numbers, and for whole numbers 0 and 1."""
    if spec.dtype.kind == "f":
        return rng.standard_normal(spec.shape).astype(spec.dtype)
    return rng.integers(2, size=spec.shape).astype(spec.dtype)


def reset_peak() -> int:
    """Let the peak begin anew, and return the resident bytes now."""
    _give_back()
    try:
        Path("/proc/self/clear_refs").write_text("5")  # proc(5): resets VmHWM
    except OSError as error:
        raise ConfigError(
            f"summary --measure: cannot reset the peak of the process ({error.strerror}); "
            "it needs Linux with /proc/self/clear_refs"
        ) from None
    return int(psutil.Process().memory_info().rss)


def _give_back() -> None:
    """Return what is free to the system: later arrays in it would not show in the peak."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc
    if trim is not None:
        trim(0)


def peak_bytes() -> int:
    """Return the largest resident bytes since the reset."""
    found = re.search(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None, "Linux reports VmHWM"
    return int(found[1]) * 1024
