"""Checkpoints: named arrays and a JSON state on disk, whole or not there at all.

A checkpoint is a directory ``step-00001200`` with ``arrays.h5`` and ``manifest.json``.  It is
written under a temporary name and renamed when every byte is on disk::

    step-00001200.tmp-5f0c…/   arrays.h5, fsync; manifest.json, fsync; directory, fsync
      └─ rename ─▶ step-00001200/   parent, fsync; LATEST; older ones deleted

so a process that dies at any point leaves the last complete checkpoint as it was.  What counts
is the step in the name and the digests in the manifest; times of files mean nothing, and
``LATEST`` is only a hint for people.
"""

import os
import re
import secrets
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy.typing as npt

from hpctrain.errors import CheckpointError
from hpctrain.train import arrayfile
from hpctrain.train.manifest import Manifest, encode, measure, read

__all__ = ["MANIFEST", "load", "newest", "restore", "save", "verify"]

ARRAYS = "arrays.h5"
MANIFEST = "manifest.json"
LATEST = "LATEST"
_COMPLETE = re.compile(r"step-(\d{8,18})(\.old-[0-9a-f]{16})?")
_TEMPORARY = re.compile(r"step-\d{8,18}\.(tmp|old)-[0-9a-f]{16}")

T = TypeVar("T")
Array = npt.NDArray[Any]
Arrays = dict[str, Array]
State = dict[str, Any]


def save(
    root: str | Path,
    step: int,
    arrays: Mapping[str, Array],
    state: Mapping[str, Any],
    keep: int = 3,
    fault: Callable[[str], None] | None = None,
) -> Path:
    """Write a checkpoint, then delete the oldest ones beyond ``keep``.

    Parameters
    ----------
    root : path
        Directory of the run's checkpoints; made if missing.
    step : int
        Number of steps done, at least 0.
    arrays : mapping of str to ndarray
        On the host, bool, integer or floating; not changed by anyone until this returns.
    state : mapping
        Plain JSON: string keys; lists, not tuples; no NaN or infinity.  Integers of any size.
    keep : int
        How many checkpoints to leave, at least 1.
    fault : callable, optional
        Called with the name of each point that is passed, for tests that break off there.

    Returns
    -------
    Path
        The directory of the checkpoint.

    Raises
    ------
    CheckpointError
        If it cannot be written (disk full, no permission), or the arrays or the state are of
        a kind that would not come back the same.  The older ones are untouched then.

    Notes
    -----
    One rank calls this, on any thread.  Returns when the bytes are on disk.  A checkpoint of
    the same step that is there already is replaced.
    """
    root, passed = Path(root), fault or (lambda point: None)
    if step < 0 or keep < 1:
        raise CheckpointError(f"{root}: got step {step}, keep {keep}; needed ≥ 0 and ≥ 1")
    final = root / f"step-{step:08d}"
    part = root / f"{final.name}.tmp-{secrets.token_hex(8)}"
    try:
        os.makedirs(root, exist_ok=True)
        part.mkdir()
        _write(part, step, arrays, state, passed)
        _commit(part, final, passed)
    except OSError as error:
        raise CheckpointError(
            f"{final}: cannot be written: {error.strerror or error}; "
            "older checkpoints are intact"
        ) from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
    _tidy(root, step, keep, passed)
    return final


def _write(
    part: Path,
    step: int,
    arrays: Mapping[str, Array],
    state: Mapping[str, Any],
    passed: Callable[[str], None],
) -> None:
    """Write both files under the temporary name, the manifest last."""
    passed("before data")
    entries = arrayfile.write(part / ARRAYS, arrays)
    _sync(part / ARRAYS)
    passed("after data")
    manifest = Manifest(step, entries, {ARRAYS: measure(part / ARRAYS)}, dict(state))
    with open(part / MANIFEST, "xb") as file:
        file.write(encode(manifest))
    _sync(part / MANIFEST)
    passed("after manifest")
    _sync(part)


def _commit(part: Path, final: Path, passed: Callable[[str], None]) -> None:
    """Give the finished directory its name."""
    passed("before rename")
    if final.exists():
        # A directory cannot be renamed onto another.  For the moment between the two names
        # the old one still counts, under a name of its own.
        os.rename(final, final.with_name(f"{final.name}.old-{secrets.token_hex(8)}"))
        passed("between renames")
    os.rename(part, final)
    passed("after rename")
    _sync(final.parent)
    _hint(final)
    passed("after latest")


def _hint(final: Path) -> None:
    """Write the name of the newest checkpoint for people; nothing depends on it."""
    part = final.parent / f"{LATEST}.tmp"
    try:
        part.write_text(f"{final.name}\n")
        os.replace(part, final.parent / LATEST)
    except OSError:
        part.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    """Wait until a file, or the names in a directory, are on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _tidy(root: Path, step: int, keep: int, passed: Callable[[str], None]) -> None:
    """Delete what is older than the ``keep`` newest up to ``step``, and what was broken off.

    The checkpoint just written is never among them, nor anything under a name of others.
    """
    junk = [path for path in root.iterdir() if _TEMPORARY.fullmatch(path.name)]
    junk += [path for found, path in _found(root) if found < step][keep - 1 :]
    for path in junk:
        passed("during cleanup")
        if not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)


def _found(root: Path) -> list[tuple[int, Path]]:
    """Return steps and directories of all checkpoints, newest first, damaged ones too."""
    with suppress(FileNotFoundError, NotADirectoryError):
        matches = [_COMPLETE.fullmatch(path.name) for path in root.iterdir()]
        found = [(int(match[1]), not match[2], root / match[0]) for match in matches if match]
        return [(step, path) for step, _, path in sorted(found, reverse=True)]
    return []


def load(path: str | Path, lazily: bool = False) -> tuple[Arrays, State]:
    """Read a checkpoint back, bit for bit.

    Parameters
    ----------
    path : path
    lazily : bool
        Leave the arrays on disk until they are looked at, each time anew; the checkpoint must
        stay there.

    Returns
    -------
    arrays : dict of str to ndarray
        In the order in which they were saved; new arrays, C-contiguous.
    state : dict

    Raises
    ------
    CheckpointError
        If a file is missing, differs from its digest or is not of the form that ``save``
        writes.  Nothing is read but the two files, whatever they say.
    """
    path = Path(path)
    manifest = verify(path)
    fetch = arrayfile.lend if lazily else arrayfile.read
    return fetch(path / ARRAYS, manifest.arrays), manifest.state


def verify(path: str | Path) -> Manifest:
    """Check the sizes and digests of a checkpoint without keeping its arrays.

    Raises
    ------
    CheckpointError
        As ``load`` does, but for faults inside ``arrays.h5`` that its digest confirms.
    """
    path = Path(path)
    manifest = read(path / MANIFEST)
    if set(manifest.files) != {ARRAYS}:
        raise CheckpointError(f"{path / MANIFEST}: lists files other than {ARRAYS}")
    named = _COMPLETE.fullmatch(path.name)
    if named and int(named[1]) != manifest.step:
        raise CheckpointError(f"{path}: holds step {manifest.step}; the directory was renamed")
    expected, got = manifest.files[ARRAYS], measure(path / ARRAYS)
    if got.bytes != expected.bytes:
        raise CheckpointError(
            f"{path / ARRAYS}: got {got.bytes} bytes, needed {expected.bytes}; "
            "the file is damaged"
        )
    if got.sha256 != expected.sha256:
        raise CheckpointError(
            f"{path / ARRAYS}: its SHA-256 is not that of the manifest; the file is damaged"
        )
    return manifest


def newest(root: str | Path, report: Callable[[str], None] | None = None) -> Path | None:
    """Return the checkpoint with the highest step that is whole, or None.

    Parameters
    ----------
    root : path
    report : callable, optional
        Called with one sentence for each damaged one that is passed over; default: print it to
        the standard error.
    """
    found = next(_whole(Path(root), verify, report), None)
    return found[0] if found else None


def restore(
    root: str | Path, report: Callable[[str], None] | None = None, lazily: bool = False
) -> tuple[Path, Arrays, State] | None:
    """Load the checkpoint with the highest step that can be loaded, or return None.

    As ``newest`` followed by ``load``, but reads each file once less.
    """
    found = next(_whole(Path(root), partial(load, lazily=lazily), report), None)
    return (found[0], *found[1]) if found else None


def _whole(
    root: Path, check: Callable[[Path], T], report: Callable[[str], None] | None
) -> Iterator[tuple[Path, T]]:
    """Yield the checkpoints that pass ``check``, newest first, with its result."""
    for _, path in _found(root):
        try:
            yield path, check(path)
        except CheckpointError as error:
            (report or _complain)(f"{error}; passed over for the one before")


def _complain(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)
