"""The words of MXNet lead somewhere from the top of the package."""

import pytest

import hpctrain

pytestmark = pytest.mark.serial


@pytest.mark.parametrize(
    ("word", "name"),
    [
        ("sym", "FullyConnected"), ("symbol", "load_json"), ("nd", "array"), ("mod", "Module"),
        ("module", "load_checkpoint"), ("model", "load_checkpoint"),
        ("model", "save_checkpoint"), ("gluon", "SymbolBlock"), ("mod", "BucketingModule"),
        ("kv", "create"), ("kvstore", "create"),
        ("callback", "Speedometer"), ("metric", "create"), ("io", "NDArrayIter"),
        ("gluon", "Trainer"), ("init", "Xavier"), ("initializer", "Xavier"),
        ("optimizer", "SGD"), ("lr_scheduler", "Factor"), ("autograd", "record"),
    ],
)  # fmt: skip
def test_a_module_has_what_its_word_promises(word, name):
    assert callable(getattr(getattr(hpctrain, word), name))


def test_single_names_are_there_too():
    assert str(hpctrain.cpu(1).kind) == "cpu" and hpctrain.gpu(2).index == 2
    assert isinstance(hpctrain.cpu(), hpctrain.Context)
    with hpctrain.AttrScope(ctx_group="a"):
        assert hpctrain.sym.var("x").attr("ctx_group") == "a"


def test_other_names_are_missed_by_name():
    with pytest.raises(AttributeError, match="ndarray_of_yesterday"):
        hpctrain.ndarray_of_yesterday  # noqa: B018
