"""The table of contents of a checkpoint, protected by its own digest.

The file is one JSON object in a fixed frame, so that a change of any bit shows::

    {"sha256": "…of the bytes that follow, up to the last brace…", "manifest": {…}}
"""

import hashlib
import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from hpctrain.errors import CheckpointError

__all__ = ["Entry", "File", "Manifest", "encode", "measure", "read"]

_HEAD, _MIDDLE, _TAIL = b'{"sha256": "', b'", "manifest": ', b"}\n"
_DIGITS = 64
_MOST_BYTES = 1 << 28

_Size = Annotated[int, msgspec.Meta(ge=0)]


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One array: its name, and where and how it is stored."""

    name: str
    dataset: Annotated[str, msgspec.Meta(pattern=r"^\d{5,9}\Z")]
    shape: tuple[_Size, ...]
    dtype: Annotated[str, msgspec.Meta(pattern=r"^[<>|][biuf][1248]\Z")]


class File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Size and digest of one file."""

    bytes: _Size
    sha256: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a checkpoint holds."""

    step: _Size
    arrays: list[Entry]
    files: dict[str, File]
    state: dict[str, Any]
    format: Literal[1] = 1


def encode(manifest: Manifest) -> bytes:
    """Return the bytes of the manifest file.

    Raises
    ------
    CheckpointError
        If the state is not plain JSON, so that it would come back changed.
    """
    state = _plain(manifest.state)
    content = {
        **msgspec.to_builtins(msgspec.structs.replace(manifest, state={})),
        "state": state,
    }
    # The standard library's JSON, for it knows integers of any size: generators of random
    # numbers hold 128 bits.
    body = json.dumps(content, indent=1, allow_nan=False).encode()
    return b"".join((_HEAD, hashlib.sha256(body).hexdigest().encode(), _MIDDLE, body, _TAIL))


def _plain(state: Mapping[str, Any]) -> Any:
    try:
        text = json.dumps(state, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"checkpoint state: needed plain JSON: {error}") from None
    same = json.loads(text)
    if same != state:
        raise CheckpointError(
            "checkpoint state: needed plain JSON; "
            f"{_first_difference(state, same)} would not come back as it is"
        )
    return same


def _first_difference(state: Mapping[str, Any], same: Mapping[str, Any]) -> str:
    return next((f"{key!r}" for key in state if same.get(key) != state[key]), "a key")


def read(path: Path) -> Manifest:
    """Read a manifest file, and check its digest and its form.

    Raises
    ------
    CheckpointError
        If it is missing, damaged or of another format.
    """
    with _open(path) as file:
        raw = file.read(_MOST_BYTES + 1)
    start = len(_HEAD) + _DIGITS + len(_MIDDLE)
    body = raw[start : -len(_TAIL)]
    frame = (raw[: len(_HEAD)], raw[len(_HEAD) + _DIGITS : start], raw[-len(_TAIL) :])
    digest = hashlib.sha256(body).hexdigest().encode()
    if frame != (_HEAD, _MIDDLE, _TAIL) or raw[len(_HEAD) : len(_HEAD) + _DIGITS] != digest:
        raise CheckpointError(
            f"{path}: its bytes do not match its SHA-256; the file is damaged"
        )
    try:
        return msgspec.convert(json.loads(body), Manifest)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: not a manifest of format 1: {error}") from None


def measure(path: Path) -> File:
    """Return the size and digest of a file, which must be a plain one."""
    with _open(path) as file:
        digest = hashlib.file_digest(file, "sha256")
        return File(file.tell(), digest.hexdigest())


def _open(path: Path) -> Any:
    """Open a plain file for reading; a link is not followed."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from None
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise CheckpointError(f"{path}: is not a plain file")
    return os.fdopen(handle, "rb")
