"""Blocks that trade time for memory."""

from typing import TypeVar

from hpctrain.nn.block import Block

__all__ = ["recompute"]

AnyBlock = TypeVar("AnyBlock", bound=Block)


def recompute(block: AnyBlock, active: bool = True) -> AnyBlock:
    """Do not keep the values inside ``block`` for the backward pass: compute them again.

    Parameters
    ----------
    block : Block
        Each call of it keeps what goes in and what comes out. Of blocks inside of each other
        the inner one counts for what is in it.
    active : bool
        False takes the wish back.

    Returns
    -------
    Block
        ``block`` itself.

    Notes
    -----
    It holds wherever the block is captured: in training steps that are planned, and in
    hybridized blocks. To be called before the first such step. Results are the same, bit for
    bit; random draws are the same, and running statistics are updated once. Cost: the forward
    pass of the block once more.
    """
    block._region = active
    block._changed()
    return block
