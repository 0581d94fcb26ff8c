"""The bounded store of captured kinds, and the memory that they share."""

import numpy as np
import pytest

from hpctrain import ops
from hpctrain.autograd import Tensor, record
from hpctrain.graph.cached import CachedGraph
from hpctrain.graph.pool import Pool
from hpctrain.graph.recent import KINDS_KEPT, Recent

pytestmark = pytest.mark.serial


def chain(x):
    return ops.exp(ops.tanh(x) * x).sum() + ops.matmul(x.T, x).sum()


def test_what_was_used_last_is_kept():
    store = Recent(2)

    for key in "abacab":
        store.get(key, lambda key=key: key.upper())

    assert (list(store), store.made) == (["A", "B"], 4)


def test_a_kind_that_was_dropped_is_captured_anew():
    call = CachedGraph(lambda x: x + 1, [])

    for n in (*range(1, KINDS_KEPT + 2), 1, KINDS_KEPT + 1):
        call(Tensor(np.ones(n)))

    found = call.statistics()
    assert (found.calls, found.captures) == (KINDS_KEPT + 3, KINDS_KEPT + 2)
    assert found.kept == KINDS_KEPT


def test_all_kinds_share_the_arena_of_the_largest():
    call, largest = CachedGraph(chain, []), CachedGraph(chain, [])
    x = np.random.default_rng(0).standard_normal((64, 16))

    def both(run, n):
        tensor = Tensor(x[:n])
        tensor.attach_grad()
        with record():
            y = run(tensor)
        y.backward()
        return y.asnumpy(), tensor.grad.asnumpy().copy()

    for n in (8, 64, 3, 8, 64):
        for a, b in zip(both(call, n), both(chain, n), strict=True):
            np.testing.assert_array_equal(a, b)
    both(largest, 64)
    assert call.statistics().arena_bytes == largest.statistics().arena_bytes


def test_functions_may_share_a_pool():
    pool = Pool()
    calls = [CachedGraph(chain, [], pool) for _ in range(3)]
    x = np.random.default_rng(1).standard_normal((9, 4))

    for n, call in zip((3, 9, 5), calls, strict=True):
        np.testing.assert_array_equal(
            call(Tensor(x[:n])).asnumpy(), chain(Tensor(x[:n])).asnumpy()
        )

    assert {call.statistics().arena_bytes for call in calls} == {pool.nbytes}
