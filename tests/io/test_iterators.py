"""Iterators in MXNet's words: every record once, and padding that is counted."""

import numpy as np
import pytest
from mpi4py import MPI

from hpctrain.engine import create
from hpctrain.errors import ConfigError
from hpctrain.io import DataBatch, NDArrayIter, RecordIter, ResizeIter

SIZE, RANK = MPI.COMM_WORLD.size, MPI.COMM_WORLD.rank


def rows(batches):
    """Return the first column of the real rows."""
    return [b.data[0].asnumpy()[: b.count, 0].tolist() for b in batches]


def numbered(n):
    return np.arange(n, dtype=np.float32)[:, None] * np.ones((1, 2), np.float32)


@pytest.mark.serial
def test_the_last_batch_is_filled_up_and_says_so():
    """T8: what fills a batch up is told, or old samples look real."""
    source = NDArrayIter(numbered(5), np.arange(5), batch_size=2)
    batches = list(source)

    assert rows(batches) == [[0, 1], [2, 3], [4]]
    assert [b.pad for b in batches] == [0, 0, 1]
    assert batches[2].data[0].asnumpy()[:, 0].tolist() == [4, 0]
    assert batches[2].label[0].asnumpy().tolist() == [4, 0]
    source.reset()
    assert rows(source) == [[0, 1], [2, 3], [4]]


@pytest.mark.serial
def test_the_rest_is_left_out():
    source = NDArrayIter(numbered(5), batch_size=2, last_batch_handle="discard")

    assert rows(source) == [[0, 1], [2, 3]]


@pytest.mark.serial
def test_the_rest_goes_into_the_next_epoch():
    source = NDArrayIter(numbered(5), batch_size=2, last_batch_handle="roll_over")
    epochs = []
    for _ in range(3):
        epochs.append(rows(source))
        source.reset()

    assert epochs == [[[0, 1], [2, 3]], [[4, 0], [1, 2], [3, 4]], [[0, 1], [2, 3]]]


@pytest.mark.serial
@pytest.mark.parametrize(("n", "batch"), [(1, 1), (7, 3), (8, 4), (9, 8)])
def test_every_row_comes_once_an_epoch(n, batch):
    source = NDArrayIter(numbered(n), batch_size=batch, shuffle=True, seed=5)
    orders = []
    for _ in range(3):
        orders.append([row for part in rows(source) for row in part])
        source.reset()

    assert [sorted(order) for order in orders] == [list(range(n))] * 3
    assert n < 7 or orders[0] != orders[1]


@pytest.mark.serial
def test_names_and_shapes_are_described():
    source = NDArrayIter(
        {"a": np.zeros((6, 2)), "b": np.zeros((6, 3, 4), np.int32)}, np.zeros(6), batch_size=3
    )

    assert [(d.name, d.shape, d.dtype) for d in source.provide_data] == [
        ("a", (3, 2), np.float32), ("b", (3, 3, 4), np.int32),
    ]  # fmt: skip
    assert source.provide_label[0][:2] == ("softmax_label", (3,))
    several = NDArrayIter([np.zeros(2), np.zeros(2)])
    assert [d.name for d in several.provide_data] == ["_0_data", "_1_data"]


@pytest.mark.serial
def test_data_that_do_not_fit_are_refused():
    with pytest.raises(ConfigError, match="equal numbers"):
        NDArrayIter(np.zeros(3), np.zeros(4))
    with pytest.raises(ConfigError, match="1 to 3"):
        NDArrayIter(np.zeros(3), batch_size=4)
    with pytest.raises(ConfigError, match="roll_over"):
        NDArrayIter(np.zeros(3), last_batch_handle="drop")


@pytest.mark.serial
@pytest.mark.parametrize("n", [1, 7, 100])
@pytest.mark.parametrize("parts", [1, 2, 3, 8])
@pytest.mark.parametrize("shuffle", [False, True])
def test_parts_have_equally_many_batches_and_every_record_once(
    tmp_path, data_set, n, parts, shuffle
):
    """T7: parts by bytes have unequal counts, and some none: the last step hangs."""
    data_set.write(tmp_path / "d", n)
    readers = [
        RecordIter(tmp_path / "d", 4, parts, i, shuffle=shuffle, seed=3) for i in range(parts)
    ]
    orders = []
    for _ in range(2):
        batches = [list(reader) for reader in readers]
        assert len({len(part) for part in batches}) == 1
        assert len(batches[0]) == readers[0].steps
        assert all(b.pad == 0 and b.count == len(b.index) for part in batches for b in part)
        steps = [np.concatenate([b.index for b in step]) for step in zip(*batches, strict=True)]
        orders.append(np.concatenate(steps))
        for reader in readers:
            reader.reset()

    assert all(sorted(order) == list(range(n)) for order in orders)
    assert n < 7 or not shuffle or (orders[0] != orders[1]).any()


@pytest.mark.serial
def test_a_batch_holds_the_records_that_it_names(tmp_path, data_set):
    wanted = data_set.write(tmp_path / "d", 30)
    source = RecordIter(tmp_path / "d", 8, shuffle=True)
    batches = list(source)

    for batch in batches:
        image = wanted["image"][batch.index] * np.float32(0.5) + 1
        np.testing.assert_array_equal(batch.data[0].asnumpy(), image)
        np.testing.assert_array_equal(batch.label[0].asnumpy(), wanted["label"][batch.index])
    assert [d.name for d in source.provide_data] == ["data", "wave"]
    assert source.provide_label[0].name == "softmax_label"
    source.records.close()


@pytest.mark.serial
def test_images_come_with_channels_first_or_last(tmp_path):
    from hpctrain.io import Field, ShardWriter

    image = np.arange(2 * 3 * 4 * 5, dtype=np.float32).reshape(2, 3, 4, 5)
    with ShardWriter(tmp_path / "d", [Field(name="x", dtype="<f4", shape=(3, 4, 5))]) as writer:
        writer.append({"x": image})
    first, last = (RecordIter(tmp_path / "d", 2, layout=name) for name in ("NCHW", "NHWC"))

    assert first.provide_data[0].shape == (2, 5, 3, 4)
    assert last.provide_data[0].shape == (2, 3, 4, 5)
    np.testing.assert_array_equal(next(last).data[0].asnumpy(), image)
    np.testing.assert_array_equal(next(first).data[0].asnumpy(), image.transpose(0, 3, 1, 2))
    with pytest.raises(ConfigError, match="layout"):
        RecordIter(tmp_path / "d", 2, layout="CHWN")


def test_ranks_share_the_records(shared_path, data_set):
    if RANK == 0:
        data_set.write(shared_path / "d", 50)
    MPI.COMM_WORLD.Barrier()
    with create("serial") as engine:
        source = RecordIter(shared_path / "d", 4, SIZE, RANK, shuffle=True, engine=engine)
        mine = np.zeros(50, np.int64)
        for batch in source:
            mine[batch.index] += 1

    MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, mine)
    assert (mine == 1).all()


@pytest.mark.serial
def test_an_epoch_of_chosen_length_begins_the_data_anew():
    source = ResizeIter(NDArrayIter(numbered(4), batch_size=2), 3)

    assert rows(source) == [[0, 1], [2, 3], [0, 1]]
    source.reset()
    assert rows(source) == [[0, 1], [2, 3], [0, 1]]
    going = ResizeIter(NDArrayIter(numbered(6), batch_size=2), 2, reset_internal=False)
    assert rows(going) == [[0, 1], [2, 3]]
    going.reset()
    assert rows(going) == [[4, 5], [0, 1]]


@pytest.mark.serial
def test_a_batch_knows_its_real_rows():
    assert DataBatch([np.zeros((5, 2))], pad=2).count == 3
