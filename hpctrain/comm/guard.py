"""No rank dies, or leaves, alone.

MPI lets the other ranks wait for ever for one that raised an exception or returned early.  Here
an error on any rank, in any thread, ends all ranks within seconds, and is printed once.
"""

import atexit
import builtins
import contextlib
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from hashlib import blake2b
from types import TracebackType
from typing import Any, NoReturn, TypeVar

import numpy as np
from mpi4py import MPI

from hpctrain import errors
from hpctrain.comm.group import Group
from hpctrain.comm.last_words import drain, plain, text_of
from hpctrain.comm.lasting import lasting
from hpctrain.comm.request import call
from hpctrain.errors import CommError, HpctrainError, LostRankError

T = TypeVar("T")

ALIKE_S = 2.0
"""How long a rank with an error waits to see whether all ranks have the same one."""
PATIENCE_S = 5.0
"""How long a rank that leaves early waits for the others to leave too."""
MODEST_S = 1.0
"""How long a rank lets one of a lower number speak first of what many see."""
ORDERLY = (0, 75)
"""Exit codes of a run that ends as it should (done; saved, start me again): the rank waits for
the others as long as it takes, for they may be writing a checkpoint."""

_UNKNOWN = -1  # the exit code of a rank that reached the end of the program without a word


def abort(code: int, message: str = "") -> NoReturn:
    """End all ranks at once with exit code ``code``; callable from any thread.

    ``message`` is printed first, behind this rank's number and host.
    """
    if message:
        say(f"{where()} {message}\n")
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
    drain()
    # MPI would add its own lines on every rank; what is to be said has been said.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    signal.alarm(5)  # should Abort itself hang, the launcher sees this rank killed
    MPI.COMM_WORLD.Abort(code & 0xFF or 1)
    os._exit(code & 0xFF or 1)


def agreed(group: Group, fn: Callable[[], T]) -> T:
    """Run ``fn`` on every rank, and raise on all ranks if it raised on any.

    Parameters
    ----------
    group : Group
        The ranks that take part; collective.
    fn : callable
        A check, or anything that can fail on some ranks only, such as opening a file.  It must
        itself make no collective call that a rank which fails would leave out.

    Returns
    -------
    object
        What ``fn`` returned on this rank.

    Raises
    ------
    Exception
        Of the kind, and with the message, of the lowest rank that failed; with ``on rank r:``
        in front of it unless all ranks failed alike.
    """
    mine: Exception | None = None
    try:
        value = fn()
    except Exception as error:
        mine = error
    outcome = None if mine is None else [type(mine).__name__, str(mine)]
    outcomes = group.allgather_obj(outcome)
    first = next((rank for rank, other in enumerate(outcomes) if other is not None), None)
    if first is None:
        return value
    if mine is not None and all(other == outcomes[0] for other in outcomes):
        raise mine
    kind, message = outcomes[first]
    # Only the rank whose error it is knows the cause, and so the traceback.
    raise _rebuilt(kind, f"on rank {first}: {message}") from (
        mine if group.rank == first else None
    )


class Guard:
    """Watches over the end of this rank.

    Parameters
    ----------
    comm : MPI.Intracomm
        A communicator of all ranks that nobody else uses.

    Attributes
    ----------
    lasts : bool
        Whether a rank that MPI says is dead leaves the others alone.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._comm, self.lasts = comm, False
        comm.Set_errhandler(MPI.ERRORS_RETURN)
        self._size = comm.Get_size()
        self._departing = threading.Lock()
        self._excepthook = sys.excepthook
        self._threadhook = threading.excepthook

    def install(self) -> None:
        """Take over uncaught exceptions, in all threads, and the end of the program."""
        sys.excepthook = self._on_exception
        threading.excepthook = self._on_thread_exception
        atexit.register(self._on_exit)

    def remove(self) -> None:
        """Give back what `install` took, and free the communicator."""
        if sys.excepthook == self._on_exception:
            sys.excepthook = self._excepthook
        if threading.excepthook == self._on_thread_exception:
            threading.excepthook = self._threadhook
        atexit.unregister(self._on_exit)
        self._comm.Free()

    def leave(self, code: int) -> NoReturn:
        """Leave the program with ``code`` if all ranks do so; else end all ranks.

        Raises
        ------
        SystemExit
            With ``code``, when all ranks leave with the same code.  Otherwise all ranks are
            ended, with the code of one that failed.
        """
        self.depart(code, None if code in ORDERLY else PATIENCE_S)
        raise SystemExit(code)

    def depart(self, code: int, patience_s: float | None) -> None:
        """Return when all ranks leave with ``code``, waiting ``patience_s`` or without limit.

        A second call, and any on a single rank, returns at once.
        """
        if not self._departing.acquire(blocking=False) or self._size == 1:
            return
        rows = self._exchange(code, 0, False, patience_s)
        others = None if rows is None else {int(row[0]) for row in rows} - {code}
        if others is None:
            how = "" if code == _UNKNOWN else f" with exit code {code}"
            abort(max(code, 1), f"hpctrain: left{how} while other ranks go on; all ranks end")
        if code == _UNKNOWN:
            others -= {0}
        if others - {_UNKNOWN}:
            if code in (0, _UNKNOWN):
                time.sleep(PATIENCE_S)  # a rank that failed is about to say why and end us
            abort(
                code if code > 0 else max(others),
                f"hpctrain: left with exit code {code} while others left with {max(others)}",
            )

    def fail(self, error: BaseException, thread: str = "") -> int:
        """Print ``error`` once and end all ranks; on a single rank return the exit code.

        Parameters
        ----------
        error : BaseException
            What nobody caught.  Bad input, numbers that are not finite (an ``exit_code`` of
            their own) and an interrupt are printed as one sentence, anything else with its
            traceback.
        thread : str
            The thread that raised it, if it is not the main one.
        """
        error = plain(error)
        code = exit_code(error)
        if isinstance(error, LostRankError):
            time.sleep(MODEST_S * min(self._comm.Get_rank(), 4))  # many see it: one speaks
        alike, speaks = self._compare(error, code)
        if speaks:
            say(text_of(error, "" if alike else f"{where()} ", thread))
        if alike and self._size > 1:
            _wait(self._comm.Ibarrier(), ALIKE_S)  # let the one that speaks finish
        if self._size > 1 or thread:
            abort(code)
        return code

    def _compare(self, error: BaseException, code: int) -> tuple[bool, bool]:
        """Return whether all ranks have this error, and whether this rank is to print it."""
        if self._size == 1:
            return code != 1, True
        if isinstance(error, LostRankError):
            return False, True
        if not self._departing.acquire(blocking=False):
            return False, True
        text = f"{type(error).__name__}: {error}".encode(errors="replace")
        digest = int.from_bytes(blake2b(text, digest_size=7).digest(), "big")
        rows = self._exchange(code, digest, error.__cause__ is not None, ALIKE_S)
        if rows is None or (rows[:, :2] != rows[0, :2]).any():
            return False, True
        return True, self._comm.Get_rank() == int(np.argmax(rows[:, 2]))

    def _exchange(
        self, code: int, digest: int, cause: bool, patience_s: float | None
    ) -> np.ndarray[Any, np.dtype[np.int64]] | None:
        """Tell all ranks how this one leaves; None if they do not all leave in time."""
        mine = np.array([code, digest, cause], np.int64)

        def exchange(comm: MPI.Intracomm) -> np.ndarray[Any, np.dtype[np.int64]] | None:
            rows = np.empty((comm.Get_size(), 3), np.int64)
            request = call("leaving", comm.Iallgather, mine, rows)
            return rows if _wait(request, patience_s) else None

        try:
            if self.lasts and patience_s is None:
                self._comm, rows = lasting(self._comm, exchange)
                return rows
            return exchange(self._comm)
        except LostRankError:  # who cannot wait for long does not ask who is left
            return None

    def _on_exception(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        # Python leaves with the code of a SystemExit that its excepthook raises.
        raise SystemExit(self.fail(error))

    def _on_thread_exception(self, args: Any) -> None:
        if args.exc_type is SystemExit or args.exc_value is None:
            return
        self.fail(args.exc_value, args.thread.name if args.thread else "unknown")

    def _on_exit(self) -> None:
        self.depart(_UNKNOWN, PATIENCE_S)


def exit_code(error: BaseException) -> int:
    """Return the exit code that ``error`` stands for."""
    if isinstance(error, KeyboardInterrupt):
        return 128 + signal.SIGINT
    return error.exit_code if isinstance(error, HpctrainError) else 1


def where() -> str:
    """Return ``[rank 3 @ host]``."""
    return f"[rank {MPI.COMM_WORLD.rank} @ {socket.gethostname()}]"


def say(text: str) -> None:
    """Write ``text`` to standard error in one piece, past Python's buffers."""
    data = text.encode(errors="replace")
    with contextlib.suppress(OSError):
        sys.stderr.flush()
        while data:
            data = data[os.write(2, data) :]


def _rebuilt(kind: str, message: str) -> Exception:
    found = getattr(errors, kind, None) or getattr(builtins, kind, None)
    if isinstance(found, type) and issubclass(found, Exception):
        with contextlib.suppress(TypeError):  # such as UnicodeDecodeError, with five arguments
            return found(message)
    return CommError(f"{message} ({kind})")


def _wait(request: MPI.Request, patience_s: float | None) -> bool:
    """Wait for ``request`` without using a core; False when ``patience_s`` have passed."""
    end = None if patience_s is None else time.monotonic() + patience_s
    pause_s = 1e-4
    while not call("leaving", request.Test):
        if end is not None and time.monotonic() > end:
            return False
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, 0.02)
    return True
