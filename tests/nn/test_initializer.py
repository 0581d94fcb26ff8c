"""First values: their distribution, and what they depend on."""

import math

import numpy as np
import pytest

from hpctrain.errors import ConfigError, ShapeError
from hpctrain.nn import initializer
from hpctrain.nn.initializer import create, fans_of, initial_value


def value(init, shape, name="weight", seed=0, dtype=np.float64, fans=None):
    return initial_value(create(init), shape, dtype, seed, name, fans)


def test_a_value_is_a_function_of_seed_name_and_shape():
    first = value("normal", (5, 3))

    np.testing.assert_array_equal(first, value("normal", (5, 3)))
    assert not np.allclose(first, value("normal", (5, 3), name="bias"))
    assert not np.allclose(first, value("normal", (5, 3), seed=1))


def test_a_value_is_the_same_on_every_machine_and_rank():
    expected = [-0.00345547, 0.02270006, 0.03103221]

    np.testing.assert_allclose(
        value("normal", (3,), "features.0.weight", 7), expected, atol=1e-8
    )


def test_single_precision_is_double_precision_rounded():
    double, single = value("xavier", (4, 4)), value("xavier", (4, 4), dtype=np.float32)

    np.testing.assert_array_equal(single, double.astype(np.float32))


@pytest.mark.parametrize(
    ("shape", "axes", "fans"),
    [
        ((7, 5), (0, 1), (5, 7)),
        ((7, 5, 3, 3), (0, 1), (45, 63)),
        ((7, 3, 3, 5), (0, -1), (45, 63)),
        ((5, 3, 7), (-1, 0), (15, 21)),
        ((7,), (0, 1), (1, 7)),
    ],
)
def test_fans_count_inputs_and_outputs_times_the_window(shape, axes, fans):
    assert fans_of(shape, *axes) == fans


@pytest.mark.parametrize(
    ("init", "std", "limit"),
    [
        (initializer.Uniform(0.3), 0.3 / math.sqrt(3), 0.3),
        (initializer.Normal(0.2), 0.2, None),
        (initializer.Xavier(), math.sqrt(2 / 400), math.sqrt(6 / 400)),
        (initializer.Xavier("gaussian", "out", 2), math.sqrt(2 / 300), None),
        (initializer.MSRAPrelu(), math.sqrt(2 / 100), None),
        (initializer.Kaiming(slope=0.5), math.sqrt(2 / 1.25 / 100), None),
    ],
)
def test_random_values_have_the_spread_that_was_asked_for(init, std, limit):
    found = value(init, (300, 100))

    assert found.std() == pytest.approx(std, rel=0.02)
    assert abs(found.mean()) < 4 * std / math.sqrt(found.size)
    if limit is not None:
        assert 0.99 * limit < np.abs(found).max() <= limit


@pytest.mark.parametrize("shape", [(6, 4), (4, 6), (4, 3, 2)])
def test_orthogonal_rows_or_columns_are_orthonormal(shape):
    found = value(initializer.Orthogonal(2.0), shape).reshape(shape[0], -1) / 2
    rows, columns = found.shape

    product = found.T @ found if rows >= columns else found @ found.T

    np.testing.assert_allclose(product, np.eye(min(rows, columns)), atol=1e-12)


def test_the_forget_gates_are_the_second_quarter():
    np.testing.assert_array_equal(value("lstmbias", (8,)), [0, 0, 1, 1, 0, 0, 0, 0])


def test_constants_may_be_names_numbers_and_arrays():
    np.testing.assert_array_equal(value("ones", (2, 2)), 1)
    np.testing.assert_array_equal(value("zeros", (2, 2)), 0)
    np.testing.assert_array_equal(value(0.5, (2,)), 0.5)
    np.testing.assert_array_equal(value([1.0, 2.0], (2,)), [1, 2])


def test_a_stream_starts_with_its_own_key_at_zero():
    first = value(initializer.RandomStream(), (3,), "a", dtype=np.uint64)
    second = value(initializer.RandomStream(), (3,), "b", dtype=np.uint64)

    assert first[0] != second[0]
    np.testing.assert_array_equal(first[1:], 0)


def test_wrong_settings_are_named():
    with pytest.raises(ConfigError, match="got 'xavir'"):
        create("xavir")
    with pytest.raises(ConfigError, match="rnd_type 'normal'"):
        initializer.Xavier("normal")
    with pytest.raises(ConfigError, match="factor_type 'both'"):
        initializer.Xavier(factor_type="both")
    with pytest.raises(ShapeError, match=r"gave an array of shape \(1,\)"):
        value(lambda rng, shape, fans: np.zeros(1), (2,))
