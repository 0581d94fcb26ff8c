"""Cases of the rows that a team shares, for a team of one rank: it does not send."""

import numpy as np
from op_cases import Case, ids

from hpctrain.ops.cut import ONE, Cut
from hpctrain.ops.random import dropout_part
from hpctrain.ops.team import team_gather, team_scatter, team_slice, team_spread, team_sum
from hpctrain.ops.team_vocab import take_part, team_argmax, team_cross_entropy

HEADS = Cut(1, 3, 2)


def stream(_):
    return np.array([5, 1, 2], np.uint64)


CASES = [
    Case("team_sum", [(3, 4)], lambda ops, x: team_sum(x, ONE)),
    Case("team_spread", [(3, 4)], lambda ops, x: team_spread(x, ONE)),
    Case("team_gather", [(2, 12)], lambda ops, x: team_gather(x, ONE, HEADS, 12)),
    Case("team_gather terms", [(2, 12)], lambda ops, x: team_gather(x, ONE, HEADS, 12, True)),
    Case("team_scatter", [(2, 12)], lambda ops, x: team_scatter(x, ONE, HEADS)),
    Case("team_slice", [(2, 12, 3)], lambda ops, x: team_slice(x, ONE, HEADS)),
    Case("take_part", [(3, 2), ids(5, 2, 4)], lambda ops, w, i: take_part(w, i, 1, 5), order=1),
    Case(
        "team_cross_entropy",
        [(4, 5), ids(5, 4)],
        lambda ops, x, y: team_cross_entropy(x, y, ONE, 5),
        order=1,
    ),
    Case("team_argmax", [(4, 5)], lambda ops, x: team_argmax(x, ONE, 5), order=0),
    Case(
        "dropout_part",
        [(3, 4, 2), stream],
        lambda ops, x, s: dropout_part(x, s, 0.4, ONE, Cut(1), 4),
    ),
]
