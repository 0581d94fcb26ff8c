"""The state of a replica: by name, there and back, and over the ranks."""

import numpy as np
import pytest
from replicas import mlp, parameters

from hpctrain.errors import CheckpointError, ShapeError
from hpctrain.nn import Parameter
from hpctrain.optim import SGD, Adam
from hpctrain.parallel.state import ModelState


def model(rank=0):
    """Parameters, a fixed one, a running mean and a stream, different on each rank."""
    made = parameters({"w": (3, 4), "b": (3,), "fixed": (2,)}, seed=rank)
    made["fixed"].grad_req = "null"
    made["mean"] = Parameter("mean", (5,), np.float64, differentiable=False)
    made["mean"].set_data(np.arange(5.0) + 10 * rank)
    made["stream"] = Parameter("stream", (3,), np.uint64, differentiable=False)
    made["stream"].set_data(np.array([2**63 + rank, rank, rank], np.uint64))
    return made


def state_of(rank=0, optimizer=None):
    state = ModelState(model(rank), optimizer or Adam(), 64)
    rng = np.random.default_rng(rank + 100)
    for buffer in state.optimizer.values():
        for place in range(len(state.names)):
            view = state.flat.view(buffer, place)
            view[...] = rng.normal(size=view.shape)
    return state


def copied(arrays):
    return {name: array.copy() for name, array in arrays.items()}


def same(a, b):
    assert list(a) == list(b)
    for name, array in a.items():
        np.testing.assert_array_equal(array, b[name], err_msg=name)
        assert array.dtype == b[name].dtype


def test_arrays_have_the_names_of_the_model():
    assert list(state_of().arrays()) == [
        "parameters/w", "parameters/b",
        "optimizer/mean/w", "optimizer/mean/b", "optimizer/variance/w", "optimizer/variance/b",
        "layers/fixed", "layers/mean", "layers/stream",
    ]  # fmt: skip


def test_what_is_loaded_is_what_was_saved():
    saved = copied(state_of(3).arrays())
    other = state_of(4)
    trained, fixed = other.trained[0], other.fixed["mean"]
    arrays = trained.array, fixed.array

    other.load(saved)

    same(other.arrays(), saved)
    assert trained.array is arrays[0]  # written in place
    assert fixed.array is arrays[1]


def test_padding_stays_zero():
    state = state_of()
    state.load(copied(state_of(1).arrays()))
    mine = np.zeros(state.flat.total, bool)
    for offset, size in zip(state.flat.offsets, state.flat.sizes, strict=True):
        mine[offset : offset + size] = True

    for buffer in (state.flat.weights, *state.optimizer.values()):
        np.testing.assert_array_equal(buffer[~mine], 0)


def test_the_optimizer_may_stay_as_it_is():
    saved = copied(state_of(3, SGD()).arrays())
    other = state_of(4)
    before = copied(other.arrays())

    other.load(saved, optimizer=False)

    for name, array in other.arrays().items():
        expected = before if name.startswith("optimizer/") else saved
        np.testing.assert_array_equal(array, expected[name])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda a: a.pop("parameters/b"), "parameters/b is only in the model"),
        (lambda a: a.update(extra=np.zeros(1)), "extra is only in the checkpoint"),
        (
            lambda a: a.update({"parameters/w": np.zeros((4, 3))}),
            r"parameters/w is float64\[4, 3\], the model needs float64\[3, 4\]",
        ),
        (
            lambda a: a.update({"layers/mean": np.zeros(5, np.float32)}),
            r"layers/mean is float32\[5\], the model needs float64\[5\]",
        ),
    ],
)
def test_what_does_not_fit_is_refused_and_nothing_changes(change, words):
    arrays = copied(state_of(1).arrays())
    change(arrays)
    state = state_of(2)
    before = copied(state.arrays())

    with pytest.raises(CheckpointError, match=words):
        state.load(arrays)

    same(state.arrays(), before)


def test_a_model_without_parameters_is_refused():
    fixed = {"a": Parameter("a", (2,), differentiable=False)}

    with pytest.raises(ShapeError, match="no parameter to train"):
        ModelState(fixed, SGD())


def test_facts_name_shapes_and_dtypes():
    facts = state_of().facts()

    assert facts["parameter w"] == "float64[3,4]"
    assert facts["state stream"] == "uint64[3]"


def test_the_digest_knows_each_bit_of_the_parameters():
    state = state_of()
    before = state.digest()
    state.trained[1].array[2] = np.nextafter(state.trained[1].array[2], 9.0)

    assert state.digest() != before


def test_streams_are_the_whole_numbers_of_64_bits():
    assert len(state_of().streams) == 1
    assert ModelState(mlp().parameters, SGD()).streams == []


def test_broadcast_gives_all_ranks_the_state_of_rank_0(world):
    state = state_of(world.rank)

    state.broadcast(world)

    same(state.arrays(), state_of(0).arrays())


def test_layers_are_averaged_where_they_are_floating(world):
    state = state_of(world.rank)

    state.average_layers(world)

    mean = np.arange(5.0) + 10 * (world.size - 1) / 2
    np.testing.assert_allclose(state.fixed["mean"].asnumpy(), mean)
    stream = [2**63 + world.rank, world.rank, world.rank]
    assert state.fixed["stream"].asnumpy().tolist() == stream


def test_gathered_holds_the_mean_and_each_rank_s_own(world):
    state = state_of(world.rank)
    before = copied(state.arrays())

    found = state.gathered(world)

    same(state.arrays(), before)
    mean = np.arange(5.0) + 10 * (world.size - 1) / 2
    np.testing.assert_allclose(found["layers/mean"], mean)
    assert ("ranks/mean" in found) == (world.size > 1)
    if world.size > 1:
        rows = [np.arange(5.0) + 10 * rank for rank in range(world.size)]
        np.testing.assert_array_equal(found["ranks/mean"], rows)
    assert not any(name.endswith("stream") for name in found if name.startswith("ranks/"))
