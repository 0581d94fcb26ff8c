"""The state of one rank of a mesh, and that of the whole model in checkpoints."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hpctrain import backend
from hpctrain.autograd import Spec, Tensor
from hpctrain.comm.group import Group
from hpctrain.comm.mesh import Mesh, Shape, coordinates
from hpctrain.errors import CheckpointError
from hpctrain.ops.cut import Cut, Seat
from hpctrain.optim import Optimizer
from hpctrain.parallel.shared_model import Division
from hpctrain.parallel.shelf import Shelf
from hpctrain.parallel.state import ModelState

__all__ = ["MeshState", "WholeModel", "whole_of"]

Arrays = Mapping[str, np.ndarray[Any, np.dtype[Any]]]


@dataclass(frozen=True, slots=True)
class WholeModel:
    """All parameters and layer state of a model, and which ranks have what of them.

    Attributes
    ----------
    specs : mapping of str to Spec
        In the order of the model.
    trained : frozenset of str
    homes : mapping of str to sequence of int
        The ranks of the pipeline that have it, ascending; the first one if it is not there.
    cuts : mapping of str to Cut or None
        How the ranks of a team divide it, where they do.
    """

    specs: Mapping[str, Spec]
    trained: frozenset[str]
    homes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    cuts: Mapping[str, Cut | None] = field(default_factory=dict)


def whole_of(division: Division, parameters: Mapping[str, Any]) -> WholeModel:
    """Return the whole of a model that is in no stages, from any rank's parameters of it."""
    return WholeModel(
        dict(zip(division.names, division.specs, strict=True)),
        frozenset(n for n, p in parameters.items() if p.grad_req != "null"),
        cuts=dict(zip(division.names, division.cuts, strict=True)),
    )


class MeshState(ModelState):
    """Parameters, layer state and optimizer state that one rank of a mesh has.

    Checkpoints hold those of the whole model under its names, whatever the ranks: rank 0
    collects them and hands them out.

    Parameters
    ----------
    whole : WholeModel
    parameters : mapping of str to Parameter
        This rank's: of the stages that it has, and of each its part.
    optimizer : Optimizer
    mesh : Mesh
    slice_bytes : int
    like : Tensor, optional
        See `ModelState`.

    Attributes
    ----------
    folder : Path or None
        Where rank 0 puts what others have, until it is saved; None: into its memory.
    """

    def __init__(
        self,
        whole: WholeModel,
        parameters: Mapping[str, Any],
        optimizer: Optimizer,
        mesh: Mesh,
        slice_bytes: int = 2**20,
        like: Tensor | None = None,
    ) -> None:
        self.whole, self.mesh = whole, mesh
        self.folder: Path | None = None
        super().__init__(parameters, optimizer, slice_bytes, like)
        trained = [name for name in whole.specs if name in whole.trained]
        self._kinds_of_all = {f"parameters/{n}": whole.specs[n] for n in trained}
        for kind in self.optimizer:
            found = ((f"optimizer/{kind}/{n}", whole.specs[n]) for n in trained)
            self._kinds_of_all.update(found)
        fixed = (n for n in whole.specs if n not in whole.trained)
        self._kinds_of_all.update((f"layers/{n}", whole.specs[n]) for n in fixed)

    @property
    def counted(self) -> list[bool]:
        """Whether this rank counts each trained parameter in sums over its team."""
        first = self.mesh.place.tensor == 0
        return [first or self.whole.cuts.get(name) is not None for name in self.names]

    def homes(self, key: str) -> tuple[int, ...]:
        """Return the ranks of the pipeline that have an array of a checkpoint."""
        return self.whole.homes.get(_name(key), (0,))

    def _cut_of(self, key: str) -> Cut | None:
        """Return how a team divides an array of a checkpoint."""
        cut = self.whole.cuts.get(_name(key))
        stacked = cut is not None and key.startswith("ranks/")
        return cut.along(cut.axis + 1) if cut is not None and stacked else cut

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
                place = coordinates(rank, self.mesh.shape)
                for _, array in self._of(place, arrays):
                    group.send(np.ascontiguousarray(array), rank)
            super().load(dict(self._of(self.mesh.place, arrays)))

    def _names(self, stage: int) -> list[str]:
        return [key for key in self._kinds_of_all if stage in self.homes(key)]

    def _of(self, place: Shape, arrays: Arrays) -> Iterator[tuple[str, Any]]:
        """Yield what a rank gets: its own layer state if it was kept for each replica."""
        seat = Seat(place.tensor, self.mesh.shape.tensor)
        for key in self._names(place.pipeline):
            array, cut = np.asarray(arrays[key]), self._cut_of(key)
            rows = arrays.get("ranks/" + key.removeprefix("layers/"))
            if key.startswith("layers/") and rows is not None:
                array = rows[place.data] if len(rows) == self.mesh.shape.data else array
            yield key, array if cut is None else cut.part(np.ascontiguousarray(array), seat)

    def _take(self, group: Group) -> None:
        found = {}
        seat = Seat(self.mesh.place.tensor, self.mesh.shape.tensor)
        for key in self._names(self.mesh.place.pipeline):
            spec, cut = self._kinds_of_all[key], self._cut_of(key)
            found[key] = np.empty(
                spec.shape if cut is None else cut.shape(spec.shape, seat), spec.dtype
            )
            group.recv(found[key], 0)
        super().load(found)

    def load(self, arrays: Arrays, optimizer: bool = True) -> None:
        """Take this rank's state from that of the whole model.

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
        seat = Seat(self.mesh.place.tensor, self.mesh.shape.tensor)
        mine = {}
        for key, array in given.items():
            if self.mesh.place.pipeline in self.homes(key):
                cut = self._cut_of(key)
                array = np.asarray(array)  # it may be in a file still
                mine[key] = array if cut is None else cut.part(array, seat)
        super().load(mine, optimizer)

    def average_layers(self, group: Group) -> dict[str, Any]:
        """Replace floating layer state by its mean over the replicas."""
        return super().average_layers(self.mesh.data)

    def gathered(self, group: Group) -> dict[str, Any]:
        """Return the state of the whole model on rank 0, and a part of it elsewhere.

        Collective. What is on several stages comes from the first of them. It comes array by
        array, and waits in a file if there is a ``folder``: rank 0 need not have room for all.
        """
        mine: dict[str, Any] = super().gathered(self.mesh.data)
        if self.mesh.place.data:
            return mine
        mine = self._joined(mine)
        if self.mesh.place.tensor:
            return mine
        line, found = self.mesh.pipeline, dict[str, Any](mine)
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
        shelf = None if self.folder is None else Shelf(self.folder)
        for rank in range(1, line.size):
            for key, shape, dtype in every[rank]:
                array: Any = np.empty(shape, dtype)
                line.recv(array, rank)
                found[key] = array if shelf is None else shelf.add(array)
        order = {key: place for place, key in enumerate(self._kinds_of_all)}
        return dict(sorted(found.items(), key=lambda item: order.get(item[0], len(order))))

    def _joined(self, mine: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Put the parts of a team together on its first rank; collective over the team."""
        team = self.mesh.tensor
        if team.size == 1:
            return mine
        found = dict(mine)
        for key, part in mine.items():
            cut = self._cut_of(key)
            if cut is None:
                continue
            part = np.ascontiguousarray(backend.to_host(part))
            if team.rank:
                team.send(part, 0)
                continue
            shape = list(part.shape)
            shape[cut.axis] = self.whole.specs[_name(key)].shape[
                cut.axis - key.startswith("ranks/")
            ]
            found[key] = np.empty(shape, part.dtype)
            for rank, place in enumerate(cut.parts(found[key], team)):
                got = np.empty(place.shape, part.dtype) if rank else part.reshape(place.shape)
                if rank:
                    team.recv(got, rank)
                place[...] = got
        return found

    def facts(self) -> dict[str, str]:
        """Return names, shapes and dtypes of the whole model, for the ranks to compare."""
        found = {f"parameter {n}": str(spec) for n, spec in self.whole.specs.items()}
        cuts = self.whole.cuts.items()
        found.update((f"division of {n}", str(cut)) for n, cut in cuts if cut is not None)
        return found


def _name(key: str) -> str:
    """Return the parameter of an array of a checkpoint."""
    kind, _, name = key.partition("/")
    return name.partition("/")[2] if kind == "optimizer" else name
