"""Blocks in a row."""

from collections.abc import Iterator
from typing import Any

from hpctrain.nn.block import Block
from hpctrain.nn.hybrid import HybridBlock

__all__ = ["HybridSequential", "Sequential"]


class _Row(Block):
    """What both kinds of sequence share: a list of children named 0, 1, 2 and so on."""

    def add(self, *blocks: Block) -> None:
        """Append ``blocks``."""
        for block in blocks:
            self.register_child(block)

    def forward(self, x: Any, *args: Any) -> Any:
        """Return the last block's output; the first one gets all arguments."""
        for block in self:
            x = block(x, *args)
            args = ()
        return x

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Block]:
        return iter(self.children.values())

    def __getitem__(self, key: int | slice) -> Any:
        chosen = list(self)[key]
        if isinstance(chosen, Block):
            return chosen
        part = type(self)(prefix=self.prefix)
        part.add(*chosen)
        return part


class Sequential(_Row):
    """Blocks that are called one after the other."""


class HybridSequential(_Row, HybridBlock):
    """Blocks that are called one after the other, and can be captured as one graph."""
