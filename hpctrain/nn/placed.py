"""Where a block runs: what whoever spreads a model over ranks is to know of its nodes."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Self

from hpctrain.errors import ConfigError
from hpctrain.graph.marks import DIVIDE, GROUP

__all__ = ["Placed"]


class Placed:
    """A part of a model whose nodes have marks."""

    _marks: Mapping[str, Any] = MappingProxyType({})

    def to_stage(self, number: int) -> Self:
        """Let the block run on a stage of a pipeline, wherever it is trained in stages.

        Of blocks inside of each other the inner one counts. The stages are numbered in the
        order in which the model comes to them; to be called before the first step.
        """
        return self._mark(GROUP, number)

    def to_tensor(self, how: str) -> Self:
        """Say how ranks that share layers divide those of this block.

        Of blocks inside of each other the inner one counts. To be called before the first step.

        Parameters
        ----------
        how : {"column", "row", "whole"}
            By outputs, by inputs, or not at all. What is not said is decided by
            `hpctrain.parallel.share_rules`; what does not fit is computed whole.
        """
        if how not in ("column", "row", "whole"):
            raise ConfigError(f"to_tensor: got {how!r}, needed column, row or whole")
        return self._mark(DIVIDE, how)

    def _mark(self, name: str, value: Any) -> Self:
        self._marks = {**self._marks, name: value}
        self._changed()
        return self

    def _changed(self) -> None:
        """Forget what was captured of it."""
