"""Training with servers against the serial twin."""

import numpy as np
import pytest
from replicas import batches, mlp, serial
from serving import served

from hpctrain.errors import ConfigError
from hpctrain.optim import SGD, Adam
from hpctrain.parallel.terms import Terms
from hpctrain.parallel.work import Options

pytestmark = pytest.mark.mpi(min_size=2)

STEPS = 6


def data(sizes=(12,) * STEPS):
    return batches([(n, 6) for n in sizes])


def compared(world, optimizer, terms=None, options=None, steps=None, **more):
    """Train served and serially; return results of both, and parameters on workers."""
    steps = steps or data()
    model, twin = mlp(), mlp()
    results, _ = served(model, optimizer, world, steps, terms, options, **more)
    clip = options.clip_norm if options else 0.0
    flat = [
        tuple(map(np.concatenate, zip(*s, strict=True))) if isinstance(s, list) else s
        for s in steps
    ]
    expected = serial(twin, optimizer, flat, clip)
    return results, expected, model, twin


def check(world, servers, results, expected, model, twin, tolerance=1e-12):
    if world.rank < servers:
        assert results == {"do": "stop", "finished": True}
        return
    for result, (loss, right, count) in zip(results, expected, strict=True):
        assert result.loss_sum == pytest.approx(loss, rel=tolerance)
        assert (result.correct, result.count) == (right, count)
    for name, parameter in model.parameters.items():
        np.testing.assert_allclose(
            parameter.data().array,
            twin.parameters[name].data().array,
            rtol=tolerance,
            atol=tolerance,
        )


@pytest.mark.parametrize("optimizer", [SGD(momentum=0.9, weight_decay=1e-3), Adam()])
@pytest.mark.parametrize("options", [
    Options(), Options(overlap=False), Options(clip_norm=0.05), Options(accumulate=2),
    Options(shard=2), Options(skip=True, loss_scale=8.0),
], ids=["overlap", "no overlap", "clipped", "accumulated", "shards", "skip"])  # fmt: skip
def test_a_synchronous_server_gives_what_one_rank_gives(world, optimizer, options):
    steps = data()
    if options.accumulate > 1:
        steps = [steps[i : i + 2] for i in range(0, STEPS, 2)]

    check(world, 1, *compared(world, optimizer, None, options, steps, slice_bytes=256))


@pytest.mark.mpi(min_size=3)
@pytest.mark.parametrize(
    "options", [Options(), Options(clip_norm=0.05)], ids=["free", "clipped"]
)
def test_several_servers_share_the_slices(world, options):
    check(world, 2, *compared(world, Adam(), Terms(servers=2), options, slice_bytes=256))


@pytest.mark.parametrize("optimizer", [SGD(momentum=0.9), Adam()], ids=["momentum", "adam"])
def test_fifty_steps_with_unequal_parts_stay_with_one_rank(world, optimizer):
    sizes = [(12, 7, 1, 9)[step % 4] for step in range(50)]
    options = Options(clip_norm=0.5, accumulate=2)
    steps = [[a, b] for a, b in zip(data(sizes), data(sizes[::-1]), strict=True)]

    found = compared(world, optimizer, None, options, steps, slice_bytes=256)
    check(world, 1, *found, tolerance=1e-9)


def test_a_worker_without_a_sample_closes_the_round_too(world):
    """T7: a part that is shorter, or empty, ends in step with the others."""
    steps = data((1, 12, 2, 1))

    check(world, 1, *compared(world, SGD(momentum=0.9), None, None, steps))


@pytest.mark.parametrize("kind", ["threaded", "serial"])
def test_either_engine_trains_a_worker(world, kind):
    check(world, 1, *compared(world, SGD(momentum=0.9), kind=kind))


@pytest.mark.parametrize("options", [
    Options(), Options(clip_norm=0.05), Options(clip_norm=0.05, overlap=False),
    Options(skip=True, loss_scale=8.0),
], ids=["free", "clipped", "no overlap", "skip"])  # fmt: skip
@pytest.mark.parametrize("mode", ["async", "bounded"])
def test_one_worker_trains_the_same_in_every_mode(world, mode, options):
    """Where nobody else updates, an update that waits for nobody is that of the sync server.

    In MXNet a server that updates cannot clip by the norm of the whole gradient.
    """
    group = world.split(0 if world.rank < 2 else 1 + world.rank)
    if group.size == 2:
        check(group, 1, *compared(group, Adam(), Terms(mode=mode), options, slice_bytes=256))
    group.free()


def test_without_staleness_bounded_is_synchronous(world):
    check(world, 1, *compared(world, Adam(), Terms(mode="bounded", staleness=0)))


@pytest.mark.parametrize("options", [Options(sharded=True), Options(shard=2)])
def test_options_that_servers_cannot_carry_out_are_refused(options):
    if options.sharded:
        with pytest.raises(ConfigError, match=r"Options\.sharded"):
            Terms().check(options)
    else:
        Terms().check(options)
