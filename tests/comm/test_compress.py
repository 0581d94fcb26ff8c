import numpy as np
import pytest

from hpctrain.comm.compress import CODECS, codec
from hpctrain.comm.encoding import BLOCK
from hpctrain.errors import ConfigError, ShapeError
from hpctrain.graph.native import available, compile_text

pytestmark = pytest.mark.serial

NAMES = [name for name in CODECS if name != "none"]
WITH_RESIDUAL = ["2bit", "topk"]


COMPILED = pytest.mark.skipif(not available(), reason="no llvmlite")


@pytest.fixture(params=["numpy", pytest.param("llvm", marks=COMPILED)])
def compiler(request):
    return None if request.param == "numpy" else lambda text: compile_text(text).function


def exchange(made, values, residual):
    """Return what arrives."""
    data, out = np.empty(made.nbytes(values.size), np.uint8), np.empty_like(values)
    made.encode(values, data, residual)
    made.decode(data, out)
    return out


def test_each_name_makes_its_codec():
    assert codec("none") is None
    assert [codec(name).name for name in NAMES] == NAMES
    assert [name for name in NAMES if codec(name).residual] == WITH_RESIDUAL


def test_an_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(ConfigError, match="'int8', needed one of none, fp16, bf16, 2bit, topk"):
        codec("int8")


def test_settings_reach_their_codec():
    ones = np.ones(10, np.float32)

    assert exchange(codec("2bit", threshold=0.25), ones, None).tolist() == [0.25] * 10
    assert exchange(codec("topk", ratio=0.3), ones, None).tolist() == [1] * 3 + [0] * 7


@pytest.mark.parametrize("name", NAMES)
def test_float64_is_never_cast_silently(name):
    made = codec(name)
    data = np.zeros(made.nbytes(4), np.uint8)

    with pytest.raises(ConfigError, match=f"{name} got gradients of float64"):
        made.encode(np.zeros(4), data)
    with pytest.raises(ConfigError, match=f"{name} got gradients of float64"):
        made.decode(data, np.zeros(4))
    with pytest.raises(ConfigError, match=f"{name} got gradients of float64"):
        made.add(data, np.zeros(4))


@pytest.mark.parametrize("name", NAMES)
def test_bytes_of_another_length_are_refused(name):
    made = codec(name)
    values, data = np.zeros(4, np.float32), np.zeros(made.nbytes(4) + 1, np.uint8)

    for call in (made.decode, made.add, lambda data, out: made.encode(out, data)):
        with pytest.raises(ShapeError, match=name):
            call(data, values)


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_sent_for_nothing(name):
    made, empty = codec(name), np.zeros(0, np.float32)

    assert made.nbytes(0) == 0
    assert exchange(made, empty, empty.copy()).size == 0


@pytest.mark.parametrize("name", NAMES)
def test_an_encoding_may_lie_anywhere_in_a_message(name):
    made = codec(name, ratio=0.2)
    values = np.random.default_rng(0).standard_normal(50).astype(np.float32)
    expected, out = exchange(made, values, None), np.empty_like(values)
    message = np.zeros(made.nbytes(50) + 3, np.uint8)[3:]

    made.encode(values, message)
    made.decode(message, out)

    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("scale", [1.0, -0.3, 2e-5])
def test_add_adds_a_multiple_of_what_decode_writes(compiler, name, scale):
    made = codec(name, ratio=0.2, compiler=compiler)
    values, total = np.random.default_rng(1).standard_normal((2, BLOCK + 21)).astype(np.float32)
    data, out = np.empty(made.nbytes(values.size), np.uint8), np.empty_like(values)
    made.encode(values, data)
    made.decode(data, out)
    expected = total + np.float32(scale) * out

    made.add(data, total, scale)

    np.testing.assert_array_equal(total, expected)


@pytest.mark.parametrize("name", NAMES)
def test_moves_bring_both_sides_to_the_same_bits_and_nothing_is_lost(compiler, name):
    rng = np.random.default_rng(2)
    made = codec(name, ratio=0.3, compiler=compiler)
    known = rng.standard_normal(1003).astype(np.float32)
    there, values = known.copy(), known + 1e-3 * rng.standard_normal(1003).astype(np.float32)
    data = np.empty(made.nbytes(1003), np.uint8)

    for _ in range(20):
        scale = made.move(known, values, data)
        made.add(data, there, scale)
        np.testing.assert_array_equal(there, known)

    assert np.abs(values - known).mean() < 4e-5


@pytest.mark.parametrize("name", WITH_RESIDUAL)
def test_what_is_sent_and_what_is_left_make_the_whole(name):
    rng = np.random.default_rng(11)
    made = codec(name, threshold=0.7, ratio=0.05)
    whole, sent = np.zeros((2, 1003))
    residual = np.zeros(1003, np.float32)

    for _ in range(50):
        gradient = rng.standard_normal(1003).astype(np.float32)
        whole += gradient
        sent += exchange(made, gradient, residual)

    np.testing.assert_allclose(sent + residual, whole, atol=50 * 2**-21)
    assert np.abs(residual).max() > 0.3


def workers(seed=0, features=12, each=40):
    """Return two workers' parts of a logistic regression, whose data differ."""
    rng = np.random.default_rng(seed)
    truth = rng.standard_normal(features)
    parts = []
    for shift in (-0.5, 0.5):
        x = rng.standard_normal((each, features)) + shift
        y = (x @ truth + rng.logistic(size=each) > 0).astype(float)
        parts.append((x, y))
    return parts


def gradient(w, x, y, decay=0.05):
    """Return the mean gradient of the logistic loss with weight decay."""
    return x.T @ (1 / (1 + np.exp(-x @ w)) - y) / len(y) + decay * w


def optimum(parts):
    """Return the weights where the gradient vanishes, by Newton's method in float64."""
    x, y = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    w = np.zeros(x.shape[1])
    for _ in range(20):
        p = 1 / (1 + np.exp(-x @ w))
        hessian = (x.T * (p * (1 - p))) @ x / len(y) + 0.05 * np.eye(len(w))
        w -= np.linalg.solve(hessian, gradient(w, x, y))
    return w


def descend(parts, name, feedback=True, steps=600):
    """Return the weights after descent with steps that shrink, both directions encoded."""
    made = codec(name, threshold=0.05, ratio=0.1)
    w = np.zeros(parts[0][0].shape[1], np.float32)
    residuals = np.zeros((3, w.size), np.float32)
    for step in range(steps):
        total = np.zeros_like(w)
        for (x, y), residual in zip(parts, residuals, strict=False):
            local = (gradient(w.astype(float), x, y) / len(parts)).astype(np.float32)
            total += exchange(made, local, residual if feedback else None)
        total = exchange(made, total, residuals[2] if feedback else None)
        w -= np.float32(1 / (1 + step / 30)) * total
    return w


@pytest.mark.parametrize("name", NAMES)
def test_descent_reaches_the_optimum_of_uncompressed_gradients(name):
    parts = workers()
    best = optimum(parts)

    found = descend(parts, name)

    assert np.linalg.norm(found - best) < 0.01 * np.linalg.norm(best)


@pytest.mark.parametrize("name", WITH_RESIDUAL)
def test_descent_without_feedback_stays_away(name):
    parts = workers()
    best = optimum(parts)

    found = descend(parts, name, feedback=False)

    assert np.linalg.norm(found - best) > 0.1 * np.linalg.norm(best)
