"""Work that is left out: constants, identities, and what must not be taken for one."""

import numpy as np
import pytest
from programs import random_program, run_plan, wasteful_program

from hpctrain import ops
from hpctrain.autograd import Spec, Tensor
from hpctrain.graph.capture import capture
from hpctrain.graph.clean import constants, dead_code, simplify
from hpctrain.graph.passes import EXACT, optimise, verify

pytestmark = pytest.mark.serial
F8 = np.dtype(np.float64)


def clean(function, *shapes, dtype=F8):
    graph = capture(function, [Spec(s, dtype) for s in shapes])
    return dead_code(verify(simplify(verify(constants(graph)))))


def rows(graph):
    return [node.row.name for node in graph.nodes]


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.parametrize("program", [wasteful_program, random_program])
def test_a_compiled_program_gives_the_bytes_of_eager_execution(program, seed):
    function, leaves, inputs = program(seed)

    graph = optimise(capture(function, [t.spec for t in inputs], leaves), EXACT)
    with np.errstate(all="ignore"):
        eager = [t.asnumpy() for t in function(*inputs)]
        compiled = run_plan(graph, [t.array for t in leaves], [t.array for t in inputs])

    for a, b in zip(eager, compiled, strict=True):
        x, y = (np.where(np.isnan(t), np.nan, t) for t in (a, b))
        assert x.tobytes() == y.tobytes()  # zeros have the same sign, too


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * 1.0,
        lambda x: x / 1.0,
        lambda x: x - 0.0,
        lambda x: x + Tensor(np.array(-0.0)),
        lambda x: ops.negative(-x),
        lambda x: x.T.T,
        lambda x: ops.transpose(x, (0, 1)),
        lambda x: x.reshape((24,)).reshape((4, 6)),
        lambda x: ops.broadcast_to(x, (4, 6)),
        lambda x: ops.maximum(x, x),
        lambda x: ops.flip(ops.flip(x, 0), 0),
        lambda x: x[:, 0:6],
        lambda x: ops.pad(x, ((0, 0), (0, 0))),
        lambda x: ops.concat([x], 1),
        lambda x: ops.identity(x),
        lambda x: x * ops.ones_like(x) - ops.zeros_like(x),
        lambda x: x * (Tensor(np.full(6, 0.5)) + 0.5),
    ],
)
def test_what_changes_nothing_is_left_out(function):
    graph = clean(lambda x: ops.exp(function(ops.exp(x))), (4, 6))

    assert rows(graph) == ["exp", "exp"]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x + 0.0,  # -0 becomes +0
        lambda x: x * 0.0,
        lambda x: Tensor(np.ones((2, 4, 6))) * x,  # the shape changes
        lambda x: Tensor(np.ones(6, np.float32)) * ops.cast(x, "float32"),
        lambda x: ops.cast(ops.cast(x, "float32"), "float64"),
        lambda x: ops.cast(ops.cast(ops.cast(x, "int64"), "float32"), "float64"),
        lambda x: x[0:4, 1:6],
        lambda x: x - x,
    ],
)
def test_what_changes_something_stays(function):
    graph = clean(lambda x: function(ops.exp(x)), (4, 6))

    assert len(rows(graph)) > 1


def test_zeros_added_to_whole_numbers_are_left_out():
    graph = clean(lambda x: (x * x + 0) * 1, (4, 6), dtype=np.dtype(np.int64))

    assert rows(graph) == ["multiply"]


def test_a_copy_of_a_transpose_stays_because_products_round_by_layout():
    graph = clean(lambda x, y: ops.identity(x.T) @ y, (4, 6), (4, 6))

    assert rows(graph) == ["transpose", "identity", "matmul"]


def test_movements_in_a_row_become_one():
    def function(x):
        y = ops.exp(x).reshape((2, 2, 6)).reshape((2, 12)).reshape((3, 8))
        return ops.transpose(ops.transpose(y.reshape((2, 3, 4)), (1, 2, 0)), (1, 0, 2))

    graph = clean(function, (4, 6))

    assert rows(graph) == ["exp", "reshape", "transpose"]
    assert dict(graph.nodes[-1].attrs)["axes"] == (2, 1, 0)


def test_a_transpose_that_moves_only_axes_of_length_1_becomes_a_reshape():
    graph = clean(lambda x: ops.transpose(ops.exp(x), (1, 0)), (1, 6))

    assert rows(graph) == ["exp", "reshape"]


def test_small_constants_are_computed_once_and_large_ones_in_every_run():
    few, many = Tensor(np.arange(6.0)), Tensor(np.arange(60_000.0))

    graph = clean(lambda x, y: (x * ops.exp(few), y * ops.exp(many)), (6,), (60_000,))

    assert rows(graph) == ["multiply", "exp", "multiply"]
    found = [a for a in graph.constants.values() if a.size == 6]
    np.testing.assert_array_equal(found, [np.exp(np.arange(6.0))])


def test_a_strided_constant_keeps_its_strides():
    table = Tensor(np.arange(24.0).reshape(4, 6))

    graph = clean(lambda x: x @ table.T, (3, 6))

    assert rows(graph) == ["transpose", "matmul"]


def test_a_cast_there_and_back_by_way_of_a_wider_type_is_one_cast():
    graph = clean(lambda x: ops.cast(ops.cast(x > 0.0, "int64"), "float64"), (3,))

    assert rows(graph) == ["greater", "cast"]
