"""Cases of random; masks of our own, so there is no PyTorch form."""

import numpy as np
from op_cases import Case, values

STREAM = values(5, 7, 11, dtype=np.uint64)

CASES = [
    Case("dropout", [(3, 4, 5), STREAM], lambda ops, x, s: ops.dropout(x, s, 0.3)),
    Case("dropout_axis", [(3, 4, 5), STREAM], lambda ops, x, s: ops.dropout(x, s, 0.3, 1)),
    Case("advance", [STREAM], lambda ops, s: ops.advance(s), order=0),
]
