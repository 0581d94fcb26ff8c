"""The ranks that train where others serve them, as a world of their own."""

import os

from mpi4py import MPI

from hpctrain.comm.lasting import Deaths, Lasting
from hpctrain.comm.world import World
from hpctrain.errors import ConfigError

__all__ = ["Crew"]


class Crew(World):
    """The ranks of one kind: those that serve, or those that work.

    Collective over all ranks, on the main thread. It is left with the world that it is of.

    Parameters
    ----------
    whole : World
    servers : int
        The first ranks, which serve.
    lasts : bool
        Go on when a worker dies; only where MPI bears it.

    Attributes
    ----------
    whole : World
        All ranks.
    serves : bool
        Whether this rank is one of the servers.
    servers : int
    post : Group
        All ranks, for messages between workers and servers.
    deaths : Deaths or None
        Of ``post``, if its ranks may be lost.
    host_of : list of str
        By rank in ``post``.
    processes : list of int
        The same: the process that a launcher names when it has died.

    Raises
    ------
    ConfigError
        If nobody is left to work.
    """

    def __init__(self, whole: World, servers: int, lasts: bool = False) -> None:
        if servers >= whole.size:
            raise ConfigError(
                f"exchange.servers: got {servers} of {whole.size} ranks, which leaves nobody "
                "to train; start more ranks, or fewer servers"
            )
        self._of = whole
        self.guard, self.library, self.host = whole.guard, whole.library, whole.host
        self.servers, self.serves = servers, whole.rank < servers
        self.group = whole.group.split(int(self.serves), whole.rank)
        self.control = whole.control.split(int(self.serves), whole.rank)
        self.post = whole.group.dup()
        facts = whole.control.allgather_obj([whole.host, os.getpid()])
        self.host_of: list[str] = [host for host, _ in facts]
        self.processes: list[int] = [process for _, process in facts]
        self.deaths = Deaths(self.post) if lasts else None
        if lasts:
            self.control, whole.guard.lasts = Lasting(self.control), True
        self.rank, self.size = self.group.rank, self.group.size
        self.hosts = tuple(dict.fromkeys(self.control.allgather_obj(self.host)))
        node = self.group.comm.Split_type(MPI.COMM_TYPE_SHARED, key=self.rank)
        self.local_rank, self.local_size = node.Get_rank(), node.Get_size()
        node.Free()

    def recount(self) -> bool:
        """Take note of ranks that its last collective has lost; return whether there are any.

        The same on all of its ranks.
        """
        lost = self.control.size < self.size
        self.rank, self.size = self.control.rank, self.control.size
        return lost

    @property
    def described(self) -> str:
        """Who serves, and how."""
        found = [
            f"rank {rank} on {self.host_of[rank]}, process {self.processes[rank]}"
            for rank in range(self.servers)
        ]
        return "; ".join(found)

    @property
    def whole(self) -> World:
        """All ranks."""
        return self._of

    def free(self) -> None:
        """Free its groups; collective over all ranks."""
        for group in (self.group, self.control, self.post):
            group.free()
