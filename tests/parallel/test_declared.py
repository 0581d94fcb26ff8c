"""What a task of a step touches is what it has declared to the engine.

The engine here runs each task with everything that the task has not declared spoilt by NaN,
and puts that back afterwards: a task that reads it gives NaN, one that writes it is seen.
"""

import time

import numpy as np
import pytest
from replicas import batches, convnet, mlp, serial, share, trainer, twin_biases

from hpctrain.engine import SerialEngine
from hpctrain.optim import SGD, Adam
from hpctrain.parallel.work import Options

MODELS = {"mlp": (mlp, (6,)), "conv": (convnet, (6, 5, 2))}
SIZES = (7, 1, 5)


class Strict(SerialEngine):
    """Lets a task see what it has declared, and nothing else."""

    state = None

    def push(
        self, fn, reads=(), writes=(), lane="compute", priority=0, name="", deferred=False
    ):
        reads, writes = tuple(reads), tuple(writes)

        def whole():
            pending = fn()
            while deferred and pending is not None and not pending.test():
                time.sleep(1e-5)

        super().push(
            lambda: self._alone(whole, reads, writes), reads, writes, lane, priority, name
        )

    def _alone(self, fn, reads, writes):
        writable = {v.name for v in writes}
        readable = {v.name for v in reads} | writable
        buffers = self._buffers()
        before = [buffer.copy() for buffer, _ in buffers]
        for buffer, names in buffers:
            buffer[~np.isin(names, list(readable))] = np.nan
        fn()
        for (buffer, names), old in zip(buffers, before, strict=True):
            declared, mine = (np.isin(names, list(known)) for known in (readable, writable))
            assert np.isnan(buffer[~declared]).all(), "something undeclared was written"
            np.testing.assert_array_equal(buffer[declared & ~mine], old[declared & ~mine])
            buffer[~mine] = old[~mine]

    def _buffers(self):
        """Return each buffer, and for each of its elements the variable that stands for it."""
        flat = self.state.flat
        index = np.empty(flat.total, int)
        for piece in flat.slices:
            index[piece.start : piece.stop] = piece.index
        parameters = np.char.add("parameters ", index.astype(str))
        found = [(b, parameters) for b in (flat.weights, *self.state.optimizer.values())]
        return [*found, (flat.grads, np.char.add("gradients ", index.astype(str)))]


@pytest.mark.parametrize("slice_bytes", [64, 200, 2**20])
@pytest.mark.parametrize("clip", [0.0, 0.3])
@pytest.mark.parametrize("overlap", [True, False], ids=["overlap", "after"])
@pytest.mark.parametrize("name", MODELS)
def test_a_step_touches_what_it_declares(world, name, overlap, clip, slice_bytes):
    if not overlap and world.size > 1:
        pytest.skip("messages under way must not be spoilt")
    if slice_bytes < 2**20 and world.size > 1:
        pytest.skip("many slices are tried on one rank: spoiling all others takes its time")
    make, shape = MODELS[name]
    check(world, make, [(n, *shape) for n in SIZES], Options(overlap, clip), slice_bytes)


@pytest.mark.parametrize("slice_bytes", [24, 64])
def test_so_does_one_with_equal_gradients(world, slice_bytes):
    check(world, twin_biases, [(n, 6) for n in SIZES], Options(), slice_bytes)


def check(world, make, shapes, options, slice_bytes):
    one, many, data = make(), make(), batches(shapes)
    optimizer = Adam(weight_decay=0.01) if options.clip_norm else SGD(momentum=0.9)
    expected = serial(one, optimizer, data, options.clip_norm)
    engine = Strict()
    step = trainer(many, optimizer, world, engine, data[0], options, slice_bytes)
    engine.state = step.state

    results = [step.result(step.step(share(batch, world))) for batch in data]
    engine.wait_all()

    for (loss, correct, count), result in zip(expected, results, strict=True):
        assert result.loss_sum == pytest.approx(loss, rel=1e-10)
        assert (result.correct, result.count) == (correct, count)
    for parameter, tensor in zip(one.parameters.values(), step.state.trained, strict=True):
        np.testing.assert_allclose(tensor.array, parameter.data().array, rtol=1e-9, atol=1e-12)
