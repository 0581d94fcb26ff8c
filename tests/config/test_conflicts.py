"""What does not go together: each row of the table, and that it refuses no more than that."""

import re

import pytest

from hpctrain.config import Config, check_ranks, load
from hpctrain.config.conflicts import CONFLICTS, check
from hpctrain.errors import ConfigError

pytestmark = pytest.mark.serial

STAGED = {"parallel.pipeline": 2}
SERVED = {"exchange.kind": "server"}
SHARDS = {"exchange.reproducible": "ranks"}
WHOLE = "parallel.pipeline: got 2 with {}, which works on a whole model; leave out one of them"
UNBLOCKED = (
    "exchange.waiting: got blocking with {}, where what a rank waits for may depend on what it "
    "has yet to send, needed polling or auto"
)

# For each row, in its order: settings of which each takes part, others, and the sentence.
CASES = [
    (
        {"run.profile": "20:10"},
        {},
        'run.profile: got "20:10", needed a first step not after the last',
    ),
    ({"data.inputs": "x"}, {}, "data.targets: got none, needed some, as data.inputs is set"),
    ({"data.targets": "x"}, {}, "data.inputs: got none, needed some, as data.targets is set"),
    (
        {"optim.nesterov": "true", "optim.momentum": 0},
        {},
        "optim.momentum: got 0, needed a number > 0, as optim.nesterov is true",
    ),
    (
        {"parallel.tensor": 2, **SHARDS},
        {},
        "parallel.tensor: got 2 with exchange.reproducible = ranks, which works on whole "
        "layers; leave out one of them",
    ),
    (
        {"parallel.tensor": 2, "parallel.sync_bn": "true"},
        {},
        "parallel.tensor: got 2 with parallel.sync_bn, which works on whole layers; leave out "
        "one of them",
    ),
    (
        {"parallel.tensor": 2, "exchange.wire": "fp16"},
        {},
        "parallel.tensor: got 2 with exchange.wire = fp16, which works on whole layers; leave "
        "out one of them",
    ),
    (
        {"parallel.tensor": 2, "exchange.kind": "server"},
        {},
        "parallel.tensor: got 2 with exchange.kind = server, which works on whole layers; "
        "leave out one of them",
    ),
    (
        {"parallel.tensor": 2, "exchange.waiting": "blocking"},
        {},
        "exchange.waiting: got blocking with parallel.tensor = 2, where what a rank waits for "
        "may depend on what it has yet to send, needed polling or auto",
    ),
    (
        {"optim.sharded": "true", "optim.clip_norm": 0.5, **SHARDS},
        {},
        "optim.sharded: got true with optim.clip_norm = 0.5 and exchange.reproducible = ranks, "
        "but the norm is a sum over the parts of the ranks, whose bits go by their number; "
        "leave out one of the three",
    ),
    (
        {"parallel.chunks": 3},
        {},
        "parallel.chunks: got 3 with one stage, needed parallel.pipeline of at least 2; leave "
        "it at 1",
    ),
    (
        {"parallel.chunks": 3},
        STAGED,
        "parallel.chunks: got 3 with parallel.schedule = auto, needed interleaved; leave it "
        "at 1, or choose that",
    ),
    ({**STAGED, **SERVED}, {}, WHOLE.format("exchange.kind = server")),
    (
        {"parallel.sync_bn": "true", **SHARDS},
        {"exchange.shard": 4},
        "parallel.sync_bn: got true with exchange.reproducible = ranks, which computes the "
        "shards of 4 samples one after the other, needed all at once; set parallel.sync_bn to "
        "false or exchange.reproducible to run",
    ),
    (
        {"exchange.wire": "2bit", **SHARDS},
        {},
        "exchange.wire: got 2bit with exchange.reproducible = ranks, whose sums travel in "
        "float64; set wire to none, or reproducible to run",
    ),
    (
        {"exchange.wire": "topk", "device.precision": "float64"},
        {},
        "exchange.wire: got topk for gradients in float64, needed float32; set wire to none",
    ),
    (
        {**STAGED, "exchange.waiting": "blocking"},
        {},
        UNBLOCKED.format("parallel.pipeline = 2"),
    ),
    (
        {**SERVED, "exchange.waiting": "blocking"},
        {},
        UNBLOCKED.format("exchange.kind = server"),
    ),
    (
        {"optim.sharded": "true", **SERVED},
        {},
        "optim.sharded: got true with exchange.kind = server, whose servers keep the "
        "optimizer's state already; set it to false",
    ),
    (
        {"exchange.tolerate": 1},
        {},
        "exchange.tolerate: got 1 with exchange.kind = allreduce and exchange.mode = sync, "
        "needed server, and async or bounded with a staleness above 0, where nobody waits for "
        "all; choose these, or set it to 0",
    ),
    (
        {"exchange.compensation": "delay"},
        SERVED,
        "exchange.compensation: got delay with exchange.kind = server and exchange.mode = "
        "sync, where no gradient is late, needed server, and async or bounded with a staleness "
        "above 0; choose these, or none",
    ),
    (
        {"exchange.compensation": "momentum", "optim.momentum": 0},
        {**SERVED, "exchange.mode": "async"},
        "exchange.compensation: got momentum with optim.name = sgd and optim.momentum = 0, "
        "needed more than 0; set one of them, or choose delay",
    ),
    (
        {"parallel.sync_bn": "true", **SERVED, "exchange.mode": "bounded"},
        {},
        "parallel.sync_bn: got true with exchange.mode = bounded, in which workers do not step "
        "together, needed sync; leave out one of them",
    ),
    (
        {"exchange.tune": "true", **SERVED},
        {},
        "exchange.tune: got true with exchange.kind = server, needed allreduce; leave out one "
        "of them",
    ),
]


def refusal(settings):
    """Return the sentence with which settings are refused; empty if they are taken."""
    try:
        load([], [(name, str(value)) for name, value in settings.items()])
    except ConfigError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(("settings", "beside", "sentence"), CASES)
def test_settings_that_do_not_go_together_are_refused_by_name(settings, beside, sentence):
    assert refusal({**settings, **beside}) == sentence


@pytest.mark.parametrize(("settings", "beside", "sentence"), CASES)
def test_without_any_one_of_them_the_others_are_taken(settings, beside, sentence):
    for name in settings:
        rest = {other: value for other, value in settings.items() if other != name}
        assert refusal({**rest, **beside}) == ""


def test_each_row_has_a_case():
    for row, (*_, sentence) in zip(CONFLICTS, CASES, strict=True):
        pattern = re.sub(r"\\\{.*?\\\}", ".*", re.escape(row.sentence))
        assert re.fullmatch(pattern, sentence)


def test_the_defaults_go_together():
    check(Config())


@pytest.mark.parametrize(
    ("settings", "ranks", "sentence"),
    [
        (
            {"data.batch": 2},
            3,
            "data.batch: got 2 records for 3 ranks, needed at least one for each; raise "
            "data.batch or start fewer ranks",
        ),
        (
            {"data.batch": 2, **STAGED},
            6,
            "data.batch: got 2 records for 3 replicas, needed at least one for each; raise "
            "data.batch or start fewer ranks",
        ),
        (
            {"data.batch": 9, "exchange.shard": 4, **SHARDS},
            4,
            "exchange.shard: a batch of 9 records has 3 shards of 4, needed at least one for "
            "each of 4 ranks; raise data.batch, lower exchange.shard, or set "
            "exchange.reproducible to run",
        ),
        ({"data.batch": 2, **SERVED, "exchange.servers": 2}, 4, ""),
        ({"data.batch": 2, **STAGED}, 5, ""),
        ({"data.batch": 9, "exchange.shard": 4, **SHARDS}, 3, ""),
    ],
)
def test_a_batch_that_is_too_small_for_its_ranks_is_refused(settings, ranks, sentence):
    config, _ = load([], [(name, str(value)) for name, value in settings.items()])
    try:
        check_ranks(config, ranks)
    except ConfigError as error:
        assert str(error) == sentence
    else:
        assert sentence == ""
