import numpy as np
import pytest

from hpctrain.comm.compress import codec
from hpctrain.comm.kernels import BFLOAT_DECODE, WIDTH, Kernel
from hpctrain.graph.native import available, compile_text

pytestmark = pytest.mark.serial

COMPILED = pytest.mark.skipif(not available(), reason="no llvmlite")
NAMES = ["fp16", "bf16", "2bit"]
GUARD = 0x5A


def compiler(text):
    return compile_text(text).function


def guarded(nbytes):
    """Return room for ``nbytes`` inside a larger buffer, and that buffer."""
    buffer = np.full(nbytes + 128, GUARD, np.uint8)
    return buffer[64 : 64 + nbytes], buffer


def test_without_a_compiler_nothing_is_done():
    data, out = np.ones(2 * WIDTH, np.uint16), np.zeros(2 * WIDTH, np.float32)

    assert Kernel(None, BFLOAT_DECODE)(2 * WIDTH, data, out) == 0
    assert not out.any()


@COMPILED
@pytest.mark.parametrize(("count", "done"), [(0, 0), (15, 0), (16, 16), (47, 32)])
def test_whole_vectors_are_done_and_the_rest_is_left(count, done):
    data, out = np.full(count, 0x3F80, np.uint16), np.zeros(count, np.float32)

    assert Kernel(compiler, BFLOAT_DECODE)(count, data, out) == done
    assert out.tolist() == [1] * done + [0] * (count - done)


@COMPILED
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("count", [0, 15, 16, 65, 4096])
def test_nothing_is_written_outside_of_the_arrays(name, count):
    made = codec(name, compiler=compiler)
    values = np.random.default_rng(count).standard_normal(count).astype(np.float32)
    (data, one), (out, two), (rest, three) = (
        guarded(nbytes) for nbytes in (made.nbytes(count), 4 * count, 4 * count)
    )
    out, rest = out.view(np.float32), rest.view(np.float32)
    rest[:] = 0

    made.encode(values, data, rest)
    made.decode(data, out)
    made.add(data, out)

    for buffer in (one, two, three):
        assert (buffer[:64] == GUARD).all() and (buffer[-64:] == GUARD).all()


@COMPILED
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("count", [*range(34), 70_001])
def test_compiled_and_plain_loops_give_the_same_bits(name, count):
    rng = np.random.default_rng(count)
    values = (rng.standard_normal(count) * 10.0 ** rng.integers(-9, 5, count)).astype("f4")
    found = []
    for made in (codec(name), codec(name, compiler=compiler)):
        rest, total = np.full((2, count), 0.25, np.float32)
        data, out = np.empty(made.nbytes(count), np.uint8), np.empty(count, np.float32)
        made.encode(values, data, rest)
        made.decode(data, out)
        made.add(data, total)
        found.append([array.tobytes() for array in (data, out, total, rest)])

    assert found[0] == found[1]
