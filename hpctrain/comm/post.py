"""Letters between workers and servers: sent, awaited, and found when they come unasked."""

from collections.abc import Iterator

from mpi4py import MPI

from hpctrain.comm.group import Group
from hpctrain.comm.lasting import Deaths
from hpctrain.comm.letter import HEADER_BYTES, Letter
from hpctrain.comm.request import Handle, call
from hpctrain.comm.transfer import Pool
from hpctrain.errors import CommError, LostRankError

__all__ = ["CONTROL", "PUSH", "Post", "reply_tag"]

PUSH, CONTROL = 1, 2  # tags of what servers get
_REPLIES, _TAGGED = 16, 2**14  # below the 32767 that every MPI has


def reply_tag(key: int) -> int:
    """Return the tag of an answer about a slice: one is under way once at a time."""
    return _REPLIES + key % _TAGGED


class Post:
    """Sends and receives letters.

    Parameters
    ----------
    group : Group
        Used by this alone. Threads may share it: its messages are between pairs.
    debug : bool
        Whether letters have checksums.
    deaths : Deaths, optional
        Of the group, if it goes on when somebody dies.

    Attributes
    ----------
    pool : Pool
        The memory of letters.
    """

    def __init__(self, group: Group, debug: bool = False, deaths: Deaths | None = None) -> None:
        self.group, self.debug, self.deaths = group, debug, deaths
        self.rank, self.size = group.rank, group.size
        self.pool = Pool()
        self._block = MPI.BYTE.Create_contiguous(HEADER_BYTES).Commit()
        self._status = MPI.Status()

    def room(self, nbytes: int) -> Letter:
        """Return an empty letter with room for so many bytes behind the header."""
        return Letter.room(nbytes, self.pool)

    def send(self, letter: Letter, dest: int, tag: int) -> Handle:
        """Start to send a letter; its memory stays in use until that is complete."""
        what = f"letter to rank {dest}"
        data = [letter.memory, letter.blocks, self._block]
        return Handle(what, [call(what, self.group.comm.Isend, data, dest, tag)])

    def receive(self, letter: Letter, source: int, tag: int) -> Handle:
        """Start to receive into a letter; what comes may be shorter than its room."""
        what = f"letter from rank {source}"
        data = [letter.memory, letter.blocks, self._block]
        return Handle(what, [call(what, self.group.comm.Irecv, data, source, tag)])

    def arrivals(self, tag: int, most: int = 16) -> Iterator[tuple[int, Letter, Handle]]:
        """Yield sender and letter of each message that has come, and what says it is whole.

        The messages of one sender keep their order. For one thread at a time.
        """
        comm, status = self.group.comm, self._status
        for _ in range(most):
            try:
                message = call("letters", comm.Improbe, MPI.ANY_SOURCE, tag, status)
            except LostRankError:
                if self.deaths is None:
                    raise
                self.deaths.accept()  # the others go on writing
                return
            if message is None:
                return
            blocks, source = status.Get_count(self._block), status.Get_source()
            if blocks == MPI.UNDEFINED or blocks < 1:
                raise CommError(f"letter from rank {source}: it is no letter")
            letter = self.room((blocks - 1) * HEADER_BYTES)
            what = f"letter from rank {source}"
            request = call(what, message.Irecv, [letter.memory, blocks, self._block])
            yield source, letter, Handle(what, [request])

    def free(self) -> None:
        """Free the group; collective, with no letter under way."""
        self._block.Free()
        self.group.free()
