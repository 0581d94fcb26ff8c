"""The state of one rank of a pipeline, and that of the whole model in checkpoints."""

from collections.abc import Mapping
from typing import Any

from hpctrain.comm.mesh import Mesh
from hpctrain.optim import Optimizer
from hpctrain.parallel.mesh_state import MeshState, WholeModel
from hpctrain.parallel.shared_model import Division
from hpctrain.parallel.staged import StagedModel

__all__ = ["StageState"]


class StageState(MeshState):
    """Parameters, layer state and optimizer state of the stages of one rank.

    Parameters
    ----------
    model : StagedModel
    parameters : mapping of str to Parameter
        Of the whole model, or this rank's parts of all of them; those of this rank's stages
        have their values.
    optimizer : Optimizer
    mesh : Mesh
    slice_bytes : int
    division : Division, optional
        How a team divides the model, if one does.
    """

    def __init__(
        self,
        model: StagedModel,
        parameters: Mapping[str, Any],
        optimizer: Optimizer,
        mesh: Mesh,
        slice_bytes: int = 2**20,
        division: Division | None = None,
    ) -> None:
        self.model = model
        trained = [n for n, p in parameters.items() if p.grad_req != "null"]
        specs = {n: p.data().spec for n, p in parameters.items()}
        cuts = {}
        if division is not None:
            specs = dict(zip(division.names, division.specs, strict=True))
            cuts = dict(zip(division.names, division.cuts, strict=True))
        homes = {name: model.homes(name) for name in parameters}
        super().__init__(
            WholeModel(specs, frozenset(trained), homes, cuts),
            {n: p for n, p in parameters.items() if mesh.place.pipeline in homes[n]},
            optimizer,
            mesh,
            slice_bytes,
            parameters[trained[0]].data() if trained else None,
        )

    def facts(self) -> dict[str, str]:
        """Return names, shapes and dtypes of the whole model, for the ranks to compare."""
        found = super().facts()
        for number, start in enumerate(self.model.cut.bounds):
            found[f"bound {number} of the stages"] = str(start)
        return found
