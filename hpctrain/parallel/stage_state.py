"""The state of one rank of a pipeline, and that of the whole model in checkpoints."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from hpctrain import backend
from hpctrain.comm.group import Group
from hpctrain.comm.mesh import Mesh, coordinates
from hpctrain.errors import CheckpointError
from hpctrain.optim import Optimizer
from hpctrain.parallel.staged import StagedModel
from hpctrain.parallel.state import ModelState

__all__ = ["StageState"]

Arrays = Mapping[str, np.ndarray[Any, np.dtype[Any]]]


class StageState(ModelState):
    """Parameters, layer state and optimizer state of the stages of one rank.

    Checkpoints hold those of the whole model under its names, whatever the ranks: rank 0
    collects them and hands them out.

    Parameters
    ----------
    model : StagedModel
    parameters : mapping of str to Parameter
        Of the whole model; those of this rank's stages have their values.
    optimizer : Optimizer
    mesh : Mesh
    slice_bytes : int
    """

    def __init__(
        self,
        model: StagedModel,
        parameters: Mapping[str, Any],
        optimizer: Optimizer,
        mesh: Mesh,
        slice_bytes: int = 2**20,
    ) -> None:
        self.model, self.mesh = model, mesh
        rank = mesh.place.pipeline
        trained = [n for n, p in parameters.items() if p.grad_req != "null"]
        super().__init__(
            {n: p for n, p in parameters.items() if rank in model.homes(n)},
            optimizer,
            slice_bytes,
            parameters[trained[0]].data() if trained else None,
        )
        specs = {n: p.data().spec for n, p in parameters.items()}
        self._kinds_of_all = {f"parameters/{n}": specs[n] for n in trained}
        for kind in self.optimizer:
            self._kinds_of_all.update((f"optimizer/{kind}/{n}", specs[n]) for n in trained)
        fixed = (n for n in parameters if n not in set(trained))
        self._kinds_of_all.update((f"layers/{n}", specs[n]) for n in fixed)

    def homes(self, key: str) -> tuple[int, ...]:
        """Return the ranks of the pipeline that have an array of a checkpoint."""
        kind, _, name = key.partition("/")
        return self.model.homes(name.partition("/")[2] if kind == "optimizer" else name)

    def broadcast(self, group: Group, arrays: Arrays | None = None) -> None:
        """Give every rank its part of what rank 0 has.

        Parameters
        ----------
        group : Group
            All ranks.
        arrays : mapping of str to ndarray, optional
            What rank 0 has loaded, and any mapping on the others. If it is not given, the
            first replica gives the others what it has.
        """
        if arrays is None:
            super().broadcast(self.mesh.data)
        elif group.rank:
            self._take(group)
        else:
            for rank in range(1, group.size):
                self._hand_out(group, rank, arrays)
            super().load(self._of(0, 0, arrays))

    def _names(self, stage: int) -> list[str]:
        return [key for key in self._kinds_of_all if stage in self.homes(key)]

    def _of(self, replica: int, stage: int, arrays: Arrays) -> dict[str, Any]:
        """Return what a rank gets: its own layer state if it was kept for each replica."""
        found = {key: arrays[key] for key in self._names(stage)}
        for key in found:
            rows = arrays.get("ranks/" + key.removeprefix("layers/"))
            if not key.startswith("layers/") or rows is None:
                continue
            if len(rows) == self.mesh.shape.data:
                found[key] = rows[replica]
        return found

    def _hand_out(self, group: Group, rank: int, arrays: Arrays) -> None:
        place = coordinates(rank, self.mesh.shape)
        for array in self._of(place.data, place.pipeline, arrays).values():
            group.send(np.ascontiguousarray(array), rank)

    def _take(self, group: Group) -> None:
        found = {}
        for key in self._names(self.mesh.place.pipeline):
            spec = self._kinds_of_all[key]
            found[key] = np.empty(spec.shape, spec.dtype)
            group.recv(found[key], 0)
        super().load(found)

    def load(self, arrays: Arrays, optimizer: bool = True) -> None:
        """Take the state of this rank's stages from that of the whole model.

        Raises
        ------
        CheckpointError
            If a name of the whole model is missing or too many, or a shape or dtype differs.
        """
        kinds = {
            key: spec
            for key, spec in self._kinds_of_all.items()
            if optimizer or not key.startswith("optimizer/")
        }
        given = {k: a for k, a in arrays.items() if optimizer or not k.startswith("optimizer/")}
        odd = sorted(kinds.keys() ^ given.keys())
        if odd:
            side = "the model" if odd[0] in kinds else "the checkpoint"
            raise CheckpointError(f"checkpoint: {odd[0]} is only in {side}; use the same model")
        for key, spec in kinds.items():
            if (spec.shape, spec.dtype) != (given[key].shape, given[key].dtype):
                raise CheckpointError(
                    f"checkpoint: {key} is {given[key].dtype}{list(given[key].shape)}, the "
                    f"model needs {spec}; use the same model"
                )
        rank = self.mesh.place.pipeline
        super().load({k: a for k, a in given.items() if rank in self.homes(k)}, optimizer)

    def average_layers(self, group: Group) -> dict[str, Any]:
        """Replace floating layer state by its mean over the replicas of its stage."""
        return super().average_layers(self.mesh.data)

    def gathered(self, group: Group) -> dict[str, np.ndarray]:
        """Return the state of the whole model on rank 0, and of its stages elsewhere.

        Collective. What is on several stages comes from the first of them. On rank 0 there is
        room for all that is saved: it comes array by array.
        """
        mine = super().gathered(self.mesh.data)
        if self.mesh.place.data:
            return mine
        line, found = self.mesh.pipeline, dict(mine)
        rows: list[tuple[str, list[int], str]] = [
            (key, list(a.shape), a.dtype.str)
            for key, a in mine.items()
            if self.homes(key)[0] == line.rank
        ]
        every = line.gather_obj(rows, 0)
        if every is None:
            for key, _, _ in rows:
                line.send(np.ascontiguousarray(backend.to_host(mine[key])), 0)
            return mine
        for rank in range(1, line.size):
            for key, shape, dtype in every[rank]:
                found[key] = np.empty(shape, dtype)
                line.recv(found[key], rank)
        order = {key: place for place, key in enumerate(self._kinds_of_all)}
        return dict(sorted(found.items(), key=lambda item: order.get(item[0], len(order))))

    def facts(self) -> dict[str, str]:
        """Return names, shapes and dtypes of the whole model, for the ranks to compare."""
        found = {
            f"parameter {n}": str(t.spec)
            for n, t in zip(self.model.names, self.model.tensors, strict=True)
        }
        for number, start in enumerate(self.model.cut.bounds):
            found[f"bound {number} of the stages"] = str(start)
        return found
