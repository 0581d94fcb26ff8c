"""Blocks, layers, losses and initializers, in the words of MXNet's Gluon.

A model is a tree of blocks. A block has parameters and children, set as attributes, and a
``forward``; the path of attributes that leads to a parameter, ``features.0.weight``, is its
structural name, by which checkpoints, exchange and initialisation know it. The name is the
same on every rank and each time the model is built, so nothing has to be agreed upon.

Lengths that depend on the input may be left open: the first forward pass tells them. What a
parameter holds at first depends on the seed, its name and its shape alone.

A block does not compute; it applies operations. So `HybridBlock.hybridize` can run it as a
captured graph, and every other way to run it (a plan over several ranks, say) needs nothing
of it but its function and its parameters. State that a forward pass changes, running means
and random streams, is held in parameters without gradient, and changed by ``assign`` only.

Layers take MXNet's layout, channels first, by default, and work with channels last.
"""

from hpctrain.backend import Device
from hpctrain.nn import initializer
from hpctrain.nn.attention import MultiHeadSelfAttention
from hpctrain.nn.block import Block
from hpctrain.nn.context import cpu, gpu
from hpctrain.nn.conv import Conv1D, Conv2D, Conv2DTranspose, Conv3D
from hpctrain.nn.hybrid import HybridBlock
from hpctrain.nn.layers import (
    Activation,
    Dense,
    Dropout,
    Embedding,
    Flatten,
    HybridLambda,
    Identity,
    Lambda,
    LeakyReLU,
)
from hpctrain.nn.loss import (
    L1Loss,
    L2Loss,
    Loss,
    MaskedSoftmaxCELoss,
    MaskedSoftmaxCrossEntropyLoss,
    MSELoss,
    SigmoidBCELoss,
    SigmoidBinaryCrossEntropyLoss,
    SoftmaxCELoss,
    SoftmaxCrossEntropyLoss,
)
from hpctrain.nn.norm import BatchNorm, LayerNorm, SyncBatchNorm, convert_sync_batch_norm
from hpctrain.nn.parameter import Parameter
from hpctrain.nn.parameter_dict import ParameterDict
from hpctrain.nn.pool import (
    AvgPool1D,
    AvgPool2D,
    AvgPool3D,
    GlobalAvgPool1D,
    GlobalAvgPool2D,
    GlobalAvgPool3D,
    MaxPool1D,
    MaxPool2D,
    MaxPool3D,
)
from hpctrain.nn.recompute import recompute
from hpctrain.nn.recurrent import GRU, LSTM
from hpctrain.nn.sequential import HybridSequential, Sequential
from hpctrain.nn.symbol_block import SymbolBlock

__all__ = [
    "GRU", "LSTM", "Activation", "AvgPool1D", "AvgPool2D", "AvgPool3D", "BatchNorm", "Block",
    "Conv1D", "Conv2D", "Conv2DTranspose", "Conv3D", "Dense", "Device", "Dropout", "Embedding",
    "Flatten", "GlobalAvgPool1D", "GlobalAvgPool2D", "GlobalAvgPool3D", "HybridBlock",
    "HybridLambda", "HybridSequential", "Identity", "L1Loss", "L2Loss", "Lambda", "LayerNorm",
    "LeakyReLU", "Loss", "MSELoss", "MaskedSoftmaxCELoss", "MaskedSoftmaxCrossEntropyLoss",
    "MaxPool1D", "MaxPool2D", "MaxPool3D", "MultiHeadSelfAttention", "Parameter",
    "ParameterDict", "Sequential", "SigmoidBCELoss", "SigmoidBinaryCrossEntropyLoss",
    "SoftmaxCELoss", "SoftmaxCrossEntropyLoss", "SymbolBlock",
    "SyncBatchNorm", "convert_sync_batch_norm", "cpu", "gpu",
    "initializer", "recompute",
]  # fmt: skip
