"""Values of a model that the ranks of a team share, and how they are brought into a form.

A *share* is what one rank has of a value: the whole of it, a part, or a term of the sum that is
meant. See `hpctrain.ops.team`.
"""

from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any

from hpctrain.autograd import Primitive, Spec, apply_row
from hpctrain.ops.cut import Cut, Team
from hpctrain.ops.team import team_gather, team_scatter, team_slice, team_spread, team_sum

__all__ = ["Again", "Forms", "Share"]

Leaf = Callable[[int, Cut | None], Any]


class Again(Exception):  # noqa: N818 (no error: a wish of a later operation)
    """Something decided has turned out to be better otherwise: go through the model again."""


@dataclass(eq=False, slots=True)
class Share:
    """What this rank has of one value.

    Attributes
    ----------
    spec : Spec
        Of the whole.
    tensor : Tensor or None
        None for a parameter of which it is not decided yet how it is divided.
    cut : Cut or None
        Of a part.
    term : bool
        Whether the sum over the ranks is meant.
    origin : int
        Place of the node that has chosen the cut; -1 for none.
    leaf : int
        Of a parameter or state, its value in the graph; -1 for others.
    fixed : bool
        Whether it is an input or a constant, of which nobody wants a gradient.
    forms : dict
        The same in other forms, as far as they were asked for.
    """

    spec: Spec
    tensor: Any = None
    cut: Cut | None = None
    term: bool = False
    origin: int = -1
    leaf: int = -1
    fixed: bool = False
    forms: dict[Any, Any] = field(default_factory=dict)

    @property
    def last(self) -> int:
        """The number of the last axis."""
        return self.spec.ndim - 1

    def cut_at(self, axis: int) -> bool:
        """Return whether it is cut along ``axis``."""
        return self.cut is not None and self.cut.axis == axis


class Forms:
    """Brings shares into the form that an operation needs, and keeps what was decided.

    Parameters
    ----------
    team : Team
    leaf : callable
        From a leaf of the graph and its cut to the tensor of this rank's part.
    cuts : dict of int to Cut or None
        How leaves are divided; what is not in it is decided, and written there.
    patterns : dict of int to (int, int)
        Blocks and units in which the outputs of a node are cut, where not one by one.
    sequence : bool
        Keep sums of three axes or more cut along their second one, until something needs them
        whole.
    """

    def __init__(
        self,
        team: Team,
        leaf: Leaf,
        cuts: MutableMapping[int, Cut | None],
        patterns: MutableMapping[int, tuple[int, int]],
        sequence: bool = True,
    ) -> None:
        self.team, self.cuts, self.patterns, self.sequence = team, cuts, patterns, sequence
        self._leaf = leaf
        self.place = 0  # of the node that is applied

    def apply(self, row: Primitive, inputs: Any, attrs: Mapping[str, Any]) -> Any:
        """Apply a row to tensors; return all of its outputs."""
        return apply_row(row, inputs, dict(attrs))

    def fits(self, cut: Cut, length: int) -> bool:
        """Return whether every rank gets something of an axis of ``length``."""
        return cut.units(length) >= self.team.size

    def decided(self, share: Share) -> bool:
        """Return whether it is known how a share is divided."""
        return share.tensor is not None or share.leaf in self.cuts

    def settle(self, share: Share, cut: Cut | None = None) -> None:
        """Decide how a parameter is divided, unless it is decided."""
        if share.tensor is None:
            share.cut = self.cuts.setdefault(share.leaf, cut)
            share.tensor = self._leaf(share.leaf, share.cut)

    def total(self, share: Share) -> None:
        """Let a term become the sum, cut along the sequence where there is one."""
        if not share.term:
            return
        cut = Cut(1)
        if self.sequence and share.spec.ndim > 2 and self.fits(cut, share.spec.shape[1]):
            self.scatter(share, cut)
        else:
            share.tensor, share.term = team_sum(share.tensor, self.team), False

    def scatter(self, share: Share, cut: Cut) -> None:
        """Let a term become this rank's part of the sum."""
        share.tensor = team_scatter(share.tensor, self.team, cut)
        share.cut, share.term = cut, False

    def whole(self, share: Share) -> Any:
        """Return the whole, for operations that all ranks make alike."""
        self.settle(share)
        if share.term:
            share.tensor, share.term = team_sum(share.tensor, self.team), False
        if share.cut is None:
            return share.tensor
        return self._form(share, "whole", lambda: self._gathered(share, terms=False))

    def terms(self, share: Share) -> Any:
        """Return the whole, for operations that each rank makes with parts of its own."""
        self.settle(share)
        self.total(share)
        if share.cut is not None:
            return self._form(share, "terms", lambda: self._gathered(share, terms=True))
        if share.fixed or share.spec.dtype.kind != "f":
            return share.tensor
        return self._form(share, "terms", lambda: team_spread(share.tensor, self.team))

    def part(self, share: Share, cut: Cut) -> Any:
        """Return this rank's part by ``cut``."""
        self.settle(share, cut)
        if share.term:
            self.scatter(share, cut)
        if share.cut == cut:
            return share.tensor
        return self._form(share, cut, lambda: team_slice(self.whole(share), self.team, cut))

    def wish(self, share: Share, blocks: int, unit: int) -> None:
        """Ask whoever has cut a share for another pattern.

        Raises
        ------
        Again
            If it is to be had.
        """
        wanted = blocks, unit
        if share.origin >= 0 and self.patterns.get(share.origin) != wanted:
            self.patterns[share.origin] = wanted
            raise Again

    def made(self, tensors: Any, specs: Any, cuts: Any, origin: int = -1) -> list[Share]:
        """Return the shares of outputs."""
        rows = zip(specs, tensors, cuts, strict=True)
        return [Share(s, t, c, origin=origin if c else -1) for s, t, c in rows]

    def _gathered(self, share: Share, terms: bool) -> Any:
        assert share.cut is not None, "what is cut is gathered"
        length = share.spec.shape[share.cut.axis]
        return team_gather(share.tensor, self.team, share.cut, length, terms)

    def _form(self, share: Share, name: Any, make: Callable[[], Any]) -> Any:
        if name not in share.forms:
            share.forms[name] = make()
        return share.forms[name]
