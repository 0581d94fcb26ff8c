"""What a rank says before it ends all: as text, and read by the launcher."""

import array
import contextlib
import fcntl
import os
import resource
import stat
import termios
import time
import traceback

from hpctrain.errors import EngineError, HpctrainError

__all__ = ["drain", "plain", "text_of"]

DRAIN_S = 1.0
"""How long a rank that ends all waits for the launcher to read what it wrote."""


def drain() -> None:
    """Wait until the launcher has read what this rank wrote, for a while.

    MPICH's launcher throws away what is still in the pipes when a rank aborts.
    """
    end = time.monotonic() + DRAIN_S
    for descriptor in (1, 2):
        with contextlib.suppress(OSError):
            if not stat.S_ISFIFO(os.fstat(descriptor).st_mode):
                continue
            left = array.array("i", [1])
            while left[0] and time.monotonic() < end:
                time.sleep(0.02)
                fcntl.ioctl(descriptor, termios.FIONREAD, left)
    time.sleep(0.1)  # and passes it on


def plain(error: BaseException) -> BaseException:
    """Return what made a task fail, if that is an error for which a sentence is enough."""
    cause: BaseException | None = error
    while isinstance(cause, EngineError):
        cause = cause.__cause__
    told = isinstance(cause, HpctrainError) and cause.exit_code != 1
    return cause if cause is not None and told else error


def text_of(error: BaseException, prefix: str, thread: str) -> str:
    """Return what to print of an error: a sentence where that is enough, else its trace."""
    if isinstance(error, KeyboardInterrupt):
        return f"{prefix}hpctrain: interrupted\n"
    if isinstance(error, HpctrainError) and error.exit_code != 1:
        return f"{prefix}hpctrain: {error}\n"
    shortage = _shortage(error)
    if shortage is not None:
        return f"{prefix}hpctrain: {_short_of(shortage)}\n"
    origin = f"in thread {thread}: " if thread else ""
    return f"{prefix}{origin}{''.join(traceback.format_exception(error))}"


def _shortage(error: BaseException | None) -> MemoryError | None:
    """Return the want of memory that an error comes from, if it does."""
    while error is not None and not isinstance(error, MemoryError):
        if isinstance(error, RuntimeError) and "can't start new thread" in str(error):
            return MemoryError("no thread could be started")
        error = error.__cause__
    return error


def _short_of(error: MemoryError) -> str:
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    bound = "" if limit < 0 else f" under a limit of {limit // 2**20} MiB (ulimit -v)"
    return (
        f"memory: {str(error).rstrip('.') or 'an allocation failed'}; this rank had used "
        f"{used} MiB{bound}; spread the model over more ranks (parallel.pipeline, "
        "parallel.tensor), set optim.sharded or memory.budget, take fewer records in a batch, "
        "or raise the limit"
    )
