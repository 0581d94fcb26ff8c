"""A pipeline trains as one rank does that adds up the same micro-batches: bit for bit."""

import numpy as np
import pytest
from replicas import batches, convnet, mlp
from staged_runs import split_mlp, staged, tied_model, twin

from hpctrain.optim import SGD, Adam
from hpctrain.parallel.staged import Layout
from hpctrain.parallel.work import Options

SGDM = SGD(momentum=0.9, weight_decay=0.01)
SIZES = (7, 7, 2, 5, 1, 8)
WAYS = [("gpipe", 1), ("1f1b", 1), ("zero_bubble", 1), ("interleaved", 2)]
THREE = pytest.mark.mpi(min_size=3)


def data_for(shape=(6,), sizes=SIZES):
    return batches([(n, *shape) for n in sizes])


def compare(found, expected, exact=True):
    """The results of all ranks, and the arrays of this rank, are those of the twin."""
    (results, arrays, _), (wanted, reference) = found, expected
    for result, other in zip(results, wanted, strict=True):
        assert result.loss_sum == (
            other.loss_sum if exact else pytest.approx(other.loss_sum, rel=1e-10)
        )
        assert (result.correct, result.count) == (other.correct, other.count)
        assert (result.skipped, result.scale) == (other.skipped, other.scale)
    assert arrays.keys() <= reference.keys()
    for name, array in arrays.items():
        if array.dtype.kind != "f":
            continue
        if exact:
            np.testing.assert_array_equal(array, reference[name], name)
        else:
            np.testing.assert_allclose(array, reference[name], rtol=1e-10, atol=1e-12)


def divided(world, chunks=1):
    """Two stages or more, and as many replicas as fit."""
    stages = 2 if world.size % 2 == 0 else world.size
    if stages == 1 and chunks > 1:
        pytest.skip("one rank has no use for chunks")
    return stages


@pytest.mark.parametrize("micro", [1, 2, 3, 4, 5])
@pytest.mark.parametrize(("kind", "chunks"), WAYS)
def test_a_pipeline_gives_the_bits_of_one_rank(world, kind, chunks, micro):
    if world.size == 1 and chunks > 1:
        pytest.skip("one rank has no use for chunks")
    layout = Layout(world.size, kind, micro, chunks, "params")

    found = staged(mlp(), SGDM, data_for(), world, layout)

    compare(found, twin(mlp(), SGDM, data_for(), micro))


@pytest.mark.parametrize("kind", ["gpipe", "1f1b"])
def test_cotangents_and_gradients_of_weights_may_be_one_action(world, kind):
    layout = Layout(world.size, kind, 3, 1, "params", whole=True)

    found = staged(mlp(), SGDM, data_for(), world, layout)

    compare(found, twin(mlp(), SGDM, data_for(), 3))


@pytest.mark.parametrize("balance", ["time", "memory", "params"])
@pytest.mark.parametrize("kind", ["serial", "threaded"])
@pytest.mark.parametrize("overlap", [True, False], ids=["overlap", "after"])
def test_convolutions_on_either_engine(world, overlap, kind, balance):
    data, options = data_for((6, 5, 2)), Options(overlap=overlap)
    layout = Layout(world.size, "1f1b", 3, 1, balance)

    found = staged(convnet(), Adam(), data, world, layout, options, kind, 256)

    compare(found, twin(convnet(), Adam(), data, 3))


@pytest.mark.parametrize(("kind", "chunks"), WAYS)
@pytest.mark.parametrize("path", [None, "direct", "node"])
def test_replicas_of_pipelines_give_the_numbers_of_one_rank(world, path, kind, chunks):
    """A batch has 4 micro-batches on each replica, so that their sums are rounded otherwise."""
    layout = Layout(divided(world, chunks), kind, 4, chunks, "params")

    found = staged(mlp(), SGDM, data_for(), world, layout, None, "threaded", 256, path)

    compare(found, twin(mlp(), SGDM, data_for(), 4), exact=False)


@pytest.mark.parametrize("overlap", [True, False], ids=["overlap", "after"])
@pytest.mark.parametrize("sharded", [False, True], ids=["whole", "sharded"])
def test_the_norm_is_that_of_all_stages(world, sharded, overlap):
    options = Options(clip_norm=0.05, sharded=sharded, overlap=overlap)
    layout = Layout(divided(world), "1f1b", 2, 1, "params")

    results, arrays, step = staged(
        mlp(), SGDM, data_for(), world, layout, options, slice_bytes=256
    )

    arrays = {n: a for n, a in arrays.items() if n.startswith("parameters")}
    expected = twin(mlp(), SGDM, data_for(), 2, Options(clip_norm=0.05))
    compare((results, arrays, step), expected, exact=False)


def test_masks_do_not_depend_on_the_stages(world):
    data = data_for()
    layout = Layout(world.size, "zero_bubble", 3, 1, "params")

    found = staged(mlp(0.5), SGDM, data, world, layout)

    compare(found, twin(mlp(0.5), SGDM, data, 3))


def test_steps_of_several_batches(world):
    single = data_for(sizes=(4, 3, 5, 2, 7, 6, 1))
    data = [single[:2], single[2:4], single[4:6], single[6:]]
    layout = Layout(world.size, "1f1b", 2, 1, "params")

    found = staged(mlp(), SGDM, data, world, layout, Options(accumulate=2))

    compare(found, twin(mlp(), SGDM, data, 2))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("overlap", [True, False], ids=["overlap", "after"])
def test_a_bad_gradient_of_one_stage_lets_all_skip(world, overlap):
    data = data_for()
    data[2][0][1, 3] = np.inf
    options = Options(skip=True, loss_scale=1024.0, overlap=overlap)
    layout = Layout(divided(world), "1f1b", 2, 1, "params")

    results, arrays, step = staged(mlp(), SGDM, data, world, layout, options)
    wanted, reference = twin(mlp(), SGDM, data, 2, options)

    assert [r.skipped for r in results] == [False, False, True, False, False, False]
    del results[2], wanted[2]
    compare((results, arrays, step), (wanted, reference), exact=False)


@THREE
@pytest.mark.parametrize("overlap", [True, False], ids=["overlap", "after"])
@pytest.mark.parametrize("kind", ["gpipe", "1f1b", "zero_bubble"])
def test_tied_parameters_and_skips_by_the_groups_of_the_model(world, kind, overlap):
    """On 3 ranks; a fourth has nothing to do with it."""
    with world.split(int(world.rank >= 3)) as three:
        if world.rank >= 3:
            return
        layout, options = Layout(3, kind, 3), Options(clip_norm=0.5, overlap=overlap)

        found = staged(tied_model(), SGDM, data_for(), three, layout, options)

        compare(found, twin(tied_model(), SGDM, data_for(), 3, options), exact=False)
        table = found[1].get("parameters/table", np.zeros((5, 6)))
        tables = np.empty((3, 5, 6))
        three.allgather(np.ascontiguousarray(table), tables)
        assert (tables[0] == tables[2]).all()


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("whole", [False, True])
def test_a_stage_may_have_no_parameters(world, whole):
    """Two ranks for a model whose second group only adds and looks."""
    with world.split(int(world.rank >= 2)) as two:
        if world.rank >= 2:
            return
        layout = Layout(2, "1f1b", 2, whole=whole)
        found = staged(split_mlp(), SGDM, data_for(), two, layout)

        compare(found, twin(split_mlp(), SGDM, data_for(), 2))
