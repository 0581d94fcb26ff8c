"""``data``: look at data files, or check them; no MPI."""

from collections.abc import Sequence
from typing import Annotated

import tyro

from hpctrain.cli.arguments import call
from hpctrain.io import describe, open_records, refuse

__all__ = ["run"]

Path = Annotated[str, tyro.conf.Positional]


def run(argv: Sequence[str]) -> int:
    """Run ``data inspect`` or ``data verify``."""
    call({"inspect": inspect, "verify": verify}, argv, "data")
    return 0


def inspect(path: Path) -> None:
    """Show the datasets of HDF5 files: shape, dtype, chunks, filters, sizes.

    Args:
        path: a file, or a folder of shards.
    """
    for row in describe(path):
        print(row)


def verify(path: Path, inputs: tuple[str, ...] = (), targets: tuple[str, ...] = ()) -> None:
    """Check every file of a data set: form, sizes, digests, checksums.

    Args:
        path: a folder of shards, a file or a pattern.
        inputs: datasets that hold the inputs, in files of your own.
        targets: datasets that hold what is to be predicted.
    """
    with open_records(path, inputs=inputs, targets=targets) as records:
        refuse(records.verify())
        fields = ", ".join(f"{f.name} {f.dtype}{list(f.shape)}" for f in records.fields)
        print(f"{path}: {records.n:,} records in {len(records.parts)} file(s), good: {fields}")
