"""End this process when the launcher that started it dies."""

import os
import select
import signal
import threading
import time

import psutil

_LAUNCHERS = (
    *("mpirun", "mpiexec", "orterun", "orted", "prterun", "prted"),
    *("hydra", "pmi_proxy", "slurmstepd", "palsd"),
)


def die_with_launcher() -> threading.Thread:
    """Watch the launcher from a thread, and kill this process when the launcher is gone.

    Open MPI leaves its ranks running when ``mpirun`` is killed; they would hold their devices
    and write their files for ever.  The launcher is the nearest ancestor with the name of one,
    so a wrapper script between it and this process does not hide its death; failing that, it is
    the parent.

    Returns
    -------
    Thread
        The daemon thread that watches; it calls no MPI.

    Notes
    -----
    Not ``prctl(PR_SET_PDEATHSIG)``: that signal comes when the *thread* that forked this
    process ends, and Open MPI forks many ranks from a pool of threads that it then joins.
    """
    thread = threading.Thread(target=_watch, args=(launcher(),), daemon=True, name="parent")
    thread.start()
    return thread


def launcher() -> int:
    """Return the process id of the nearest ancestor that starts ranks, else of the parent."""
    for process in psutil.Process().parents():
        try:
            if process.name().startswith(_LAUNCHERS):
                return process.pid
        except psutil.Error:  # gone, or not ours to look at
            continue
    return os.getppid()


def _watch(pid: int) -> None:
    parent = os.getppid()
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        pass  # it died between the look and the call
    except (AttributeError, OSError):  # not Linux, or before Linux 5.3
        while os.getppid() == parent:
            time.sleep(1)
    else:
        select.select([descriptor], [], [])  # readable when the process has ended
    os.kill(os.getpid(), signal.SIGKILL)
