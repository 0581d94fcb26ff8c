"""An encoder and a decoder of LSTM layers, for sequences of unequal length.

Dimension key: N samples, T steps of the source, S steps of the target, H width, V tokens.
"""

from typing import Any

import numpy as np

from hpctrain import nn, ops
from hpctrain.autograd import Tensor, pause
from hpctrain.errors import ShapeError

__all__ = ["Seq2Seq", "count_tokens", "greedy", "shifted"]


class Seq2Seq(nn.HybridBlock):
    """Embedding and LSTM layers read the source; others, from their last states, the target.

    Parameters
    ----------
    vocab : int
        Number of different tokens of the source.
    target_vocab : int
        Of the target; ``vocab`` if 0.
    width : int
        Of embeddings and states.
    layers : int
        Recurrent layers of each half.
    attention : bool
        Whether each step of the target looks at all of the source, by dot products.
    dropout : float
        Share that is dropped after embeddings and between layers while training.

    Notes
    -----
    Padding stands behind the real tokens and has no influence on what belongs to these. Batches
    of other lengths are captured anew; so sort samples into buckets.

    References
    ----------
    Sutskever, Vinyals and Le, "Sequence to sequence learning with neural networks", NIPS 2014;
    the attention is the "dot" of Luong, Pham and Manning, EMNLP 2015.
    """

    def __init__(  # noqa: PLR0913 (the sizes of the model)
        self,
        vocab: int = 1000,
        target_vocab: int = 0,
        width: int = 256,
        layers: int = 2,
        attention: bool = True,
        dropout: float = 0.0,
        prefix: str | None = None,
    ) -> None:
        super().__init__(prefix)
        small = nn.initializer.Uniform(width**-0.5)
        target_vocab = target_vocab or vocab
        rnn: dict[str, Any] = {
            "dropout": dropout, "input_size": width, "i2h_weight_initializer": small,
            "h2h_weight_initializer": small, "i2h_bias_initializer": "lstmbias",
        }  # fmt: skip
        with self.name_scope():
            self.source = nn.Embedding(vocab, width, weight_initializer="normal")
            self.target = nn.Embedding(target_vocab, width, weight_initializer="normal")
            self.drop = nn.Dropout(dropout, batch_axis=1)
            self.encoder = nn.LSTM(width, layers, **rnn)
            self.decoder = nn.LSTM(width, layers, **rnn)
            self.mix = (
                nn.Dense(width, "tanh", flatten=False, in_units=2 * width)
                if attention
                else None
            )
            self.output = nn.Dense(target_vocab, flatten=False, in_units=width)

    def encode(self, source: Any, lengths: Any) -> tuple[Any, list[Any]]:
        """Return the states of all steps, (T, N, H), and the last ones of all layers."""
        x = self.drop(self.source(ops.transpose(source, (1, 0))))
        return self.encoder(x, self.encoder.begin_state(x.shape[1], x), lengths)

    def decode(
        self, target: Any, states: list[Any], memory: Any, lengths: Any
    ) -> tuple[Any, list[Any]]:
        """Return logits (N, S, V) and new states, for target tokens (N, S)."""
        x = self.drop(self.target(ops.transpose(target, (1, 0))))
        y, states = self.decoder(x, states)
        y = ops.transpose(y, (1, 0, 2))
        if self.mix is not None:
            y = self.mix(ops.concat([y, self._context(y, memory, lengths)], 2))
        return self.output(y), states

    def _context(self, y: Any, memory: Any, lengths: Any) -> Any:
        """Return the mean of memory (T, N, H), weighted by its products with y (N, S, H)."""
        keys = ops.transpose(memory, (1, 0, 2))
        scores = ops.matmul(y, keys, transpose_b=True)
        real = ops.expand_dims(ops.valid_steps(lengths, memory.shape[0], 1), 1)
        low = Tensor(np.asarray(-1e9, scores.dtype), device=scores.device)
        return ops.matmul(ops.softmax(ops.where(real, scores, low)), keys)

    def forward(self, source: Any, lengths: Any, target: Any, *args: Any) -> Any:
        """Return logits for each step of the target, which is given as far as it is known.

        Parameters
        ----------
        source : Tensor of whole numbers, shape (N, T)
        lengths : Tensor of whole numbers from 1 to T, shape (N,)
            Real steps of the source.
        target : Tensor of whole numbers, shape (N, S)
            The token before the one that is wanted; see `shifted`.

        Returns
        -------
        Tensor, shape (N, S, V)
        """
        if source.ndim != 2 or target.ndim != 2 or source.shape[0] != target.shape[0]:
            raise ShapeError(
                f"{self.name}: got source {source.spec} and target {target.spec}, needed "
                "(N, T) and (N, S)"
            )
        memory, states = self.encode(source, lengths)
        return self.decode(target, states, memory, lengths)[0]


def shifted(labels: np.ndarray, start: int) -> np.ndarray:
    """Return the decoder's input for labels (N, S): ``start``, then all labels but the last.

    Padding, which is negative in labels, becomes ``start``.
    """
    before = np.concatenate([np.full((len(labels), 1), start), labels[:, :-1]], axis=1)
    return np.where(before < 0, start, before)


def count_tokens(outputs: Any, labels: Any) -> Any:
    """Return the sum over samples of the share of their real tokens that are right.

    A scalar in a graph, as `hpctrain.parallel.program.Objective` takes it: divided by the
    number of samples it is the mean accuracy. Negative labels are padding.
    """
    real = ops.cast(ops.greater_equal(labels, 0), outputs.dtype)
    hits = ops.cast(ops.equal(ops.argmax(outputs, -1), labels), outputs.dtype)
    return ops.sum(ops.sum(hits * real, 1) / ops.maximum(ops.sum(real, 1), 1))


def greedy(
    net: Seq2Seq, source: Any, lengths: Any, start: int, end: int, steps: int
) -> np.ndarray:
    """Return the likeliest next token, step by step.

    Parameters
    ----------
    net : Seq2Seq
    source, lengths : array_like
        As for the model.
    start, end : int
        Tokens that begin and end a target.
    steps : int
        The most that are made.

    Returns
    -------
    ndarray of int64, shape (N, at most steps)
        ``end`` in the place of everything behind the first ``end``. Stops when all have ended.
    """
    source, lengths = Tensor(np.asarray(source)), Tensor(np.asarray(lengths))
    rows = source.shape[0]
    token, ended = np.full(rows, start), np.zeros(rows, bool)
    found: list[np.ndarray] = []
    with pause():
        memory, states = net.encode(source, lengths)
        while len(found) < steps and not ended.all():
            logits, states = net.decode(Tensor(token[:, None]), states, memory, lengths)
            token = np.where(ended, end, logits.asnumpy()[:, -1].argmax(-1))
            ended |= token == end
            found.append(token)
    return np.stack(found, 1)
