"""What is said and done when a task of a run fails."""

from collections.abc import Iterator
from contextlib import contextmanager

from hpctrain.cli.build import Data
from hpctrain.comm.world import World
from hpctrain.errors import HpctrainError, RangeError
from hpctrain.io.search import holders

__all__ = ["end_all", "name_record", "naming"]


def end_all(error: BaseException, world: World, data: Data) -> None:
    """End all ranks when a task fails on this one; a single rank raises it where it waits.

    Parameters
    ----------
    error : BaseException
        As the engine tells it: what the task raised is its cause.
    world : World
    data : Data
        The records of the run; see `name_record`.
    """
    cause = error.__cause__
    name_record(cause, data)
    if world.size > 1:
        said = isinstance(cause, HpctrainError | MemoryError)
        world.guard.fail(cause if cause and said else error, "engine")


def name_record(error: BaseException | None, data: Data) -> None:
    """Add to an error about an index in which records that index stands, once.

    Other errors stay, and those about an index that is in no file: it may be computed.
    """
    if not isinstance(error, RangeError) or error.index is None:
        return
    index, error.index = error.index, None
    for path, number, field in holders([data.train, data.test], index):
        error.args = (f"{error}; {path} has {index} in record {number} of {field}",)


@contextmanager
def naming(data: Data) -> Iterator[None]:
    """Do `name_record` for what is raised inside."""
    try:
        yield
    except RangeError as error:
        name_record(error, data)
        raise
