"""What records are to blame for is told with the record."""

from types import SimpleNamespace

import h5py
import numpy as np
import pytest

from hpctrain.cli.build import Data
from hpctrain.cli.failure import end_all, naming
from hpctrain.errors import EngineError, NumericError, RangeError, ShapeError
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
    "cause",
    [RangeError("got 99", 99), RangeError("got 3"), ShapeError("got 3"), NumericError("nan")],
)
def test_what_is_in_no_record_stays_as_it_is(records, cause):
    before = str(cause)

    with pytest.raises(type(cause)), naming(records):
        raise cause

    assert str(cause) == before


def test_a_loss_that_is_not_finite_names_the_record_that_is_not(tmp_path):
    with h5py.File(tmp_path / "own.h5", "w") as file:
        file["x"] = np.array([[1.0, 2.0], [np.inf, 1.0]])
    with (
        open_records(tmp_path / "own.h5", inputs=["x"]) as records,
        pytest.raises(NumericError, match=r"own.h5 has a number .* in record 1 of x$"),
        naming(Data(records, records)),
    ):
        raise NumericError("the loss is nan")
