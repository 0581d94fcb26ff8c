"""Self-attention with several heads."""

from typing import Any

from hpctrain import ops
from hpctrain.errors import ConfigError
from hpctrain.nn.hybrid import HybridBlock
from hpctrain.nn.layers import Dense

__all__ = ["MultiHeadSelfAttention"]


class MultiHeadSelfAttention(HybridBlock):
    """Let each position gather from the others, or with ``causal`` from those before it.

    Parameters
    ----------
    width : int
        Length of the last axis of input and output.
    heads : int
        Number of heads; divides ``width``.
    causal : bool
    use_bias : bool
    weight_initializer : str, Initializer or None
    proj_initializer : str, Initializer or None
        For the last product; ``weight_initializer`` if None.

    Notes
    -----
    Queries, keys and values come from one matrix product, ``qkv``, in this order, each with
    its heads one after the other.

    References
    ----------
    Vaswani et al., "Attention is all you need", NeurIPS 2017.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        causal: bool = True,
        use_bias: bool = True,
        weight_initializer: Any = None,
        proj_initializer: Any = None,
        **names: Any,
    ) -> None:
        super().__init__(**names)
        if width % heads:
            raise ConfigError(
                f"MultiHeadSelfAttention: got width {width} and {heads} heads, needed a "
                "number of heads that divides the width"
            )
        self._heads, self._causal = heads, causal
        args: dict[str, Any] = {"flatten": False, "use_bias": use_bias, "in_units": width}
        last = weight_initializer if proj_initializer is None else proj_initializer
        with self.name_scope():
            self.qkv = Dense(3 * width, weight_initializer=weight_initializer, **args)
            self.proj = Dense(width, weight_initializer=last, **args)

    def _described(self) -> str:
        return f"heads={self._heads}, causal={self._causal}"

    def forward(self, x: Any, *args: Any) -> Any:
        """Return (B, T, width) for (B, T, width)."""
        return self.proj(ops.self_attention(self.qkv(x), self._heads, self._causal)[0])
