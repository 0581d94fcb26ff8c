import time

import pytest
from mpi4py import MPI

from hpctrain.comm.mail import Mail

LIMIT_S = 20


@pytest.fixture
def mail():
    """Mail among all ranks."""
    made = Mail(MPI.COMM_WORLD.Dup())
    yield made
    made.close()


def taken(mail, count):
    """The next messages, as they come."""
    found, end = [], time.monotonic() + LIMIT_S
    while len(found) < count:
        assert time.monotonic() < end, f"only {found}"
        found += mail.received()
    return found


def test_messages_go_around_in_order(mail):
    right, left = (mail.rank + 1) % mail.size, (mail.rank - 1) % mail.size
    values = [{"ask": 1, "limit_s": 0.5}, ["é", None], "x" * 100_000]
    for value in values:
        mail.send(right, value)

    assert taken(mail, 3) == [(left, value) for value in values]


def test_what_nobody_has_taken_is_dropped_at_the_end(mail):
    for rank in range(mail.size):
        mail.send(rank, "too late")


def test_nothing_is_there_before_somebody_sends(mail):
    assert list(mail.received()) == []


def test_what_was_sent_before_ranks_meet_is_there_after(mail):
    for rank in range(mail.size):
        mail.send(rank, mail.rank)
    mail.meet()

    assert sorted(taken(mail, mail.size)) == [(rank, rank) for rank in range(mail.size)]
