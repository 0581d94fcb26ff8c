"""Symbol files that somebody has changed give a sentence, or a symbol."""

import copy
import json
import random
from pathlib import Path

import pytest

from hpctrain import symbol as sym
from hpctrain.errors import DataError, HpctrainError

pytestmark = pytest.mark.serial

ORACLE = Path(__file__).parent / "oracle"
VALUES = (
    None, True, -1, 0, 1, 7, 10**30, 1.5, "", "x", "-1", "0", "999999999", "(1,", "(0, 0)",
    "None", "null", "Concat", "RNN", [], {}, [[]], [0, 0, 0], {"a": 1}, "\ud800", "a" * 10_000,
)  # fmt: skip


def places(value, path=()):
    yield path
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from places(value[key], (*path, key))


@pytest.mark.parametrize(
    "name", ["networks/mlp", "networks/lstm_fused", "networks/alexnet", "release-0.8"]
)
def test_any_single_change_is_borne(name):
    whole = json.loads((ORACLE / f"{name}-symbol.json").read_text("utf-8"))
    paths = [path for path in places(whole) if path]
    rng, refused = random.Random(5), 0
    for _ in range(300):
        changed, path = copy.deepcopy(whole), rng.choice(paths)
        inside = changed
        for key in path[:-1]:
            inside = inside[key]
        inside[path[-1]] = rng.choice(VALUES)
        try:
            loaded = sym.load_json(json.dumps(changed))
            loaded.tojson()
            loaded.infer_shape(**{k: (3, 4) for k in loaded.list_arguments() if k == "data"})
        except HpctrainError:
            refused += 1

    assert 50 < refused < 300


@pytest.mark.parametrize(
    ("op", "attrs"),
    [
        ("Concat", {"num_args": "999999999"}), ("add_n", {"num_args": "999999999"}),
        ("SliceChannel", {"num_outputs": "999999999"}), ("SliceChannel", {"num_outputs": "0"}),
        ("Concat", {"num_args": "-1"}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("release", [800, 10901])
def test_counts_are_not_believed(op, attrs, release):
    data = {"op": "null", "name": "x", "inputs": []}
    node = {"op": op, "name": "n", "attrs": attrs, "inputs": [[0, 0, 0]]}
    whole = {"nodes": [data, node], "heads": [[1, 0, 0]],
             "attrs": {"mxnet_version": ["int", release]}}  # fmt: skip

    with pytest.raises(DataError, match="'n' has"):
        sym.load_json(json.dumps(whole))
