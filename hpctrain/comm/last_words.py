"""What a rank says before it ends all: as text, and read by the launcher."""

import array
import contextlib
import fcntl
import os
import stat
import termios
import time
import traceback

from hpctrain.errors import HpctrainError

__all__ = ["drain", "text_of"]

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


def text_of(error: BaseException, prefix: str, thread: str) -> str:
    """Return what to print of an error: a sentence where that is enough, else its trace."""
    if isinstance(error, KeyboardInterrupt):
        return f"{prefix}hpctrain: interrupted\n"
    if isinstance(error, HpctrainError) and error.exit_code != 1:
        return f"{prefix}hpctrain: {error}\n"
    origin = f"in thread {thread}: " if thread else ""
    return f"{prefix}{origin}{''.join(traceback.format_exception(error))}"
