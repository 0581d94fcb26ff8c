"""Workers that have died, and whether a run can go on without them."""

from collections.abc import Callable, Sequence

from hpctrain.errors import LostRankError

__all__ = ["Losses", "nobody_dies"]

AGAIN = "start the same command again, which goes on from the last checkpoint"


class Losses:
    """Counts the dead among the ranks of a run with servers.

    Parameters
    ----------
    deaths : callable
        Returns the ranks that have died since its last call; see `hpctrain.comm.lasting`.
    servers : int
        The first ranks, which serve. The rank behind them leads the workers.
    tolerate : int
        How many workers the run can do without.
    hosts : sequence of str, optional
        By rank, for messages.

    Attributes
    ----------
    ranks : list of int
        The dead, in the order of the news.
    """

    def __init__(
        self,
        deaths: Callable[[], Sequence[int]],
        servers: int,
        tolerate: int,
        hosts: Sequence[str] = (),
    ) -> None:
        self.ranks: list[int] = []
        self.tolerate = tolerate
        self._deaths, self._servers, self._hosts = deaths, servers, hosts

    def news(self) -> Sequence[int]:
        """Return the workers that have died since the last call.

        Raises
        ------
        LostRankError
            If the run cannot go on: a server has died, the first worker, or too many.
        """
        found = self._deaths()
        for rank in found:
            if rank < self._servers:
                raise LostRankError(
                    f"server: {self.name(rank)} has died, and with it the parameters that it "
                    f"served; {AGAIN}"
                )
            if rank == self._servers:
                raise LostRankError(
                    f"workers: {self.name(rank)} has died, which leads them and writes the "
                    f"checkpoints; {AGAIN}"
                )
        self.ranks += found
        if len(self.ranks) > self.tolerate:
            dead = ", ".join(map(self.name, self.ranks))
            raise LostRankError(
                f"workers: {dead} died, needed all but {self.tolerate} (exchange.tolerate); "
                f"{AGAIN}"
            )
        return found

    def name(self, rank: int) -> str:
        """Return ``rank 3 on host``."""
        return f"rank {rank} on {self._hosts[rank]}" if self._hosts else f"rank {rank}"


def nobody_dies() -> Losses:
    """Return that of a run whose ranks all live, or all end."""
    return Losses(lambda: (), 0, 0)
