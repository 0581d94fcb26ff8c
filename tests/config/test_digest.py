"""The digest follows what decides the numbers, and nothing else."""

import msgspec
import pytest
from msgspec.structs import replace

from hpctrain.config import NOT_COUNTED, Config, digest, load
from hpctrain.config.fields import keys

pytestmark = pytest.mark.serial

OTHER = {int: 7, float: 0.25, list: ["z"], dict: {"z": 1}, str: "z"}
SPECIAL = {"run.profile": "1:2", "run.time_limit": "5", "memory.budget": "5GiB"}


def changed(key):
    """Return the default configuration with another value of one key."""
    value = SPECIAL.get(key.path, OTHER.get(key.plain, not key.default))
    for choice in key.choices:
        value = choice if choice != key.default else value
    section, name = key.path.split(".")
    content = replace(getattr(Config(), section), **{name: value})
    return msgspec.convert(msgspec.to_builtins(replace(Config(), **{section: content})), Config)


@pytest.mark.parametrize("path", keys())
def test_a_key_counts_unless_it_is_listed(path):
    other = changed(keys()[path])

    assert other != Config()
    assert (digest(other) == digest(Config())) == (path in NOT_COUNTED)


def test_every_listed_key_exists():
    assert set(keys()) >= NOT_COUNTED


def test_the_way_a_number_is_written_does_not_matter():
    assert digest(load([], [("optim.lr", "0.02")])[0]) == digest(Config())
    assert digest(load([], [("optim.lr", "2e-2")])[0]) == digest(Config())


def test_entries_of_a_table_count_in_any_order():
    one = load([], [("model.args", "{a = 1, b = 2}")])[0]
    two = load([], [("model.args", "{b = 2, a = 1}")])[0]
    assert digest(one) == digest(two)
