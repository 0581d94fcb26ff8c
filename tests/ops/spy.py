"""An interpreter that runs every operation and notes it: which rows a piece of code uses."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hpctrain.autograd import Spec
from hpctrain.autograd.bind import EAGER
from hpctrain.autograd.mode import current, interpreted_by


@dataclass
class Call:
    """One application of a row."""

    row: Any
    arrays: list[np.ndarray]
    attrs: dict[str, Any]
    specs: list[Spec]
    results: list[np.ndarray]
    wanted: list[int]  # places of the inputs that its gradient rule may be asked for

    def key(self):
        """Return what tells calls apart: row, attributes, shapes and dtypes."""
        specs = tuple(Spec.of(a) for a in self.arrays)
        return self.row.name, tuple(sorted(self.attrs.items(), key=lambda kv: kv[0])), specs


@dataclass
class Spy:
    """Note every call made inside ``with spy.watch()``."""

    calls: list[Call] = field(default_factory=list)

    def watch(self):
        """Return the context in which operations are noted."""
        return interpreted_by(self)

    def apply(self, row, inputs, attrs, specs):
        """Run, and note."""
        arrays = [np.array(t.array) for t in inputs]
        results = EAGER.apply(row, inputs, attrs, specs)
        recording = current().recording
        wanted = [i for i, t in enumerate(inputs) if recording and t.requires_grad]
        self.calls.append(Call(row, arrays, attrs, list(specs), list(results), wanted))
        return results

    def assign(self, target, source):
        """Do as the eager interpreter does."""
        EAGER.assign(target, source)

    def kept(self, inputs):
        """Do as the eager interpreter does."""
        return inputs

    def beside(self, values):
        """Do as the eager interpreter does."""
        return EAGER.beside(values)
