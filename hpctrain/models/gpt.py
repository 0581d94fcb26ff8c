"""A causal transformer."""

from typing import Any

from hpctrain import nn
from hpctrain.errors import ShapeError

__all__ = ["GPT"]


class TransformerBlock(nn.HybridBlock):
    """Attention and a dense layer of four times the width, each on normalised input."""

    def __init__(self, width: int, heads: int, depth: int, prefix: str | None = None) -> None:
        super().__init__(prefix)
        normal = nn.initializer.Normal(0.02)
        # 2 depth branches are added up: this keeps their sum as large as one
        branch = nn.initializer.Normal(0.02 / (2 * depth) ** 0.5)
        with self.name_scope():
            self.norm1 = nn.LayerNorm(in_channels=width)
            self.attention = nn.MultiHeadSelfAttention(
                width, heads, weight_initializer=normal, proj_initializer=branch
            )
            self.norm2 = nn.LayerNorm(in_channels=width)
            self.up = nn.Dense(
                4 * width, "gelu", flatten=False, in_units=width, weight_initializer=normal
            )
            self.down = nn.Dense(
                width, flatten=False, in_units=4 * width, weight_initializer=branch
            )

    def forward(self, x: Any, *args: Any) -> Any:
        """Return an array like ``x``, (N, T, width)."""
        x = x + self.attention(self.norm1(x))
        return x + self.down(self.up(self.norm2(x)))


class GPT(nn.HybridBlock):
    """A causal transformer with learned positions and a head of its own without bias.

    Parameters
    ----------
    vocab : int
        Number of different tokens.
    width : int
        Channels of each position.
    heads : int
        Heads of attention.
    depth : int
        Number of blocks.
    steps : int
        Longest sequence.

    References
    ----------
    Radford et al., "Language models are unsupervised multitask learners", 2019.
    """

    def __init__(
        self,
        vocab: int = 1000,
        width: int = 256,
        heads: int = 4,
        depth: int = 4,
        steps: int = 128,
        prefix: str | None = None,
    ) -> None:
        super().__init__(prefix)
        normal = nn.initializer.Normal(0.02)
        with self.name_scope():
            self.tokens = nn.Embedding(vocab, width, weight_initializer=normal)
            self.positions = self.params.get("positions", shape=(steps, width), init=normal)
            self.blocks = nn.HybridSequential()
            with self.blocks.name_scope():
                for _ in range(depth):
                    self.blocks.add(TransformerBlock(width, heads, depth))
            self.norm = nn.LayerNorm(in_channels=width)
            self.head = nn.Dense(
                vocab, use_bias=False, flatten=False, in_units=width, weight_initializer=normal
            )

    def forward(self, x: Any, *args: Any) -> Any:
        """Return (N, T, vocab) for tokens (N, T)."""
        positions = self.positions.data(x.device)
        if x.shape[1] > positions.shape[0]:
            raise ShapeError(
                f"GPT: got sequences of {x.shape[1]} steps, needed at most {positions.shape[0]}"
            )
        y = self.tokens(x) + positions[: x.shape[1]]
        return self.head(self.norm(self.blocks(y)))
