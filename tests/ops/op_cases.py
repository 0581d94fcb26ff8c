"""The case table: how each operation is called, shared by all systematic tests.

A case gives inputs, a call of ours, and where an outside oracle exists the same call in
PyTorch. From this one table come: the comparison with PyTorch's stored results
(test_oracle), the gradient checks (test_gradients), and the tests of every kernel with
strided inputs and poisoned outputs (test_rows); the last two also fail if a registered row
is in no case.

To add cases, put a module ``oracle/cases_<group>.py`` with a list ``CASES`` beside the others
(no imports of torch or hpctrain in it: functions are handed the module as first argument),
and, if some have ``torch``, run ``python tests/ops/oracle/make_torch.py <group>`` where
PyTorch is installed. It writes ``oracle/<group>.npz``, which is committed.
"""

import importlib.util
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ORACLE = Path(__file__).parent / "oracle"
# Rows that the tests of symbols compare with MXNet: the gradient of a loss output is, by
# MXNet's definition, not its derivative. And rows that nobody applies, as a pass makes them.
ELSEWHERE = frozenset({"loss_output", "conv_then", "conv_grad_data_then"})


@dataclass(frozen=True)
class Case:
    """One call of an operation.

    Attributes
    ----------
    name : str
        Unique in its module; seeds the inputs.
    inputs : sequence
        Each a shape (standard normal float64) or a function of a RandomState that returns an
        array. Floating inputs are differentiated, and tested in float32 as well.
    ours : callable ``(ops, *tensors) -> tensor or tuple``
    torch : callable ``(torch, *tensors) -> tensor or tuple``, or None
        The same in PyTorch; an output of ours that it lacks may be left out at the end.
    order : int
        Highest order of gradients to check by finite differences; 0 for none.
    loose : float
        Factor on the tolerances, for values that are far from 1.
    """

    name: str
    inputs: Sequence[Any]
    ours: Callable[..., Any]
    torch: Callable[..., Any] | None = None
    order: int = 2
    loose: float = 1.0

    def random(self, salt: str = "") -> np.random.RandomState:
        """Return the stream of this case; the legacy one, because it is frozen for ever."""
        return np.random.RandomState(zlib.crc32((self.name + salt).encode()))

    def arrays(self) -> list[np.ndarray]:
        """Make the inputs."""
        rng = self.random()
        made = [i(rng) if callable(i) else rng.standard_normal(i) for i in self.inputs]
        return [np.asarray(a) for a in made]

    def cotangents(self, outputs: Sequence[Any]) -> list[np.ndarray | None]:
        """Make a seeded cotangent for each floating output (a tensor of either side)."""
        rng = self.random("cotangent")
        return [
            rng.standard_normal(tuple(o.shape)) if "float" in str(o.dtype) else None
            for o in outputs
        ]


def groups() -> list[str]:
    """Return the names of all case modules."""
    return sorted(p.stem.removeprefix("cases_") for p in ORACLE.glob("cases_*.py"))


def load(group: str) -> list[Case]:
    """Return the cases of one module."""
    path = ORACLE / f"cases_{group}.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    names = [case.name for case in module.CASES]
    assert len(names) == len(set(names)), f"{path.name}: two cases have one name"
    return module.CASES


def every_case() -> list[tuple[str, Case]]:
    """Return (group, case) for all cases."""
    return [(group, case) for group in groups() for case in load(group)]


def case_ids(pairs: Sequence[tuple[str, Case]]) -> list[str]:
    """Name the cases for pytest."""
    return [f"{group}-{case.name}" for group, case in pairs]


# Inputs


def positive(*shape: int) -> Callable[..., np.ndarray]:
    """Numbers from 0.5 to 2."""
    return lambda rng: rng.uniform(0.5, 2, shape)


def uniform(low: float, high: float, *shape: int) -> Callable[..., np.ndarray]:
    """Numbers from ``low`` to ``high``."""
    return lambda rng: rng.uniform(low, high, shape)


def ids(high: int, *shape: int) -> Callable[..., np.ndarray]:
    """Whole numbers from 0 to ``high - 1``."""
    return lambda rng: rng.randint(0, high, shape).astype(np.int64)


def mask(*shape: int) -> Callable[..., np.ndarray]:
    """Booleans."""
    return lambda rng: rng.uniform(size=shape) < 0.5


def values(*numbers: Any, dtype: Any = np.float64) -> Callable[..., np.ndarray]:
    """The numbers given."""
    return lambda rng: np.array(numbers, dtype)
