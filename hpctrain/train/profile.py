"""A timeline of some steps: every rank records, rank 0 writes one file on one clock."""

from collections.abc import Callable
from pathlib import Path

from hpctrain.comm.clock import offsets
from hpctrain.comm.world import World
from hpctrain.engine import Engine
from hpctrain.errors import ConfigError
from hpctrain.parallel.recorded import Servers
from hpctrain.trace import Recorder, load, write_chrome_trace

__all__ = ["Profile", "parse_steps"]


def parse_steps(text: str) -> tuple[int, int] | None:
    """Return the first and the last step of ``FIRST:LAST``, or None for an empty text.

    Examples
    --------
    >>> parse_steps("10:12")
    (10, 12)
    """
    if not text:
        return None
    first, _, last = text.partition(":")
    if not (first.isdigit() and last.isdigit() and 1 <= int(first) <= int(last)):
        raise ConfigError(
            f'run.profile: got "{text}", needed FIRST:LAST with 1 <= FIRST <= LAST'
        )
    return int(first), int(last)


class Profile:
    """Records the steps ``first`` to ``last``, counted from 1, and writes them to ``path``.

    Parameters
    ----------
    steps : (int, int) or None
        None records nothing.
    recorder : Recorder
        The engine's.
    engine : Engine
    world : World
    path : Path or None
        Rank 0's; the others may pass None.
    closing : callable, optional
        Called at the end of the recording, before it is closed; may be collective.
    servers : Servers, optional
        They record as well, and come first in the trace, as they do among the ranks.
    """

    def __init__(  # noqa: PLR0913 (two of them are for few)
        self,
        steps: tuple[int, int] | None,
        recorder: Recorder,
        engine: Engine,
        world: World,
        path: Path | None,
        closing: Callable[[], None] | None = None,
        servers: Servers | None = None,
    ) -> None:
        self._steps = steps
        self._recorder = recorder
        self._engine = engine
        self._world = world
        self._path = path
        self._closing, self._servers = closing, servers

    def before(self, done: int) -> None:
        """Start or end the recording, if it is time; ``done`` steps have been pushed.

        Collective at the end of the recording.
        """
        if self._steps is None:
            return
        first, last = self._steps
        if not self._recorder.enabled and first <= done + 1 <= last:
            self._engine.wait_all()
            if self._servers is not None:
                self._servers.record(True)
            self._recorder.enabled = True
        elif self._recorder.enabled and done >= last:
            self.finish()

    def finish(self) -> None:
        """End the recording and write it, if one is under way; collective."""
        if self._steps is None or not self._recorder.enabled:
            return
        self._engine.wait_all()
        if self._closing is not None:
            self._closing()
        self._recorder.enabled = False
        if self._servers is not None:
            self._servers.record(False)
        self._steps = None
        self._write()

    def _write(self) -> None:
        control = self._world.control
        clocks = offsets(control)
        rows = control.gather_obj([self._world.host, self._recorder.dump().decode()], 0)
        if rows is None or self._path is None:
            return
        served = [] if self._servers is None else self._servers.take()
        events = [found.events for found in served]
        events += [load(events.encode()) for _, events in rows]
        titles = [f"server {server}" for server in range(len(served))]
        self._path.parent.mkdir(parents=True, exist_ok=True)
        write_chrome_trace(
            self._path,
            dict(enumerate(events)),
            dict(enumerate([*(found.offset for found in served), *clocks])),
            dict(enumerate([*titles, *(host for host, _ in rows)])),
        )
