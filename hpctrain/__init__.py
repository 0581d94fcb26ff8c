"""Neural-network training over MPI.

Importing this package imports nothing else: no NumPy, no MPI.  The parts are loaded when
they are first named, so ``import hpctrain as hpc; hpc.nn.Dense`` works as well as
``from hpctrain import nn``.
"""

import importlib
from types import ModuleType

__version__ = "0.1.0"

_PARTS = (
    "autograd", "backend", "cli", "comm", "config", "engine", "errors", "graph", "io",
    "models", "nn", "ops", "optim", "parallel", "trace", "train",
)  # fmt: skip


def __getattr__(name: str) -> ModuleType:
    if name in _PARTS:
        return importlib.import_module(f"hpctrain.{name}")
    raise AttributeError(f"module 'hpctrain' has no attribute {name!r}")
