"""What is said and done when a run fails."""

from collections.abc import Iterator
from contextlib import contextmanager

from hpctrain.cli.build import Data
from hpctrain.comm.world import World
from hpctrain.errors import HpctrainError, NumericError, RangeError
from hpctrain.io.search import holders, not_finite

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
    """Add to an error that records may be to blame for which they are.

    To one about an index, once, where that index stands; else, and to one about numbers that
    are not finite, where there are such. Others stay as they are, and those without such a
    record: the index may be computed, and the training diverge by itself.
    """
    sets, places, what = [data.train, data.test], [], "a number that is not finite"
    if isinstance(error, RangeError):
        if error.index is None:
            return
        index, error.index = error.index, None
        places = holders(sets, index)
        what = str(index) if places else what
    elif not isinstance(error, NumericError):
        return
    for path, number, field in places or not_finite(sets):
        error.args = (f"{error}; {path} has {what} in record {number} of {field}",)


@contextmanager
def naming(data: Data) -> Iterator[None]:
    """Do `name_record` for what is raised inside."""
    try:
        yield
    except (RangeError, NumericError) as error:
        name_record(error, data)
        raise
