"""The directory of a run: found again until the run is finished, never written over.

::

    runs/mnist/          run.json      what the run is: digest and configuration, written first
                         config.toml   all settings, as of the last start
                         command.txt   one line for each start
                         env.json      versions, as of the last start
                         metrics.jsonl one object for each record
                         log.txt       what rank 0 said
                         checkpoints/  trace/
                         done.json     what came out, written last

One rank decides and writes; its caller broadcasts the outcome.
"""

import fcntl
import json
import os
import platform
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from importlib import metadata
from itertools import takewhile
from pathlib import Path
from typing import Any, Self

import msgspec

from hpctrain.errors import CheckpointError, ConfigError
from hpctrain.train import checkpoint
from hpctrain.train.runs import Record, next_path, refusal, runs_of

__all__ = ["RunDir", "versions"]


class RunDir:
    """An open run directory; no other process can open it until it is closed.

    Attributes
    ----------
    path : Path
    continued : bool
        Whether the run was begun by an earlier process.
    origin : Path or None
        The checkpoint, or the run, that this one was told to begin from.
    """

    def __init__(self, path: Path, record: Record, continued: bool) -> None:
        self.path = path
        self.continued = continued
        self.origin = Path(record.origin) if record.origin else None
        self._lock = _lock(path)
        try:
            if not continued:
                if (path / "run.json").exists():
                    raise ConfigError(f"{path}: was just begun by another process; start again")
                _write(path / "run.json", msgspec.json.format(msgspec.json.encode(record)))
            self.stop_file.unlink(missing_ok=True)
        except BaseException:
            self.close()
            raise

    @classmethod
    def open(
        cls,
        dir: str | Path,
        name: str,
        config_toml: str,
        config_digest: str,
        resume: str = "auto",
        ignore: Collection[str] = (),
    ) -> Self:
        """Go on with an unfinished run, or begin a new one.

        Parameters
        ----------
        dir, name : path, str
            The run is in ``dir/name``, or ``dir/name-2``, ``-3``, … where that is taken.
        config_toml, config_digest : str
            All settings, and the digest of those that decide the numbers.
        resume : str
            ``auto`` goes on with the unfinished run of the same digest, if there is one.
            ``never`` begins anew.  A path to a checkpoint, or to a run, begins a run from
            there; the same path again goes on with that run, so that a job can be requeued.
        ignore : collection of str
            Keys ``section.key`` that do not count, left out when differences are named.

        Raises
        ------
        ConfigError
            If the last run of this name is unfinished and another one, if another process
            works in the directory, or if it belongs to something else.
        CheckpointError
            If there is no whole checkpoint at the path given.
        """
        origin = "" if resume in ("auto", "never") else str(Path(resume).absolute())
        record = Record(name, config_digest, config_toml, origin)
        runs = list(runs_of(Path(dir), name))
        open_runs = [run for run in runs if not (run[0] / "done.json").exists()]
        path, continued = next_path(Path(dir), name), False
        if resume != "never":
            for found, other in reversed(open_runs):
                if other.digest == config_digest and origin in ("", other.origin):
                    path, record, continued = found, other, True
                    break
        if not continued and origin:
            _checkpoint_at(Path(origin))
        if resume == "auto" and not continued and runs and runs[-1] in open_runs:
            raise ConfigError(refusal(*runs[-1], config_toml, ignore))
        run = cls(path, record, continued)
        _write(path / "config.toml", config_toml.encode())
        return run

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let others open the directory."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    @property
    def checkpoints(self) -> Path:
        """Directory of the checkpoints."""
        return self.path / "checkpoints"

    @property
    def metrics(self) -> Path:
        """File of the records, one JSON object a line."""
        return self.path / "metrics.jsonl"

    @property
    def log(self) -> Path:
        """File of what rank 0 says."""
        return self.path / "log.txt"

    @property
    def trace(self) -> Path:
        """Directory of the timelines."""
        return self.path / "trace"

    @property
    def stop_file(self) -> Path:
        """File that makes the run save and stop when someone creates it."""
        return self.path / "STOP"

    def restore(
        self, report: Callable[[str], None] | None = None, lazily: bool = False
    ) -> tuple[Path, dict[str, Any], dict[str, Any]] | None:
        """Load the newest whole checkpoint of this run, or of its origin, or return None.

        See ``checkpoint.restore``.
        """
        found = checkpoint.restore(self.checkpoints, report, lazily)
        if found is None and self.origin is not None:
            path = _checkpoint_at(self.origin, report)
            return (path, *checkpoint.load(path, lazily))
        return found

    def describe(self, command: Sequence[str], environment: Mapping[str, Any]) -> None:
        """Write down how the run was started, and with what."""
        with open(self.path / "command.txt", "a") as file:
            file.write(f"{shlex.join(command)}\n")
        _write(self.path / "env.json", json.dumps(environment, indent=1).encode())

    def rewind(self, step: int) -> int:
        """Drop the records of steps after ``step``, and return how many were dropped.

        A run that goes on from a checkpoint does those steps again.  A line that was broken
        off goes too.  The file is cut and not replaced, as it may be open for more records.
        """
        lines = self.metrics.read_bytes().splitlines(True) if self.metrics.exists() else []
        kept = list(takewhile(lambda line: _step(line) <= step, lines))
        if len(kept) < len(lines):
            os.truncate(self.metrics, sum(map(len, kept)))
        return len(lines) - len(kept)

    def finish(self, outcome: Mapping[str, Any]) -> None:
        """Write down that the run is finished, and what came out; the last thing of a run."""
        _write(self.path / "done.json", json.dumps(outcome, indent=1).encode())


def _step(line: bytes) -> float:
    """Return the step of a record; infinite if the line is not whole, 0 if it names none."""
    try:
        record = msgspec.json.decode(line, type=dict[str, Any])
    except msgspec.DecodeError:
        return float("inf")
    return record.get("step", 0) if line.endswith(b"\n") else float("inf")


def _lock(path: Path) -> int:
    """Make the directory and lock it; the system unlocks it when the process ends."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        handle = os.open(path / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be used: {error.strerror}; set --run.dir") from None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise ConfigError(
            f"{path}: another process works in it; wait for it, or add --run.resume never"
        ) from None
    except OSError:
        # Some network file systems have no locks; then nothing keeps two runs apart.
        pass
    return handle


def _checkpoint_at(path: Path, report: Callable[[str], None] | None = None) -> Path:
    """Return the checkpoint at ``path``, or the newest of the run that is there."""
    if (path / checkpoint.MANIFEST).exists():
        checkpoint.verify(path)
        return path
    root = path / "checkpoints" if (path / "checkpoints").is_dir() else path
    found = checkpoint.newest(root, report)
    if found is None:
        raise CheckpointError(f"run.resume: {path}: got no whole checkpoint there, needed one")
    return found


def _write(path: Path, data: bytes) -> None:
    """Replace a file as a whole: a reader sees the old text or the new one."""
    part = path.with_name(f".{path.name}.tmp")
    with open(part, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)


def versions() -> dict[str, str]:
    """Return the versions of what takes part in a run, as far as this process can tell."""
    found = {"python": platform.python_version(), "system": platform.platform()}
    for package in ("hpctrain", "numpy", "mpi4py", "h5py", "msgspec"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "unknown"
    return found
