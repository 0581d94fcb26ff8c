"""An index beyond the classes is told with the record that it comes from."""

from types import SimpleNamespace

import pytest

from hpctrain.cli.build import Data
from hpctrain.cli.failure import end_all, naming
from hpctrain.errors import EngineError, RangeError, ShapeError
from hpctrain.io import open_records

pytestmark = pytest.mark.serial


@pytest.fixture
def records(data):
    with open_records(data / "train") as train, open_records(data / "test") as test:
        yield Data(train, test)


def failed(cause):
    error = EngineError("step: failed")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize("size", [1, 2])
def test_a_failed_task_names_the_record(records, size):
    told = []
    guard = SimpleNamespace(fail=lambda *given: told.append(given))
    cause = RangeError("loss: got index 3", 3)

    end_all(failed(cause), SimpleNamespace(size=size, guard=guard), records)

    assert str(cause).startswith("loss: got index 3; ")
    assert str(cause).endswith("of label")
    assert "train/shard-00000.h5 has 3 in record " in str(cause)
    assert told == ([(cause, "engine")] if size > 1 else [])


def test_a_record_is_named_once(records):
    with pytest.raises(RangeError) as caught, naming(records), naming(records):
        raise RangeError("loss: got index 2", 2)

    assert str(caught.value).count("; ") == 1


@pytest.mark.parametrize(
    "cause", [RangeError("got 99", 99), RangeError("got 3"), ShapeError("got 3")]
)
def test_what_is_in_no_record_stays_as_it_is(records, cause):
    before = str(cause)

    with pytest.raises(ShapeError), naming(records):
        raise cause

    assert str(cause) == before
