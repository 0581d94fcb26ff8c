"""Compile formulas and run them on arrays, for tests of what generates code."""

import ctypes

import numpy as np

from hpctrain.autograd.element import cast, source
from hpctrain.graph.codegen import Loops, Operand, llvm_text
from hpctrain.graph.native import compile_text


def compiled(formula, *arrays):
    """Return ``formula`` of arrays of one shape, computed by one flat loop."""
    x = formula(*(source(i, a.dtype.name) for i, a in enumerate(arrays)))
    out = np.empty(arrays[0].shape, x.dtype)
    inputs = tuple(Operand(a.dtype.name, 1) for a in arrays)
    loops = Loops(1, inputs, ((cast(x, x.dtype), Operand(x.dtype, 1)),), (False,))
    run(loops, [a.reshape(-1) for a in arrays], [out.reshape(-1)], out.size)
    return out


def run(loops, ins, outs, *sizes):
    """Run the kernel of ``loops``; arrays have one axis for each loop."""
    arrays = [*ins, *outs]
    strides = [s for a in arrays for s in a.strides]
    compile_text(llvm_text(loops)).function(
        (ctypes.c_void_p * len(arrays))(*[a.ctypes.data for a in arrays]),
        (ctypes.c_int64 * len(sizes))(*sizes),
        (ctypes.c_int64 * len(strides))(*strides),
    )
