"""Products of oneDNN against those of NumPy, on random shapes and in every layout."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from two_kernels import compare, kernels, needs_dnnl, poisoned, program, run, run_bound

from hpctrain.autograd import Spec, primitive
from hpctrain.graph.capture import capture
from hpctrain.graph.execute import Executor
from hpctrain.graph.plan import make_plan
from hpctrain.graph.strips import strips_of
from hpctrain.ops import matmul

pytestmark = [pytest.mark.serial, needs_dnnl]


def normal(seed, *shapes):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(s).astype(np.float32) for s in shapes]


@st.composite
def products(draw):
    """Return rows, depth and columns of a product that is worth a call."""
    sizes = [draw(st.integers(1, 90)) for _ in range(3)]
    grown = draw(st.sampled_from([0, 2]))  # a long sum differs in more digits
    others = np.prod(sizes) // sizes[grown]
    sizes[grown] = max(sizes[grown], -(-(1 << 18) // others) + draw(st.integers(0, 3)))
    return sizes


@given(products(), st.booleans(), st.booleans(), st.integers(0, 9))
@settings(max_examples=60, deadline=None, derandomize=True, database=None)
def test_matmul_gives_what_numpy_gives(sizes, flip_a, flip_b, seed):
    m, k, n = sizes
    a, b = normal(seed, (k, m) if flip_a else (m, k), (n, k) if flip_b else (k, n))

    compare("matmul", [a, b], limit=1e-5, transpose_a=flip_a, transpose_b=flip_b)


def test_a_dense_layer_of_many_rows_adds_its_bias():
    x, weight, bias = normal(9, (2, 300, 257), (12, 257), (12,))

    compare("dense", [x, weight, bias], limit=1e-5)


@given(products(), st.booleans(), st.integers(1, 3), st.integers(0, 9))
@settings(max_examples=60, deadline=None, derandomize=True, database=None)
def test_dense_gives_what_numpy_gives(sizes, biased, lead, seed):
    m, k, n = sizes
    x, weight, bias = normal(seed, (*(1,) * (lead - 1), m, k), (n, k), (n,))

    compare("dense", [x, weight, bias] if biased else [x, weight], limit=1e-5)


@pytest.mark.parametrize("flips", [(False, False), (False, True), (True, False)])
@pytest.mark.parametrize("shape", [(310, 100, 520), (64, 24, 2048), (1024, 530, 17)])
def test_many_rows_are_multiplied_by_the_way_that_suits_them(shape, flips):
    (m, k, n), (flip_a, flip_b) = shape, flips
    a, b = normal(8, (k, m) if flip_a else (m, k), (n, k) if flip_b else (k, n))
    attrs = {"transpose_a": flip_a, "transpose_b": flip_b}

    compare("matmul", [a, b], limit=1e-5, **attrs)

    name = program("matmul", [a, b], **attrs).names[-1]
    assert ("gemm:jit" in name) == (m == 310 or (not flip_b and m == 64))


@given(
    st.integers(6, 160), st.integers(1, 40), st.integers(0, 60), st.booleans(),
    st.integers(0, 9),
)  # fmt: skip
@settings(max_examples=30, deadline=None, derandomize=True, database=None)
def test_few_rows_by_a_large_weight_are_multiplied_turned(rows, deep, wide, biased, seed):
    """Of any number of strips, the last of which may be lower."""
    rows = rows if rows < 16 else rows // 16 * 16
    depth, columns = 6 * rows + deep, max(128, 4 * rows) + wide
    given = normal(seed, (rows, depth), (columns, depth), (columns,))[: 3 if biased else 2]
    if rows * depth * columns < 1 << 18:
        return

    compare("dense", given, limit=1e-5)

    assert len(program("dense", given).calls) > 1  # it is turned, at least
    (y,) = run("dense", given)
    want = given[0].astype(float) @ given[1].T.astype(float) + (given[2] if biased else 0)
    np.testing.assert_allclose(y, want, rtol=0, atol=1e-4)


@pytest.mark.parametrize("flips", [(False, False), (False, True), (True, False), (True, True)])
def test_every_layout_gives_the_same_bits(flips):
    a, b = normal(3, (96, 96), (96, 96))
    attrs = dict(zip(("transpose_a", "transpose_b"), flips, strict=True))
    (want,) = run("matmul", [a, b], **attrs)

    for change in (np.asfortranarray, lambda x: np.repeat(x, 2, 1)[:, ::2],
                   lambda x: x[::-1].copy()[::-1]):  # fmt: skip
        given = [change(a), change(b)]
        assert np.array_equal(run("matmul", given, **attrs)[0], want)
        assert np.array_equal(run_bound("matmul", given, **attrs)[0], want)


def test_nothing_is_written_beside_the_result():
    a, b = normal(4, (67, 129), (129, 45))
    row, specs = primitive("matmul"), [Spec.of(a), Spec.of(b)]
    (room,) = row.scratch(specs)
    guarded = np.full(67 * 45 + 64, 7, np.float32)
    out = guarded[32:-32].reshape(67, 45)
    wide = np.full(room.nbytes + 128, 7, np.uint8)

    row.bind(np, [a, b], [out], [wide[64:-64]])()

    assert (guarded[:32] == 7).all() and (guarded[-32:] == 7).all()
    assert (wide[:64] == 7).all() and (wide[-64:] == 7).all()
    np.testing.assert_allclose(out, a @ b, rtol=0, atol=1e-3)


def test_small_and_stacked_products_are_left_to_numpy():
    small, stack, double = (
        normal(0, (8, 8), (8, 8)),
        normal(0, (4, 64, 64), (4, 64, 64)),
        [x.astype(np.float64) for x in normal(0, (96, 96), (96, 96))],
    )

    assert [program("matmul", given) for given in (small, stack, double)] == [None] * 3


def test_strips_of_a_product_are_rows_of_the_whole():
    weight, x = normal(5, (130, 96), (130, 80))
    specs = [Spec.of(weight), Spec.of(x)]
    plan = make_plan(capture(lambda w, y: matmul(w * 1, y * 1, transpose_a=True), specs))
    (whole, pieces) = poisoned([plan.graph.specs[v] for v in plan.graph.outputs] * 2)
    strips = strips_of(plan, {plan.graph.outputs[0]: [17, 60]})
    assert sum(strip.rows is not None for strip in strips) == 3

    Executor(plan, [], {0: whole})([weight, x])
    Executor(plan, [], {0: pieces}, strips=strips)([weight, x])

    np.testing.assert_allclose(pieces, whole, rtol=0, atol=1e-4)
    np.testing.assert_allclose(whole, weight.T @ x, rtol=0, atol=1e-4)


def test_with_numpys_kernels_a_bound_product_is_numpys():
    a, b = normal(6, (96, 96), (96, 96))
    (out,) = poisoned([Spec.of(a)])
    with kernels("numpy"):
        primitive("matmul").bind(np, [a, b], [out], [])()

    assert np.array_equal(out, a @ b)
