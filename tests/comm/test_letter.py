"""Headers and bodies of letters, and letters between ranks."""

import numpy as np
import pytest
from mpi4py import MPI

from hpctrain.comm.group import Group
from hpctrain.comm.letter import HEADER_BYTES, Header, Letter, Op
from hpctrain.comm.post import PUSH, Post, reply_tag
from hpctrain.comm.transfer import Pool
from hpctrain.comm.words import hear, say
from hpctrain.errors import CommError


@pytest.fixture
def post():
    made = Post(Group(MPI.COMM_WORLD.Dup()), debug=True)
    yield made
    made.free()


def letter(values, header=None, debug=False):
    made = Letter.room(values.nbytes, Pool())
    made.view(values.dtype, values.size)[:] = values
    made.seal(header or Header(Op.PUSH, 3, dtype=values.dtype.char), debug)
    return made


@pytest.mark.serial
def test_a_header_comes_out_as_it_went_in():
    header = Header(Op.ROWS, 2**32 - 1, 2**40, 2**33, 2**34, "q", 127, -5, 0.375, 1e-30)

    made = letter(np.arange(3), header, debug=True)

    assert made.open("here") == header
    assert made.memory[HEADER_BYTES - 4 : HEADER_BYTES].size == 4
    np.testing.assert_array_equal(made.view(np.int64, 3), np.arange(3))


@pytest.mark.serial
@pytest.mark.parametrize("byte", [HEADER_BYTES, HEADER_BYTES + 11])
def test_a_damaged_body_is_found_in_debug_mode(byte):
    made = letter(np.arange(5, dtype=np.float32), debug=True)
    made.memory[byte] ^= 4

    with pytest.raises(CommError, match="checksum of slice 3, version 0, is wrong"):
        made.open("here")


@pytest.mark.serial
def test_what_is_no_header_is_refused():
    made = letter(np.zeros(4))
    made.memory[:HEADER_BYTES] = 255

    with pytest.raises(CommError, match="got operation 255"):
        made.open("here")


@pytest.mark.serial
def test_memory_goes_back_to_the_pool_once():
    pool = Pool()
    first = Letter.room(900, pool)
    memory = first.memory
    first.close()
    first.close()

    assert Letter.room(900, pool).memory is memory
    assert Letter.room(900, pool).memory is not memory
    assert pool.made == 2


@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 70_000])
def test_a_letter_goes_round_the_ranks(post, count):
    dest, source = (post.rank + 1) % post.size, (post.rank - 1) % post.size
    values = np.arange(count, dtype=np.float32) + post.rank
    mine = post.room(values.nbytes)
    mine.view(np.float32, count)[:] = values
    mine.seal(Header(Op.PUSH, 5, version=post.rank, length=count), post.debug)

    sending = post.send(mine, dest, PUSH)
    found = []
    while not found:
        found = list(post.arrivals(PUSH))
    ((who, came, handle),) = found
    handle.wait()
    sending.wait()

    header = came.open("test")
    assert (who, header.version, header.length) == (source, source, count)
    np.testing.assert_array_equal(
        came.view(np.float32, count), np.arange(count, dtype=np.float32) + source
    )


def test_a_letter_may_be_shorter_than_the_room_for_it(post):
    mine, room = post.room(64), post.room(4096)
    mine.view(np.int64, 8)[:] = post.rank
    mine.seal(Header(Op.VALUE, 5), post.debug)
    dest, source = (post.rank + 1) % post.size, (post.rank - 1) % post.size

    receiving = post.receive(room, source, reply_tag(5))
    post.send(mine, dest, reply_tag(5)).wait()
    receiving.wait()

    assert (room.view(np.int64, 8) == source).all()


def test_letters_of_one_sender_keep_their_order(post):
    dest, source = (post.rank + 1) % post.size, (post.rank - 1) % post.size
    sizes = [70_000, 0, 300, 90_000, 8]
    letters, handles = [post.room(size) for size in sizes], []
    for number, each in enumerate(letters):
        each.seal(Header(Op.PUSH, number), post.debug)
        handles.append(post.send(each, dest, PUSH))

    came = []
    while len(came) < len(sizes):
        came += post.arrivals(PUSH)
    for _, _, handle in came:
        handle.wait()
    for handle in handles:
        handle.wait()

    assert [each.open("test").key for _, each, _ in came] == [0, 1, 2, 3, 4]
    assert {who for who, _, _ in came} == {source}


def test_words_are_heard_as_they_are_said(post):
    dest, source = (post.rank + 1) % post.size, (post.rank - 1) % post.size
    if post.size == 1:
        pytest.skip("nobody to talk to")

    if post.rank == 0:
        say(post, dest, {"do": "ä", "rank": post.rank})
    heard = [hear(post)]
    if post.rank:
        say(post, dest, {"do": "ä", "rank": post.rank})

    assert heard == [(source, {"do": "ä", "rank": source})]
