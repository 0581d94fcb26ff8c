"""How the steps of a run are made: what `hpctrain.parallel.recipe` makes its items by."""

from collections.abc import Sequence
from dataclasses import dataclass

from hpctrain.parallel.work import Options

__all__ = ["Rules", "rules"]


@dataclass(frozen=True, slots=True)
class Rules:
    """How the steps of a run are made.

    Attributes
    ----------
    order : tuple of int
        The slices in the order of their exchange, equal on all ranks.
    gathered : tuple of int
        The slices in the order in which updated parts are gathered; empty unless each rank
        updates a part.
    overlap : bool
        Exchange on the communication lane; otherwise post early and finish late.
    summed : bool
        Gradients of several parts of the batch are added up before the exchange.
    settled : bool
        The sums are rounded to the dtype of the parameters after it.
    clipped : bool
        The update waits for the norm of the whole gradient.
    shared_norm : bool
        Each rank has a part of the gradient, so that the norm is summed over the ranks.
    checked : bool
        The update, and the next step, wait for word that all gradients of all ranks are
        finite, and so is their sum, which its norm tells.
    served : bool
        Servers make the updates: what comes back are parameters.
    alone : bool
        No other rank's gradient counts for the norm and the check: they are this rank's
        business, before anything leaves.
    asked : tuple of int
        The slices of which rows are fetched from servers before a step.
    """

    order: tuple[int, ...]
    gathered: tuple[int, ...] = ()
    overlap: bool = True
    summed: bool = False
    settled: bool = False
    clipped: bool = False
    shared_norm: bool = False
    checked: bool = False
    served: bool = False
    alone: bool = False
    asked: tuple[int, ...] = ()

    @property
    def measured(self) -> bool:
        """Whether the norm of the gradient is needed."""
        return self.clipped or self.checked

    @property
    def sifted(self) -> bool:
        """Whether nothing leaves before this rank has seen its whole gradient."""
        return self.alone and self.measured


def rules(
    options: Options, order: Sequence[int], several: bool, summed: bool, settled: bool
) -> Rules:
    """Return the rules of a run.

    Parameters
    ----------
    options : Options
    order : sequence of int
    several : bool
        Whether there are several ranks.
    summed, settled : bool
        See `Rules`.
    """
    shared, clipped = options.sharded and several, bool(options.clip_norm)
    return Rules(
        tuple(order),
        gathered=tuple(sorted(order)) if shared else (),
        overlap=options.overlap,
        summed=summed,
        settled=settled,
        clipped=clipped,
        shared_norm=shared and (clipped or options.skip),
        checked=options.skip,
    )
