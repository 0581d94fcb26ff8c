"""What goes into a training step, and what comes out of it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hpctrain.autograd import Spec
from hpctrain.errors import ConfigError
from hpctrain.graph.budget import Memory

__all__ = [
    "BAD", "CORRECT", "COUNT", "LAG", "LOSS", "RIDERS", "STOP", "Options", "StepResult", "Work",
]  # fmt: skip

LAG = 2  # steps that may be under way: results are read this many steps late
LOSS, CORRECT, STOP, COUNT, BAD = range(5)  # places of the riders
RIDERS = 5  # how many there are


@dataclass(frozen=True, slots=True)
class Options:
    """How a step is carried out, and gradients exchanged.

    Attributes
    ----------
    overlap : bool
        Exchange on a communication thread while computation goes on, into the next step.
        Otherwise messages are posted as early, and completed on the compute lane after the
        backward pass.
    pause_s : float
        How often to look for a message while waiting on the compute lane; 0 to let MPI spin,
        which is right unless there are more ranks than cores.
    clip_norm : float
        Largest norm of the whole gradient; 0 for no limit.
    shard : int
        Samples of a virtual shard, for gradients of the same bits on any number of ranks;
        0 for none. See `hpctrain.parallel.shards`.
    sharded : bool
        Each rank updates its part of every slice only, and keeps the optimizer's state of that.
    skip : bool
        Leave out the update on all ranks if a gradient is not finite on any, or their sum is
        not. Layer state that the forward pass has moved, such as running statistics, stays
        moved. Costs one look at the gradient before, and one after the exchange.
    loss_scale : float
        Factor on the loss, taken back from the gradient; with ``skip`` it follows what the
        gradients can bear. See `hpctrain.optim.scale`.
    accumulate : int
        Most batches whose gradients make one step. If it is more than 1, the gradient is there
        twice: that of a batch, and the sum.
    memory : Memory
        What a step may keep for its backward part.
    fuse : bool
        Make one kernel of neighbouring element-wise operations; see `program.StepDefinition`.
    """

    overlap: bool = True
    pause_s: float = 0.0
    clip_norm: float = 0.0
    shard: int = 0
    sharded: bool = False
    skip: bool = False
    loss_scale: float = 1.0
    accumulate: int = 1
    memory: Memory = field(default_factory=Memory)
    fuse: bool = False

    def check(self, batches: int) -> None:
        """Refuse to make one step of more batches than there is room for.

        Raises
        ------
        ConfigError
        """
        if batches > max(1, self.accumulate):
            raise ConfigError(
                f"step: got {batches} batches, needed at most {self.accumulate}; "
                "set Options.accumulate"
            )


@dataclass(frozen=True, slots=True)
class Work:
    """The part of a global batch that one rank computes.

    Attributes
    ----------
    inputs, targets : sequence of array
        C-contiguous; must stay as they are until the result of the step has been read, or be
        guarded by ``variable``.
    count, global_count : int
        Samples here, and on all ranks together.
    row : int
        Number of the first sample within the global batch: random draws go by it.
    variable : Variable or None
        Stands for the arrays in the engine.
    """

    inputs: Sequence[Any]
    targets: Sequence[Any]
    count: int
    global_count: int
    row: int = 0
    variable: Any = None

    def specs(self) -> tuple[tuple[Spec, ...], tuple[Spec, ...]]:
        """Return the specs of inputs and targets."""
        return tuple(map(Spec.of, self.inputs)), tuple(map(Spec.of, self.targets))


@dataclass(frozen=True, slots=True)
class StepResult:
    """Sums over all ranks for one step: of the losses, of right answers, of stop flags.

    Attributes
    ----------
    bad : int
        How many ranks had a gradient that is not finite.
    skipped : bool
        Whether the update was left out; also where no rank is bad, but the sum overflows.
    mine : bool
        Whether this rank's own gradient was bad: the only number that differs over the ranks.
    scale, next_scale : float
        The loss scale of this step and of the next.
    """

    step: int
    loss_sum: float
    correct: float
    stop: bool
    count: int
    bad: int = 0
    skipped: bool = False
    mine: bool = False
    scale: float = 1.0
    next_scale: float = 1.0

    @property
    def loss(self) -> float:
        """Mean loss of a sample."""
        return self.loss_sum / max(self.count, 1)
