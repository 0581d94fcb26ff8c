"""The fastest way that this machine has to multiply matrices, or to convolve, by shapes."""

import functools
import math
from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Any

import numpy as np

from hpctrain.autograd import Spec, primitive
from hpctrain.ops.dnnl import library
from hpctrain.ops.dnnl_product import WAYS, product_program

__all__ = ["fastest_conv", "fastest_product"]

_TRIES, _SECONDS = 15, 0.3


def fastest_product(rows: int, depth: int, columns: int, a_flip: bool, b_flip: bool) -> float:
    """Return the least seconds of a product, its first or second factor transposed."""
    rng = np.random.default_rng(0)
    a = _random(rng, (depth, rows) if a_flip else (rows, depth))
    b = _random(rng, (columns, depth) if b_flip else (depth, columns))
    a, b = a.T if a_flip else a, b.T if b_flip else b
    out = np.empty((rows, columns), np.float32)
    ways: list[Callable[[], Any]] = [functools.partial(np.matmul, a, b, out)]
    ways += _ways(a, b, out)
    return min(map(_least, ways))


def _random(rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
    return rng.standard_normal(shape, np.float32)


def _least(run: Callable[[], Any]) -> float:
    """Return the least time of some runs."""
    run()
    least, spent, tries = math.inf, 0.0, 0
    while tries < 3 or (tries < _TRIES and spent < _SECONDS):
        begun = perf_counter()
        run()
        taken = perf_counter() - begun
        least, spent, tries = min(least, taken), spent + taken, tries + 1
    return least


def _ways(a: Any, b: Any, out: Any) -> Iterator[Callable[[], Any]]:
    """Yield oneDNN's ways: each as it is, and without what it packs in the call."""
    found = library()
    if found is None:
        return
    found.use_threads(1)
    flips = not a.flags.c_contiguous, not b.flags.c_contiguous
    arrays = [x.T if flip else x for x, flip in ((a, flips[0]), (b, flips[1]), (out, False))]
    shape = (*a.shape, out.shape[1])
    for way in WAYS:
        try:
            build = product_program(found, [Spec.of(x) for x in arrays[:2]], shape, flips, way)
        except NotImplementedError:
            continue
        program = build.program(1)
        bound = program.bound(arrays, np.empty(program.nbytes, np.uint8))
        yield bound.run
        if way == "packed":
            bound.run()
            yield functools.partial(bound.run, bound.calls[-1:])


def fastest_conv(name: str, specs: tuple[Spec, ...], attrs: Any) -> float:
    """Return the least seconds of a row of convolution, alone, images channels last."""
    row, given = primitive(name), dict(attrs)
    rng = np.random.default_rng(0)
    ins = [_random(rng, s.shape) for s in specs]
    outs = [np.empty(s.shape, s.dtype) for s in row.infer(specs, **given)]
    wanted = row.scratch(specs, **given) if row.scratch else ()
    scratch = [np.empty(s.shape, s.dtype) for s in wanted]
    run = row.bind(np, ins, outs, scratch, **given) if row.bind else None
    return _least(run or functools.partial(row.kernel, np, ins, outs, scratch, **given))
