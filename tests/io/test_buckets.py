"""Sentences in buckets: each once in an epoch, the same bucket on all parts."""

import numpy as np
import pytest

from hpctrain.errors import ConfigError
from hpctrain.io import BucketSentenceIter

pytestmark = pytest.mark.serial


def sentences(n=100, seed=0):
    """Sentence i begins with i + 1, so that it can be found again."""
    rng = np.random.default_rng(seed)
    return [[i + 1, *rng.integers(1, 50, rng.integers(0, 12))] for i in range(n)]


def made(**options):
    return BucketSentenceIter(
        sentences(), **{"batch_size": 4, "buckets": (4, 8, 12), **options}
    )


def test_every_sentence_is_met_once_with_its_successors_as_labels():
    source, known = made(dtype="int64"), sentences()
    met = []

    for batch in source:
        data, label = batch.data[0].asnumpy(), batch.label[0].asnumpy()
        assert data.shape == (4, batch.bucket_key)
        for row, wanted in zip(data[: batch.count], label[: batch.count], strict=True):
            sentence = known[row[0] - 1]
            n = len(sentence)
            assert n <= batch.bucket_key
            assert [list(row[:n]), list(wanted[: n - 1])] == [sentence, sentence[1:]]
            assert not row[n:].any()
            assert (wanted[n - 1 :] == -1).all()
            met.append(row[0])
        assert (label[batch.count :] == -1).all()

    assert sorted(met) == list(range(1, 101))


def test_bucket_is_the_smallest_that_fits():
    for batch in made(dtype="int64"):
        lengths = (batch.data[0].asnumpy() != 0).sum(1)[: batch.count]
        assert (lengths > {4: 0, 8: 4, 12: 8}[batch.bucket_key]).all()


@pytest.mark.parametrize("parts", [2, 3])
def test_parts_take_the_same_bucket_and_different_sentences(parts):
    sources = [made(num_parts=parts, part_index=i, batch_size=3) for i in range(parts)]
    met = []

    for batches in zip(*sources, strict=True):
        assert len({batch.bucket_key for batch in batches}) == 1
        counts = [batch.count for batch in batches]
        assert max(counts) - min(counts) <= 1
        met += [x for b in batches for x in b.data[0].asnumpy()[: b.count, 0]]

    assert sorted(met) == list(range(1, 101))
    assert len({source.steps for source in sources}) == 1


def test_epochs_differ_and_come_again():
    first, second = made(seed=5), made(seed=5)
    orders = []
    for source in (first, second):
        for _ in range(2):
            orders.append([tuple(b.index) for b in source])
            source.reset()

    assert orders[:2] == orders[2:]
    assert orders[0] != orders[1]


def test_layouts_are_transposed():
    for a, b in zip(made(layout="NT"), made(layout="TN"), strict=True):
        np.testing.assert_array_equal(a.data[0].asnumpy(), b.data[0].asnumpy().T)
        assert (a.count, a.provide_data[0].batch_axis) == (b.count, 0)
        assert b.provide_data[0].batch_axis == 1
    assert made(layout="TN").provide_data[0].shape == (12, 4)


def test_short_batches_may_be_left_out():
    batches = list(made(last_batch_handle="discard"))

    assert {batch.pad for batch in batches} == {0}
    assert 0 < sum(batch.count for batch in batches) < 100


def test_what_is_too_long_is_said_and_left_out(caplog):
    source = made(buckets=(3, 6))
    long = sum(len(s) > 6 for s in sentences())

    assert source.discarded == long
    assert f"{long} sentences are longer" in caplog.text
    assert sum(batch.count for batch in source) == 100 - long


def test_lengths_that_are_frequent_are_buckets():
    source = BucketSentenceIter([[1, 2]] * 5 + [[1, 2, 3]] * 3 + [[1] * 7] * 4, 4)

    assert source.buckets == [2, 7]
    with pytest.raises(ConfigError, match="give buckets"):
        BucketSentenceIter([[1, 2]], 4)
    with pytest.raises(ConfigError, match="got layout 'TNC'"):
        made(layout="TNC")
