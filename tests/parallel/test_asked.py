"""Row numbers of large tables, between a worker and servers that are not there."""

from types import SimpleNamespace

import numpy as np
import pytest

from hpctrain.comm.letter import Letter, Op
from hpctrain.comm.request import Handle
from hpctrain.comm.transfer import Pool
from hpctrain.optim import SGD
from hpctrain.parallel.asked import AskedRows
from hpctrain.parallel.flat import Slice
from hpctrain.parallel.placement import place
from hpctrain.parallel.served_rows import ServedRows
from hpctrain.parallel.tables import Table
from hpctrain.parallel.terms import Push
from hpctrain.parallel.work import Work

pytestmark = pytest.mark.serial

HEIGHT = 60_000_000
START = 16
SOME = [0, 2**24 + 1, 2**25 + 3, 39_999_999, 40_000_000, 59_999_999]


class Sent:
    """A post that keeps what it sends."""

    rank, debug = 3, False

    def __init__(self):
        self.letters = []

    def room(self, nbytes):
        return Letter.room(nbytes, Pool())

    def send(self, letter, dest, tag):
        self.letters.append((dest, letter.open("a test"), letter))
        return Handle()

    def receive(self, letter, source, tag):
        return Handle()


def a_worker(servers):
    """Rows of one element, most of which are never touched: they take no memory."""
    piece = Slice(1, START, START + HEIGHT, (0,))
    flat = SimpleNamespace(
        slices=[Slice(0, 0, START, ()), piece],
        weights=np.zeros(START + HEIGHT, np.float32),
        dtype=np.dtype(np.float32),
    )
    places = place(flat.slices, servers, {1: 1})
    trade = SimpleNamespace(post=Sent(), places=places, is_far=lambda server: True)
    grads = np.zeros(START + HEIGHT, np.float32)
    rows = AskedRows(trade, grads, flat, {0: Table(0, HEIGHT, 1, len(SOME))})
    rows.note(Work((np.array(SOME[::-1] + SOME[:2]),), (), 1, 1), 7)
    return rows, trade, piece, grads


@pytest.mark.parametrize("servers", [1, 2, 3])
def test_numbers_of_60_million_rows_are_exact_both_ways(servers):
    """In MXNet numbers are floats, so that some rows above 2**24 are others."""
    rows, trade, piece, grads = a_worker(servers)
    grads[START + np.array(SOME)] = np.arange(1, 1 + len(SOME))
    weights = np.zeros(START + HEIGHT, np.float32)
    expected = weights[:0]

    rows.ask(piece, 7)
    asked, trade.post.letters = trade.post.letters, []
    assert [header.op for _, header, _ in asked] == [Op.PULL] * servers
    for server in range(servers):
        letter = rows.packed(piece, server, 7, 1.0, 1.0)
        spans = [part[server] for part in trade.places]
        served = ServedRows({1: 1}, spans, np.zeros(START + HEIGHT, np.float32), few=True)
        push = Push(letter.open("a test"), 3, letter)
        served.add_up(1, [push], [])
        served.update(1, SGD(), weights, {"lr": 1.0, "step": 0, "scale": 1.0})
        _, header, wanted = asked[server]
        answer = served.wanted(1, Push(header, 3, wanted), weights, trade.post)
        expected = np.append(expected, answer.view(np.float32, header.number))

    assert expected.tolist() == [-1, -2, -3, -4, -5, -6]
    assert weights[START + np.array(SOME)].tolist() == expected.tolist()
    assert np.count_nonzero(weights) == len(SOME)


def test_a_number_is_64_bits_on_the_wire():
    rows, trade, piece, _ = a_worker(1)
    rows.ask(piece, 7)

    ((_, header, letter),) = trade.post.letters
    assert header.number == len(SOME)
    assert letter.view(np.int64, len(SOME)).tolist() == sorted(SOME)
