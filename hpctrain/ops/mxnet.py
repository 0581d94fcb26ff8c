"""The table of MXNet's operators: by the names that stand in its symbol files.

A row (`hpctrain.ops.mxnet_row.Operator`) is a function over tensors with MXNet's attributes.
Symbols and ``hpctrain.nd`` are made of these rows; nothing else knows the names.
"""

from collections.abc import Mapping
from types import MappingProxyType

from hpctrain.ops.mxnet_images import IMAGES
from hpctrain.ops.mxnet_layers import LAYERS
from hpctrain.ops.mxnet_math import MATH
from hpctrain.ops.mxnet_more import MORE
from hpctrain.ops.mxnet_outputs import OUTPUTS
from hpctrain.ops.mxnet_recurrent import RECURRENT
from hpctrain.ops.mxnet_row import Operator
from hpctrain.ops.mxnet_windows import WINDOWS

__all__ = ["ALIASES", "OPERATORS"]

OPERATORS: Mapping[str, Operator] = MappingProxyType(
    {row.name: row for row in (*LAYERS, *WINDOWS, *IMAGES, *RECURRENT, *OUTPUTS, *MATH, *MORE)}
)

ALIASES: Mapping[str, str] = MappingProxyType(
    {
        "Convolution_v1": "Convolution", "Softmax": "SoftmaxOutput",
        "BatchNorm_v1": "BatchNorm", "CuDNNBatchNorm": "BatchNorm",
        "Embedding_v1": "Embedding", "stop_gradient": "BlockGrad", "make_loss": "MakeLoss",
        "flatten": "Flatten", "reshape": "Reshape", "concat": "Concat", "split": "SliceChannel",
        "cast": "Cast", "pad": "Pad", "swapaxes": "SwapAxis", "crop": "slice",
        "identity": "_copy", "_CrossDeviceCopy": "_copy", "sum_axis": "sum",
        "max_axis": "max", "min_axis": "min",
        "_plus": "elemwise_add", "_Plus": "elemwise_add", "_add": "elemwise_add",
        "_minus": "elemwise_sub", "_Minus": "elemwise_sub", "_sub": "elemwise_sub",
        "_mul": "elemwise_mul", "_Mul": "elemwise_mul", "_div": "elemwise_div",
        "_Div": "elemwise_div", "_PlusScalar": "_plus_scalar", "_MinusScalar": "_minus_scalar",
        "_RMinusScalar": "_rminus_scalar", "_MulScalar": "_mul_scalar",
        "_DivScalar": "_div_scalar", "_RDivScalar": "_rdiv_scalar",
        "_PowerScalar": "_power_scalar", "_MaximumScalar": "_maximum_scalar",
        "_MinimumScalar": "_minimum_scalar", "broadcast_plus": "broadcast_add",
        "broadcast_minus": "broadcast_sub", "zeros": "_zeros", "ones": "_ones", "full": "_full",
        "arange": "_arange", "ElementWiseSum": "add_n",
        "_Power": "_power", "_Maximum": "_maximum", "_Minimum": "_minimum",
        "_RPowerScalar": "_rpower_scalar", "broadcast_axes": "broadcast_axis",
        "_contrib_SparseEmbedding": "Embedding", "flip": "reverse", "_EqualScalar":
        "_equal_scalar", "_NotEqualScalar": "_not_equal_scalar",
        "_GreaterScalar": "_greater_scalar", "_LesserScalar": "_lesser_scalar",
        "_GreaterEqualScalar": "_greater_equal_scalar",
        "_LesserEqualScalar": "_lesser_equal_scalar",
    }
)  # fmt: skip
