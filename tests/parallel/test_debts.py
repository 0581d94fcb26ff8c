"""What workers owe servers, in memory and across two runs."""

import numpy as np
import pytest
from replicas import batches, mlp, share
from serving import served

from hpctrain.comm.compress import codec
from hpctrain.optim import SGD
from hpctrain.parallel.debts import Debts
from hpctrain.parallel.terms import Terms


class Trade:
    """Two servers, three workers; 16 riders at the head of the first slice."""

    places = ((0, 48), (48, 80)), ((80, 96), (96, 100))
    group = type("Group", (), {"size": 3})


@pytest.mark.serial
def test_debts_of_all_are_divided_by_part_and_worker():
    debts = Debts(Trade)
    total = np.arange(100, dtype=np.float32)
    debts.take_over(total[:80], 0, 16)
    debts.take_over(total[80:], 1)

    state = debts.state()

    exact = {name: 0 if name.endswith("1") else 16 for name in state}
    spans = {name: debts.span(name, 80, exact[name]) for name in state}
    assert {name: (spans[name].start, owed.size) for name, owed in state.items()} == {
        "server 0/0": (16, 32), "server 1/0": (48, 32), "server 0/1": (0, 16),
        "server 1/1": (16, 4),
    }  # fmt: skip
    np.testing.assert_array_equal(state["server 1/1"], total[96:] / np.float32(3))
    again = Debts(Trade)
    again.load(state)
    again.rescale(2.0)
    np.testing.assert_array_equal(again.of(1, 1, 4), total[96:] / np.float32(3) * 2)


def float32(model):
    for parameter in model.parameters.values():
        parameter.cast(np.float32)
    return model


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("servers", [1, pytest.param(2, marks=pytest.mark.mpi(min_size=3))])
def test_a_run_that_is_resumed_has_the_bits_of_one_that_goes_on(world, servers):
    """Parameters, optimizer and debts are saved after four steps; four more follow."""
    terms = Terms(servers=servers, codec=lambda: codec("2bit", threshold=0.01))
    steps = [(x.astype(np.float32), y) for x, y in batches([(12, 6)] * 8)]

    def make(step, data):
        for (batch,) in data:
            step.result(step.step(share(batch, step.group)))
        step.engine.wait_all()
        step.catch_up()

    def first(step, data):
        make(step, data[:4])
        saved = {"weights": step.state.flat.weights.copy(), **step.trade.fetch()}
        debts = step.debts.state()
        assert any(owed.any() for owed in debts.values())
        make(step, data[4:])
        return saved, debts, step.state.flat.weights.copy()

    found, _ = served(
        float32(mlp()), SGD(momentum=0.9), world, steps, terms, use=first, slice_bytes=256
    )

    def second(step, data):
        saved, debts, _ = found
        step.state.flat.weights[:] = saved["weights"]
        step.trade.store(saved)
        step.debts.load(debts)
        step.begin_at(4)
        make(step, data)
        return step.state.flat.weights.copy()

    again, _ = served(
        float32(mlp()), SGD(momentum=0.9), world, steps[4:], terms, use=second, slice_bytes=256
    )
    if world.rank >= servers:
        np.testing.assert_array_equal(again[16:], found[2][16:])
