"""Orders of exchange for the slices of real models."""

import functools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpctrain import models
from hpctrain.comm.schedule import backward_order, best_order, lower_bound, simulate
from hpctrain.comm.timeline import Link, Piece, Step, Stretch
from hpctrain.parallel.flat import make_offsets, make_slices

pytestmark = pytest.mark.serial
examples = settings(max_examples=25, deadline=None, derandomize=True, database=None)

NAMES = ("mlp", "resnet20", "lstm", "gpt", "cosmo")
ITEM = 4  # float32
LINKS = st.builds(
    Link,
    latency_s=st.sampled_from([0.0, 2e-4]),
    bytes_per_s=st.sampled_from([1.2e8, 1.2e9]),
    in_flight=st.sampled_from([1, 8]),
    cpu_s_per_byte=st.sampled_from([0.0, 4e-10]),
)


@functools.cache
def sizes_of(name):
    """How many elements the trained parameters of a workload have."""
    parameters = models.workload(name).net.collect_params().values()
    return [int(np.prod(p.shape)) for p in parameters if p.grad_req != "null"]


def step_of(name, slice_mib, times):
    """A stretch for each parameter, forward and backward, that takes what ``times`` gives."""
    sizes = sizes_of(name)
    offsets, total = make_offsets(sizes, ITEM)
    slices = make_slices(offsets, sizes, total, round(slice_mib * 2**20 / ITEM))
    reads = [tuple(s.index for s in slices if p in s.parameters) for p in range(len(sizes))]
    # Final is a slice when the first of its parameters has its gradient; at the end the riders.
    first = {s.index: min(s.parameters, default=0) if s.index else 0 for s in slices}
    final = [tuple(s for s in first if first[s] == p) for p in range(len(sizes))]
    forward = [Stretch(times(n), read) for n, read in zip(sizes, reads, strict=True)]
    backward = [
        Stretch(2 * times(n), read, ends)
        for n, read, ends in zip(sizes, reads, final, strict=True)
    ]
    pieces = tuple(Piece(ITEM * (s.stop - s.start), times(s.stop - s.start)) for s in slices)
    return Step((*forward, *reversed(backward)), pieces)


@pytest.mark.parametrize("name", NAMES)
@examples
@given(st.integers(0, 2**16), st.sampled_from([0.25, 1.0, 4.0]), LINKS)
def test_the_best_order_of_a_model_is_no_worse_than_that_of_its_backward_pass(
    name, seed, slice_mib, link
):
    rng = np.random.default_rng(seed)
    step = step_of(name, slice_mib, lambda n: n * 1e-9 * rng.integers(1, 20) + 1e-5)

    best = best_order(step, link)

    assert sorted(best) == list(range(len(step.pieces)))
    time = simulate(step, link, best).step_s
    assert time <= simulate(step, link, backward_order(step)).step_s * 1.001
    assert time >= lower_bound(step, link) - 1e-9


@pytest.mark.parametrize(("name", "gain"), [("mlp", 0.02), ("lstm", 0.06)])
def test_between_hosts_large_models_gain_by_what_is_needed_first(name, gain):
    """At 1 Gbit/s, and 4 ns of computation for each weight and pass."""
    step = step_of(name, 1.0, lambda n: 4e-9 * n)
    link = Link(2e-4, 1.2e8, 8)

    best, backward = (
        simulate(step, link, find(step)).step_s
        for find in (lambda step: best_order(step, link), backward_order)
    )

    assert best < (1 - gain) * backward
    assert best < 1.001 * lower_bound(step, link)
