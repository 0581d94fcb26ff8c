"""A module with groups on ranks, one of which stands still."""

import re

import pytest

pytestmark = [pytest.mark.serial, pytest.mark.slow]

PLACED = """
import hpctrain as mx

with mx.AttrScope(ctx_group="a"):
    x = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=6, name="fc1")
with mx.AttrScope(ctx_group="b"):
    x = mx.sym.FullyConnected(mx.sym.tanh(x), num_hidden=4, name="fc2")
    net = mx.sym.SoftmaxOutput(x, name="softmax")

def stand(param):
    if RANK == mx.kv.everyone().rank and param.nbatch == 3:
        threading.Event().wait(60)

module = mx.mod.Module(net, group2ctx=PLACES)
data = mx.io.NDArrayIter(np.ones((80, 12), "f4"), np.ones(80, "f4"), 8)
module.fit(data, num_epoch=2, stall_s=1, batch_end_callback=stand, abort_s=ABORT)
"""


def test_groups_on_ranks_name_the_value_that_is_missing_and_who_has_to_send_it(launch):
    places = "{'a': [0, 2], 'b': [1, 3]}"
    text = PLACED.replace("RANK", "2").replace("PLACES", places).replace("ABORT", "3")

    ended = launch(4, text).end()

    assert ended.code == 124
    assert "value from rank 2 to rank 3 (fc1)" in ended.err
    assert re.search(r"stalled for \d+ s: message \d+, sum over copies of ranks ", ended.err)
    assert "  not started on rank 2\n" in ended.err
    assert re.search(r"  rank 2 @ .*:\n    main thread at \S+/script\.py:\d+ stand ", ended.err)
    assert "control group" not in ended.err
    assert ended.err.endswith("  all ranks end, because exchange.abort_s is 3\n")


def test_a_gradient_that_does_not_come_is_named_by_where_it_is_taken(launch):
    text = PLACED.replace("RANK", "1").replace("PLACES", "{'a': 0, 'b': 1}")

    ended = launch(2, text.replace("ABORT", "2")).end()

    assert ended.code == 124
    assert re.search(r"value from rank 1 to rank 0 \(gradient at \w+\)\n", ended.err)
    assert "  not started on rank 1\n" in ended.err
