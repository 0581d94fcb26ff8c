"""The passes of a placed module for one kind of batch, bound to the arrays of a rank."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hpctrain.autograd import Spec
from hpctrain.backend import Device, to_device, to_host
from hpctrain.graph.pool import Pool
from hpctrain.parallel.scattered_run import BoundShare
from hpctrain.parallel.scattered_symbol import Passes

__all__ = ["Kind", "copied"]


class Kind:
    """Both passes, ready to run.

    Parameters
    ----------
    passes : Passes
    leaves : mapping of str to Tensor
        State and streams of this rank.
    device : Device
    pool : Pool

    Attributes
    ----------
    passes, forward, backward
    reads : set of int
        What either pass is fed on this rank, and what it gives out as it is.
    """

    def __init__(
        self, passes: Passes, leaves: Mapping[str, Any], device: Device, pool: Pool
    ) -> None:
        own = {v: leaves[name].array for name, v in passes.leaves.items() if name in leaves}
        self.passes, self._device = passes, device
        self.forward = BoundShare(passes.forward, own, device, pool)
        back = passes.backward
        self.backward = None if back is None else BoundShare(back, own, device, pool)
        self.reads = {*passes.forward.fed, *(value for value, *_ in passes.outputs)}
        self.reads.update(back.fed if back is not None else ())

    def cotangents(self, given: Sequence[Any] | None) -> dict[int, Any]:
        """Return the cotangents of the outputs that are read here; ones if not given."""
        found: dict[int, Any] = {}
        for head, value in self.passes.cotangents.items():
            if value in self.reads:
                spec = self.passes.outputs[head][2]
                array = np.ones(spec.shape) if given is None else given[head]
                found[value] = copied(array, spec, self._device)
        return found


def copied(array: Any, spec: Spec, device: Device) -> Any:
    """Return a copy of an array for this rank: iterators may use theirs again."""
    return to_device(np.array(to_host(array), spec.dtype, order="C"), device)
