"""Engines by name, as a configuration asks for them."""

from collections.abc import Callable, Mapping

from hpctrain.engine.interface import DEFAULT_LANES, Engine
from hpctrain.engine.lanes import LaneSpec
from hpctrain.engine.serial import SerialEngine
from hpctrain.engine.threaded import ThreadedEngine
from hpctrain.errors import ConfigError, EngineError
from hpctrain.trace import Recorder

__all__ = ["create"]


def create(
    kind: str = "threaded",
    lanes: Mapping[str, int | LaneSpec] = DEFAULT_LANES,
    run_ahead: int = 64,
    recorder: Recorder | None = None,
    on_failure: Callable[[EngineError], object] | None = None,
) -> Engine:
    """Return a new engine.

    Parameters
    ----------
    kind : {"threaded", "serial"}
        ``serial`` runs everything at the push and has no use for workers and ``run_ahead``.
    lanes : mapping of str to int or LaneSpec
        Workers of each lane; or all that there is to say about it.
    run_ahead : int
        How many tasks a lane may have pushed and not done before ``push`` waits.
    recorder : Recorder, optional
        Gets a span for each task while it is enabled.
    on_failure : callable, optional
        Called with the ``EngineError`` at once when a task fails, in the thread that ran it.

    Raises
    ------
    ConfigError
        If the kind is unknown, or a number is below 1.
    """
    if kind == "threaded":
        return ThreadedEngine(lanes, run_ahead, recorder, on_failure)
    if kind == "serial":
        return SerialEngine(recorder, lanes, on_failure)
    raise ConfigError(f"engine: got kind {kind!r}, needed threaded or serial")
