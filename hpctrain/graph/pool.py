"""Working memory that several plans share, of which only one runs at a time."""

from typing import Any

from hpctrain import backend

__all__ = ["Pool"]


class Pool:
    """One arena on each device, as large as the largest plan needs.

    Notes
    -----
    It grows when a plan asks for more. The executors of other plans notice when they are fed
    the next time, and move; until then they keep the old arena, so that nothing that runs is
    disturbed.
    """

    def __init__(self) -> None:
        self._arenas: dict[backend.Device, Any] = {}

    def arena(self, nbytes: int, device: backend.Device) -> Any:
        """Return the arena on ``device``, an array of uint8 of at least ``nbytes``."""
        known = self._arenas.get(device)
        if known is None or known.nbytes < nbytes:
            known = self._arenas[device] = backend.empty((nbytes,), "uint8", device)
        return known

    def lend(self, arena: Any, device: backend.Device) -> None:
        """Let ``arena``, memory that belongs to somebody else, be the arena on ``device``."""
        self._arenas[device] = arena

    @property
    def nbytes(self) -> int:
        """Bytes of all arenas."""
        return sum(int(arena.nbytes) for arena in self._arenas.values())
