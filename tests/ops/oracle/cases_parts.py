"""Cases of operations that stand in graphs only, as parts of others."""

from op_cases import Case, ids

from hpctrain.autograd import apply


def from_sums(ops, logits, labels):
    """Return the cross entropy from the sums of the exponentials."""
    sums = ops.exp(logits).sum(logits.ndim - 1)
    return apply("softmax_cross_entropy_from", logits, labels, sums)[0]


CASES = [Case("cross_entropy_from", [(3, 4, 6), ids(6, 3, 4)], from_sums, order=1)]
