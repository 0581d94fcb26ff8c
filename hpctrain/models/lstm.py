"""A language model of recurrent layers."""

from typing import Any

from hpctrain import nn

__all__ = ["LSTMModel"]


class LSTMModel(nn.HybridBlock):
    """Embedding, LSTM layers, and a dense layer over the vocabulary.

    Parameters
    ----------
    vocab : int
        Number of different tokens.
    width : int
        Of the embedding and of the state.
    layers : int
        Number of recurrent layers.
    dropout : float
        Share that is dropped after the embedding and after each layer while training.
    """

    def __init__(
        self,
        vocab: int = 10_000,
        width: int = 512,
        layers: int = 2,
        dropout: float = 0.0,
        prefix: str | None = None,
    ) -> None:
        super().__init__(prefix)
        small = nn.initializer.Uniform(width**-0.5)
        with self.name_scope():
            self.embedding = nn.Embedding(vocab, width, weight_initializer="normal")
            self.before = nn.Dropout(dropout, batch_axis=1)
            self.rnn = nn.LSTM(
                width, layers, dropout=dropout, input_size=width, i2h_weight_initializer=small,
                h2h_weight_initializer=small, i2h_bias_initializer="lstmbias",
            )  # fmt: skip
            self.after = nn.Dropout(dropout, batch_axis=1)
            self.output = nn.Dense(vocab, flatten=False, in_units=width)

    def forward(self, x: Any, *args: Any) -> Any:
        """Return (T, N, vocab) for tokens (T, N)."""
        return self.output(self.after(self.rnn(self.before(self.embedding(x)))))
