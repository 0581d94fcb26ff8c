"""Operators, their attributes and inputs: what MXNet and this package both compute.

Inputs are drawn from a seed that is the case's name, so the file of results holds results only.
``ids`` are whole numbers below the limit, as floats, which is how MXNet takes them.
"""

import zlib
from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True)
class Case:
    """One operator with attributes; inputs by shape, those in ``ids`` whole numbers."""

    op: str
    shapes: tuple
    attrs: dict = field(default_factory=dict)
    ids: dict = field(default_factory=dict)
    aux: int = 0
    tag: str = ""

    @property
    def name(self):
        return f"{self.op}{self.tag and '-' + self.tag}"

    def arrays(self):
        """Return inputs, then state."""
        rng = np.random.RandomState(zlib.crc32(self.name.encode()) & 0x7FFFFFFF)
        found = []
        for place, shape in enumerate(self.shapes):
            if place in self.ids:
                found.append(rng.randint(0, self.ids[place], shape).astype(np.float32))
            else:
                found.append(rng.standard_normal(shape).astype(np.float32))
        if self.aux:
            found[-1] = np.abs(found[-1]) + 0.5  # a variance
        return found

    def requests(self):
        """Return which gradients are asked for: not those of numbers and labels."""
        plain = range(len(self.shapes) - self.aux)
        unwanted = {*self.ids, *((1,) if "Output" in self.op or "_like" in self.op else ())}
        return {f"in{i}": "null" if i in unwanted else "write" for i in plain}

    def cotangent(self, shape):
        rng = np.random.RandomState(zlib.crc32(self.name.encode()) & 0xFFFF)
        return rng.standard_normal(shape).astype(np.float32)


IMAGE = (2, 4, 7, 6)
CASES = [
    Case("FullyConnected", ((3, 2, 5), (4, 10), (4,)), {"num_hidden": 4}),
    Case("FullyConnected", ((3, 5), (4, 5)), {"num_hidden": 4, "no_bias": True}, tag="no_bias"),
    Case("FullyConnected", ((3, 2, 5), (4, 5), (4,)), {"num_hidden": 4, "flatten": False},
         tag="last"),
    Case("Convolution", (IMAGE, (6, 4, 3, 3), (6,)), {"kernel": (3, 3), "num_filter": 6}),
    Case(
        "Convolution", (IMAGE, (6, 2, 3, 2)),
        {"kernel": (3, 2), "num_filter": 6, "num_group": 2, "stride": (2, 1), "pad": (2, 1),
         "dilate": (1, 2), "no_bias": True}, tag="all",
    ),
    Case("Convolution", ((2, 3, 9), (4, 3, 3), (4,)), {"kernel": (3,), "num_filter": 4},
         tag="1d"),
    Case(
        "Deconvolution", (IMAGE, (4, 3, 3, 3)),
        {"kernel": (3, 3), "num_filter": 3, "stride": (2, 2), "pad": (1, 1), "adj": (1, 1)},
    ),
    *(
        Case(
            "Pooling", (IMAGE,),
            {"kernel": (3, 2), "stride": (2, 2), "pad": (1, 0), "pool_type": kind,
             "pooling_convention": rule, **more}, tag=f"{kind}-{rule}{''.join(map(str, more))}",
        )
        for kind in ("max", "avg", "sum")
        for rule in ("valid", "full")
        for more in ({}, {"count_include_pad": False})
        if kind == "avg" or not more
    ),
    Case("Pooling", (IMAGE,), {"global_pool": True, "pool_type": "avg"}, tag="global-avg"),
    Case("Pooling", (IMAGE,), {"global_pool": True, "kernel": (2, 2)}, tag="global-max"),
    *(
        Case("Activation", ((3, 5),), {"act_type": kind}, tag=kind)
        for kind in ("relu", "sigmoid", "tanh", "softrelu", "softsign")
    ),
    *(
        Case("LeakyReLU", ((3, 5),), {"act_type": kind, "slope": 0.3}, tag=kind)
        for kind in ("leaky", "elu", "gelu")  # MXNet's own gradient of selu is wrong
    ),
    Case("LeakyReLU", ((3, 5), (5,)), {"act_type": "prelu"}, tag="prelu"),
    Case("BatchNorm", (IMAGE, (4,), (4,), (4,), (4,)), {}, aux=2),
    Case(
        "BatchNorm", (IMAGE, (4,), (4,), (4,), (4,)),
        {"fix_gamma": False, "eps": 1e-5, "momentum": 0.7}, aux=2, tag="gamma",
    ),
    Case(
        "BatchNorm", ((3, 5), (5,), (5,), (5,), (5,)),
        {"fix_gamma": False, "use_global_stats": True}, aux=2, tag="global",
    ),
    Case("LayerNorm", ((3, 5), (5,), (5,))),
    Case("Flatten", ((2, 3, 4),)),
    *(
        Case("Reshape", ((2, 3, 4),), {"shape": shape, "reverse": back}, tag=f"{shape}{back}")
        for shape, back in (
            ((0, -1), False), ((-1, 0), True), ((-2,), False), ((-3, 0), False),
            ((0, -4, -1, 3, 0), False), ((-4, 1, 2, -2), False), ((4, 0, -1), False),
        )
    ),
    Case("Concat", ((2, 3), (2, 1), (2, 2)), {"dim": 1}),
    Case("stack", ((2, 3), (2, 3)), {"axis": 1}),
    Case("SliceChannel", ((2, 6, 3),), {"num_outputs": 3}),
    Case("SliceChannel", ((2, 3, 2),), {"num_outputs": 3, "squeeze_axis": True}, tag="squeeze"),
    Case("slice_axis", ((4, 5),), {"axis": 1, "begin": 1, "end": -1}),
    Case("slice", ((4, 5),), {"begin": (1, None), "end": (3, 4)}),
    Case("transpose", ((2, 3, 4),), {"axes": (1, 2, 0)}),
    Case("transpose", ((2, 3, 4),), tag="reversed"),
    Case("SwapAxis", ((2, 3, 4),), {"dim1": 0, "dim2": 2}),
    Case("expand_dims", ((2, 3),), {"axis": 1}),
    Case("squeeze", ((2, 1, 3),), {"axis": 1}),
    Case("Pad", (IMAGE,), {"mode": "constant", "constant_value": 2.0,
                            "pad_width": (0, 0, 0, 0, 1, 2, 0, 1)}),
    Case("clip", ((3, 5),), {"a_min": -0.5, "a_max": 0.5}),
    Case("Embedding", ((3, 4), (5, 2)), {"input_dim": 5, "output_dim": 2}, ids={0: 5}),
    Case("one_hot", ((3, 4),), {"depth": 5, "on_value": 2.0, "off_value": -1.0}, ids={0: 5}),
    Case("pick", ((3, 4), (3,)), {"axis": 1}, ids={1: 4}),
    Case("dot", ((3, 4), (4, 2))),
    Case("dot", ((4, 3), (2, 4)), {"transpose_a": True, "transpose_b": True}, tag="transposed"),
    Case("batch_dot", ((2, 3, 4), (2, 5, 4)), {"transpose_b": True}),
    *(Case(name, ((3, 5),), {"axis": 1}) for name in ("softmax", "log_softmax")),
    Case("softmax", ((3, 5),), {"axis": 0, "temperature": 2.0}, tag="temperature"),
    *(Case(name, ((2, 3, 4),), {"axis": (0, 2)}) for name in ("sum", "mean", "max")),
    Case("sum", ((2, 3, 4),), {"axis": 1, "exclude": True, "keepdims": True}, tag="exclude"),
    Case("mean", ((2, 3, 4),), tag="all"),
    *(
        Case(f"elemwise_{name}", ((3, 4), (3, 4))) for name in ("add", "sub", "mul", "div")
    ),
    *(
        Case(f"broadcast_{name}", ((3, 4), (1, 4)))
        for name in ("add", "sub", "mul", "div", "maximum", "minimum", "greater",
                     "lesser_equal")
    ),
    *(
        Case(f"_{name}_scalar", ((3, 4),), {"scalar": 1.5})
        for name in ("plus", "minus", "rminus", "mul", "div", "rdiv", "maximum", "minimum")
    ),
    *(
        Case(name, ((3, 4),))
        for name in ("abs", "exp", "square", "negative", "sign", "relu", "sigmoid", "tanh",
                     "BlockGrad", "reciprocal", "expm1")
    ),
    *(
        Case(
            "SoftmaxOutput", ((6, 5), (6,)),
            {"normalization": how, "use_ignore": ignore, "ignore_label": 2, "grad_scale": 1.5},
            ids={1: 5}, tag=f"{how}-{ignore}",
        )
        for how in ("null", "batch", "valid")
        for ignore in (False, True)
    ),
    *(
        Case(
            "SoftmaxOutput", ((2, 4, 3, 2), (2, 3, 2)),
            {"multi_output": True, "normalization": how, "use_ignore": True, "ignore_label": 1},
            ids={1: 4}, tag=f"multi-{how}",
        )
        for how in ("null", "batch", "valid")
    ),
    *(
        Case(
            "SoftmaxOutput", ((2, 3, 4), (2, 3)),
            {"preserve_shape": True, "normalization": how},
            ids={1: 4}, tag=f"preserve-{how}",
        )
        for how in ("null", "batch")
    ),
    Case("SoftmaxOutput", ((4, 5), (4,)), {"smooth_alpha": 0.1}, ids={1: 5}, tag="smooth"),
    Case("SoftmaxOutput", ((4, 5), (4, 5)), {"grad_scale": 2.0}, tag="probabilities"),
    *(
        Case(name, ((4, 3), (4, 3)), {"grad_scale": 2.0})
        for name in ("LinearRegressionOutput", "LogisticRegressionOutput",
                     "MAERegressionOutput")
    ),
    *(
        Case("MakeLoss", ((4, 3),), {"grad_scale": 2.0, "normalization": how}, tag=how)
        for how in ("null", "batch", "valid")
    ),
    Case("Pooling_v1", (IMAGE,),
         {"kernel": (3, 3), "stride": (2, 2), "pad": (1, 1), "pool_type": "avg",
          "pooling_convention": "full"}),
    Case("Reshape", ((2, 3, 4),), {"target_shape": (0, 6)}, tag="old"),
    Case("Reshape", ((2, 3, 4),), {"target_shape": (0, 0), "keep_highest": True}, tag="kept"),
    Case("Convolution_v1", (IMAGE, (6, 4, 3, 3), (6,)), {"kernel": (3, 3), "num_filter": 6}),
    Case("LRN", ((2, 7, 3, 2),), {"nsize": 5, "alpha": 0.5, "knorm": 1.5}),
    Case("InstanceNorm", (IMAGE, (4,), (4,)), {"eps": 0.01}),
    *(
        Case("L2Normalization", (IMAGE,), {"mode": mode}, tag=mode)
        for mode in ("instance", "channel", "spatial")
    ),
    *(
        Case("SoftmaxActivation", (shape,), {"mode": mode}, tag=mode)
        for mode, shape in (("instance", (3, 5)), ("channel", IMAGE))
    ),
    Case("UpSampling", (IMAGE,), {"scale": 2, "sample_type": "nearest"}),
    Case("UpSampling", ((2, 3, 4, 4), (2, 2, 2, 2)), {"scale": 2, "sample_type": "nearest",
                                                     "num_args": 2}, tag="two"),
    Case("Crop", (IMAGE,), {"offset": (1, 2), "h_w": (4, 3), "num_args": 1}),
    Case("Crop", (IMAGE, (1, 1, 3, 4)), {"center_crop": True, "num_args": 2}, tag="like"),
    *(
        Case("RNN", ((5, 2, 3), (count,), *((4, 2, 3),) * (2 if mode == "lstm" else 1)),
             {"mode": mode, "state_size": 3, "num_layers": 2, "bidirectional": True,
              "state_outputs": states}, tag=f"{mode}-{states}")
        for mode, gates in (("lstm", 4), ("gru", 3), ("rnn_tanh", 1), ("rnn_relu", 1))
        for states in (False, True)
        for count in (gates * 3 * 2 * (3 + 3 + 2 + 6 + 3 + 2),)
    ),
    Case("RNN", ((4, 3, 2), (180,), (1, 3, 5), (1, 3, 5)),
         {"mode": "lstm", "state_size": 5, "num_layers": 1}, tag="one"),
    *(
        Case(name, ((4, 3, 2), (3,)), {"use_sequence_length": True, **more}, ids={1: 4})
        for name, more in (("SequenceMask", {"value": -2.0}), ("SequenceReverse", {}))
    ),
    Case("SequenceLast", ((4, 3, 2),)),
    Case("add_n", ((3, 4), (3, 4), (3, 4))),
    *(Case(name, ((3, 4), (3, 4))) for name in ("_maximum", "_minimum")),
    *(
        Case(f"_{name}_scalar", ((3, 4),), {"scalar": 0.5})
        for name in ("greater", "lesser_equal", "rpower")
    ),
    *(Case(name, ((3, 4),)) for name in ("smooth_l1", "hard_sigmoid", "softsign", "erf")),
    *(
        Case("norm", ((2, 3, 4),), {"ord": n, "axis": (1, 2), "keepdims": True}, tag=str(n))
        for n in (1, 2)
    ),
    Case("broadcast_axis", ((2, 1, 4),), {"axis": (1,), "size": (3,)}),
    Case("broadcast_to", ((2, 1, 4),), {"shape": (0, 3, 0)}),
    Case("slice_like", ((4, 5), (2, 3)), {"axes": (1,)}),
    Case("tile", ((2, 3),), {"reps": (2, 1, 3)}),
    Case("repeat", ((2, 3),), {"repeats": 2, "axis": 1}),
    Case("reverse", ((2, 3, 4),), {"axis": (0, 2)}),
    Case("take", ((4, 3), (2, 2)), {"axis": 0}, ids={1: 6}),
    Case("where", ((3, 4), (3, 4), (3, 4)), ids={0: 2}),
]  # fmt: skip
