"""The encoder-decoder: padding has no influence, and it learns to reverse sequences."""

import numpy as np
import pytest
from mpi4py import MPI

from hpctrain import engine, models
from hpctrain.autograd import Tensor, record
from hpctrain.comm.group import Group
from hpctrain.models.seq2seq import count_tokens, greedy, shifted
from hpctrain.nn import MaskedSoftmaxCELoss
from hpctrain.optim import Adam, Constant
from hpctrain.parallel.data_parallel import DataParallel
from hpctrain.parallel.program import Objective
from hpctrain.parallel.state import ModelState
from hpctrain.parallel.work import LAG, Work

VOCAB, START, END = 12, 0, 1


def batch(rng, rows, longest):
    """Random tokens of unequal length, and the same in reverse with END behind them."""
    lengths = rng.integers(max(1, longest - 2), longest + 1, rows)
    source = np.zeros((rows, longest), np.int64)
    labels = np.full((rows, longest + 1), -1)
    for row, length in enumerate(lengths):
        tokens = rng.integers(2, VOCAB, length)
        source[row, :length] = tokens
        labels[row, : length + 1] = [*tokens[::-1], END]
    return source, lengths, labels


@pytest.mark.serial
@pytest.mark.parametrize("attention", [True, False])
@pytest.mark.parametrize("hybrid", [True, False])
def test_padding_has_no_influence(attention, hybrid):
    net = models.create("seq2seq", vocab=VOCAB, width=8, attention=attention).initialize(seed=3)
    net.cast("float64")
    net.hybridize(hybrid)
    source, lengths, labels = batch(np.random.default_rng(1), 5, 6)

    together = net(*map(Tensor, (source, lengths, shifted(labels, START)))).asnumpy()

    for row, length in enumerate(lengths):
        alone = (
            source[row : row + 1, :length], lengths[row : row + 1],
            shifted(labels[row : row + 1, : length + 1], START),
        )  # fmt: skip
        want = net(*(Tensor(a.copy()) for a in alone)).asnumpy()
        np.testing.assert_allclose(together[row, : length + 1], want[0], 1e-11, 1e-12)


@pytest.mark.serial
@pytest.mark.parametrize("attention", [True, False])
def test_hybridized_equals_eager_bit_for_bit(attention):
    source, lengths, labels = batch(np.random.default_rng(2), 4, 5)
    given = [Tensor(a) for a in (source, lengths, shifted(labels, START))]

    def step(hybrid):
        net = models.create("seq2seq", vocab=VOCAB, width=8, attention=attention)
        net.initialize(seed=3)
        net.hybridize(hybrid)
        with record():
            losses = MaskedSoftmaxCELoss()(net(*given), Tensor(labels))
        losses.backward()
        trained = [p for p in net.collect_params().values() if p.grad_req != "null"]
        return [losses.asnumpy(), *(p.grad().asnumpy() for p in trained)]

    for eager, captured in zip(step(False), step(True), strict=True):
        np.testing.assert_array_equal(captured, eager)


@pytest.mark.serial
def test_tokens_are_counted_once_for_each_sample():
    outputs = np.zeros((2, 3, 4))
    outputs[..., 2] = 1

    found = count_tokens(Tensor(outputs), Tensor(np.array([[2, 2, 1], [2, -1, -1]])))

    assert float(found) == pytest.approx(2 / 3 + 1)


@pytest.fixture
def world():
    with Group(MPI.COMM_WORLD.Dup()) as group:
        yield group


@pytest.mark.slow
def test_it_learns_to_reverse_sequences_of_unequal_length(world):
    """Each rank reads its own lengths: ranks differ in shape, and agree in their weights."""
    net = models.create("seq2seq", vocab=VOCAB, width=32, layers=1).initialize(seed=1)
    state = ModelState(net.collect_params(), Adam(), 2**20)
    objective = Objective(net, MaskedSoftmaxCELoss(), count_tokens)
    rng = np.random.default_rng(world.rank)
    rows, shares = 72 // world.size, []
    with engine.create("serial") as lanes:
        step = DataParallel(objective, state, Adam(), Constant(base_lr=1e-2), lanes, world)
        for number in range(200):
            source, lengths, labels = batch(rng, rows, (3, 4, 6)[(number + world.rank) % 3])
            inputs = (source, lengths, shifted(labels, START))
            work = Work(inputs, (labels,), rows, rows * world.size, rows * world.rank)
            if number == 0:
                step.prepare(*work.specs())
            shares.append(step.step(work))
            if number >= LAG:
                result = step.result(number - LAG)
                shares[number - LAG] = result.correct / result.count
        for number in range(200 - LAG, 200):
            step.result(number)
    assert np.mean(shares[-30:-LAG]) > 0.95
    assert len(set(world.allgather_obj(state.digest()))) == 1
    source, lengths, labels = batch(np.random.default_rng(99), 50, 6)
    found = greedy(net, source, lengths, START, END, 8)
    right = [
        list(row[: length + 1]) == list(label[: length + 1])
        for row, length, label in zip(found, lengths, labels, strict=True)
    ]
    assert np.mean(right) > 0.8
