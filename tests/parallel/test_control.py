"""A loop in the plan of data parallelism: its gradients go into the flat buffers."""

import numpy as np
import pytest
from replicas import Model, batches, parallel, parameters, serial, share, trainer

from hpctrain import control, ops
from hpctrain.engine import create
from hpctrain.optim import Adam
from hpctrain.parallel.work import Options


def looping():
    """A recurrence over the steps of (N, T, 3), which a choice follows; 5 classes."""
    shapes = {"w": (4, 3), "u": (4, 4), "b": (4,), "v": (5, 4), "c": (5,), "d": (5,)}
    model = Model(parameters(shapes), None)

    def net(x):
        t = model.tensor

        def body(part, h):
            new = ops.tanh(ops.dense(part, t("w"), t("b")) + ops.dense(h, t("u")))
            return new * t("b"), new

        start = ops.zeros_like(ops.dense(x[:, 0], t("w")))
        y, last = control.foreach(body, ops.transpose(x, (1, 0, 2)), start)
        z = ops.dense(last + ops.mean(y, 0), t("v"), t("c"))
        return control.cond(
            ops.sum(t("c")) > ops.sum(t("d")), lambda: z * t("d"), lambda: z + t("d")
        )

    model.net = net
    return model


@pytest.mark.parametrize("overlap", [True, False], ids=["overlap", "after"])
def test_a_model_with_control_flow_trains_on_ranks_as_on_one(world, overlap):
    one, many = looping(), looping()
    data = batches([(n, steps, 3) for n, steps in ((7, 4), (5, 2), (2, 6), (7, 4), (1, 3))])
    expected = serial(one, Adam(), data)

    results, state = parallel(
        many, Adam(), world, data, "threaded", Options(overlap=overlap), slice_bytes=64
    )

    for (loss, correct, count), result in zip(expected, results, strict=True):
        assert result.loss_sum == pytest.approx(loss, rel=1e-10)
        assert (result.correct, result.count) == (correct, count)
    found = state.arrays()
    for name, parameter in one.parameters.items():
        np.testing.assert_allclose(
            found[f"parameters/{name}"], parameter.data().asnumpy(), 1e-10, 1e-12
        )


def test_all_shapes_of_batches_work_in_the_memory_of_the_largest(world):
    shapes = [(6 * world.size, steps, 3) for steps in (2, 9, 4)]

    def trained(given):
        model = looping()
        with create("threaded") as engine:
            step = trainer(model, Adam(), world, engine, batches(given[:1])[0])
            for batch in batches(given * 2):
                step.result(step.step(share(batch, world)))
            return step.statistics()

    many, largest = trained(shapes), trained(shapes[1:2])

    assert (many.calls, many.captures, many.kept) == (7, 3, 3)  # one by prepare
    assert many.arena_bytes == largest.arena_bytes > 0
