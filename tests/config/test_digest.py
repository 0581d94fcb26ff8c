"""The digest follows what decides the numbers, and nothing else."""

import pytest

from hpctrain.config import NOT_COUNTED, Config, digest, load
from hpctrain.config.fields import keys

pytestmark = pytest.mark.serial

OTHER = {bool: "true", int: "7", float: "0.25", list: "z", dict: "{z = 1}", str: "z"}
SPECIAL = {
    "run.profile": [("run.profile", "1:2")],
    "run.time_limit": [("run.time_limit", "5")],
    "memory.budget": [("memory.budget", "5GiB")],
    "data.verify": [("data.verify", "false")],
    "data.inputs": [("data.inputs", "a"), ("data.targets", "z")],
    "data.targets": [("data.inputs", "z"), ("data.targets", "a")],
}


def changed(key):
    """Return the flags that give ``key`` a value that is not its default."""
    if key.choices:
        return [(key.path, key.choices[-1])]
    return SPECIAL.get(key.path, [(key.path, OTHER[key.plain])])


@pytest.mark.parametrize("path", keys())
def test_a_key_counts_unless_it_is_listed(path):
    key = keys()[path]
    pair = [("data.inputs", "z"), ("data.targets", "z")]
    before = load([], pair if path in ("data.inputs", "data.targets") else [])
    after = load([], changed(key))
    if before[0] == after[0]:  # a key with one choice only
        assert path == "exchange.kind"
        return
    assert (digest(before[0]) == digest(after[0])) == (path in NOT_COUNTED)


def test_every_listed_key_exists():
    assert set(keys()) >= NOT_COUNTED


def test_the_way_a_number_is_written_does_not_matter():
    assert digest(load([], [("optim.lr", "0.02")])[0]) == digest(Config())
    assert digest(load([], [("optim.lr", "2e-2")])[0]) == digest(Config())


def test_entries_of_a_table_count_in_any_order():
    one = load([], [("model.args", "{a = 1, b = 2}")])[0]
    two = load([], [("model.args", "{b = 2, a = 1}")])[0]
    assert digest(one) == digest(two)
