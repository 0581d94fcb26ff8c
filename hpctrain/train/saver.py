"""Checkpoints of a run: copied on the copy lane and written on the io lane by rank 0."""

from typing import Any

import numpy as np

from hpctrain.comm.guard import agreed
from hpctrain.comm.world import World
from hpctrain.parallel.data_parallel import DataParallel
from hpctrain.parallel.mesh_state import MeshState
from hpctrain.parallel.served_parallel import ServedParallel
from hpctrain.trace import Activity
from hpctrain.train import checkpoint, owed
from hpctrain.train.position import Position
from hpctrain.train.rundir import RunDir

__all__ = ["Saver"]


class Saver:
    """Saves and restores the state of a run.

    Parameters
    ----------
    step : DataParallel
    world : World
    run : RunDir or None
        On rank 0; None, as on the other ranks, saves nothing.
    keep : int
        How many checkpoints stay.
    about : dict
        Plain data kept with each checkpoint: optimizer, schedule, versions.
    activity : Activity, optional
        Where it is written that a checkpoint is saved or loaded.
    """

    def __init__(
        self,
        step: DataParallel,
        world: World,
        run: RunDir | None,
        keep: int = 3,
        about: dict[str, Any] | None = None,
        activity: Activity | None = None,
    ) -> None:
        self.step = step
        self.world = world
        self.last_values: dict[str, float] = {}
        self._run = run
        self._keep = keep
        self._about = about or {}
        self._activity = activity or Activity()
        self._snapshot = step.engine.variable("snapshot")
        self._parted = isinstance(step.state, MeshState)
        if isinstance(step.state, MeshState) and run is not None:
            step.state.folder = run.checkpoints

    def resume(self) -> Position | None:
        """Restore the newest whole checkpoint on all ranks; collective.

        Returns
        -------
        Position or None
            None if there is no checkpoint.
        """
        found = agreed(self.world.control, self._find)
        state = self.world.control.bcast_obj(None if found is None else found[1], 0)
        if state is None:
            return None
        arrays = {} if found is None else found[0]
        self._spread(arrays)
        self._restore_step(arrays, state)
        self.last_values = state.get("values", {})
        return Position.from_plain(state["position"])

    def _restore_step(self, arrays: dict[str, Any], state: dict[str, Any]) -> None:
        """Restore what the step keeps besides parameters and optimizer."""
        kept = state.get("loss_scale", {"value": 1.0, "good": 0, "skipped": 0})
        self.step.scale.load(kept)
        debtor = self._debtor
        if debtor is not None:
            factor = self.step.scale.value / kept["value"]
            flat, rows = self.step.state.flat, state.get("owed", [])
            saved = arrays, rows
            owed.restore(self.world.control, debtor, flat, saved, factor, self._parted)

    @property
    def _debtor(self) -> owed.Debtor | None:
        """Who knows what compression owes on this rank."""
        return self.step.debts if isinstance(self.step, ServedParallel) else self.step.transport

    def _find(self) -> tuple[dict[str, Any], dict[str, Any]] | None:
        """Load on rank 0 what there is, and put it in place."""
        if self._run is None:
            return None
        with self._activity.doing(f"loading the checkpoint in {self._run.checkpoints}"):
            restored = self._run.restore(lazily=self._parted)
        self._run.rewind(restored[2]["position"]["step"] if restored else 0)
        if restored is None:
            return None
        _, arrays, state = restored
        own = {n: a for n, a in arrays.items() if not n.startswith(("ranks/", owed.PREFIX))}
        self.step.state.load(own)
        return arrays, state

    def _spread(self, arrays: dict[str, Any]) -> None:
        """Give all ranks rank 0's state, then each its own layer state if it was kept."""
        control, state = self.world.control, self.step.state
        state.broadcast(control, arrays)
        if isinstance(state, MeshState):
            return  # each rank has got its own
        for name, tensor in state.moving().items():
            rows = arrays.get(f"ranks/{name}")
            ranks = control.bcast_obj(0 if rows is None else len(rows), 0)
            if ranks != control.size or ranks == 1:
                continue  # another number of ranks: the mean over the old ones has to do
            every = np.empty((ranks, *tensor.shape), tensor.dtype) if rows is None else rows
            control.bcast(every, 0)
            tensor.value[...] = state.on_device(every[control.rank])

    def save(self, at: Position, values: dict[str, float] | None = None) -> None:
        """Save the state as it is now; collective, and training may go on at once.

        Between two steps, with no exchange under way. On rank 0 there is room for a copy of all
        that is saved: of a sharded optimizer's state that of all ranks, and what compression
        owes on each rank; but not for what other ranks of a mesh have of the model.
        """
        arrays = self.step.state.gathered(self.world.control)
        debts, rows = owed.collect(self.world.control, self._debtor, self.step.state.flat)
        if self._run is None:
            return
        arrays.update(debts)
        self.last_values = values or self.last_values
        state = {
            "position": at.plain(),
            "values": self.last_values,
            "loss_scale": self.step.scale.plain(),
            "owed": rows,
            **self._about,
        }
        root, number = self._run.checkpoints, at.step
        copies: dict[str, Any] = {}

        def copy() -> None:
            copies.update((name, array.copy()) for name, array in arrays.items())

        def write() -> None:
            with self._activity.doing(f"saving the checkpoint of step {number} in {root}"):
                checkpoint.save(root, number, copies, state, keep=self._keep)
            copies.clear()

        engine = self.step.engine
        engine.push(copy, self.step.variables, (self._snapshot,), "copy", name="copy state")
        engine.push(write, (), (self._snapshot,), "io", name=f"save step {number}")

    def finish(self) -> None:
        """Wait until the last checkpoint is on disk."""
        self.step.engine.wait(self._snapshot)
