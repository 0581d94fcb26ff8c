"""Neural-network training over MPI.

Importing this package imports nothing else: no NumPy, no MPI.  The parts are loaded when
they are first named, so ``import hpctrain as hpc; hpc.nn.Dense`` works as well as
``from hpctrain import nn``.
"""

import importlib
from typing import Any

__version__ = "0.1.0"

_PARTS = (
    "autograd", "backend", "cli", "comm", "config", "engine", "errors", "graph", "io",
    "models", "nn", "ops", "optim", "parallel", "symbol", "trace", "train",
)  # fmt: skip

# The words of MXNet: a module, or a name in a module, and where it is here.
_WORDS = {
    "sym": "symbol", "nd": "symbol.nd", "AttrScope": "symbol:AttrScope",
    "gluon": "train.gluon", "mod": "train.bucketing", "module": "train.bucketing",
    "model": "train.params",
    "callback": "train.callback", "metric": "train.metrics", "kv": "parallel.kvstore",
    "kvstore": "parallel.kvstore", "init": "nn.initializer", "initializer": "nn.initializer",
    "optimizer": "optim", "lr_scheduler": "optim.schedule", "Context": "backend:Device",
    "cpu": "nn.context:cpu", "gpu": "nn.context:gpu",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _PARTS and name not in _WORDS:
        raise AttributeError(f"module 'hpctrain' has no attribute {name!r}")
    where, _, what = _WORDS.get(name, name).partition(":")
    module = importlib.import_module(f"hpctrain.{where}")
    return getattr(module, what) if what else module
