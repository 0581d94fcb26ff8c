"""What does not go together: a table of conditions, and the sentence that refuses each.

A row holds where all its conditions do. Its sentence is filled in from the configuration and
names the settings that meet. A new pair of settings that cannot be had at once is a row here
and a case in ``tests/config/test_conflicts.py``, nothing else.
"""

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from hpctrain.config.schema import Config
from hpctrain.errors import ConfigError

__all__ = ["CONFLICTS", "Conflict", "check", "check_ranks"]

Condition = Callable[[Config], bool]


class Conflict(NamedTuple):
    """Conditions that must not hold at once, and what to say where they do."""

    conditions: tuple[Condition, ...]
    sentence: str

    def meets(self, config: Config) -> bool:
        """Return whether all conditions hold."""
        return all(condition(config) for condition in self.conditions)

    def said(self, config: Config) -> str:
        """Return the sentence with the values of ``config`` filled in."""
        return self.sentence.format(**msgspec.structs.asdict(config))


def _backwards(config: Config) -> bool:
    first, _, last = config.run.profile.partition(":")
    return bool(first) and int(first) > int(last)


def _staged(config: Config) -> bool:
    return config.parallel.pipeline > 1


def _shared(config: Config) -> bool:
    return config.parallel.tensor > 1


def _served(config: Config) -> bool:
    return config.exchange.kind == "server"


def _without_rounds(config: Config) -> bool:
    exchange = config.exchange
    return exchange.mode == "async" or (exchange.mode == "bounded" and exchange.staleness > 0)


def _corrected(config: Config) -> bool:
    return config.exchange.compensation in ("delay", "momentum")


def _without_velocity(config: Config) -> bool:
    still = config.optim.name == "sgd" and config.optim.momentum == 0
    return config.exchange.compensation == "momentum" and still


def _in_shards(config: Config) -> bool:
    return config.exchange.reproducible == "ranks"


def _compressed(config: Config) -> bool:
    return config.exchange.wire != "none"


def _sharded(config: Config) -> bool:
    return config.optim.sharded


def _clipped(config: Config) -> bool:
    return config.optim.clip_norm > 0


def _tolerant(config: Config) -> bool:
    return config.exchange.tolerate > 0


def _sync_bn(config: Config) -> bool:
    return config.parallel.sync_bn


def _tuned(config: Config) -> bool:
    return config.exchange.tune


def _blocking(config: Config) -> bool:
    return config.exchange.waiting == "blocking"


_UNBLOCKED = (
    "exchange.waiting: got blocking with {}, where what a rank waits for may depend on what it "
    "has yet to send, needed polling or auto"
)
_WHOLE = (
    "parallel.pipeline: got {{parallel.pipeline}} with {}, which works on a whole model; leave "
    "out one of them"
)
_LAYERS = (
    "parallel.tensor: got {{parallel.tensor}} with {}, which works on whole layers; leave out "
    "one of them"
)

CONFLICTS = (
    Conflict(
        (_backwards,),
        'run.profile: got "{run.profile}", needed a first step not after the last',
    ),
    Conflict(
        (lambda c: bool(c.data.inputs), lambda c: not c.data.targets),
        "data.targets: got none, needed some, as data.inputs is set",
    ),
    Conflict(
        (lambda c: bool(c.data.targets), lambda c: not c.data.inputs),
        "data.inputs: got none, needed some, as data.targets is set",
    ),
    Conflict(
        (lambda c: c.optim.nesterov, lambda c: c.optim.momentum == 0),
        "optim.momentum: got 0, needed a number > 0, as optim.nesterov is true",
    ),
    Conflict((_shared, _in_shards), _LAYERS.format("exchange.reproducible = ranks")),
    Conflict((_shared, _sync_bn), _LAYERS.format("parallel.sync_bn")),
    Conflict((_shared, _compressed), _LAYERS.format("exchange.wire = {exchange.wire}")),
    Conflict((_shared, _served), _LAYERS.format("exchange.kind = server")),
    Conflict((_shared, _blocking), _UNBLOCKED.format("parallel.tensor = {parallel.tensor}")),
    Conflict(
        (_sharded, _clipped, _in_shards),
        "optim.sharded: got true with optim.clip_norm = {optim.clip_norm:g} and "
        "exchange.reproducible = ranks, but the norm is a sum over the parts of the ranks, "
        "whose bits go by their number; leave out one of the three",
    ),
    Conflict(
        (lambda c: c.parallel.chunks > 1, lambda c: not _staged(c)),
        "parallel.chunks: got {parallel.chunks} with one stage, needed parallel.pipeline of at "
        "least 2; leave it at 1",
    ),
    Conflict(
        (lambda c: c.parallel.chunks > 1, lambda c: c.parallel.schedule != "interleaved"),
        "parallel.chunks: got {parallel.chunks} with parallel.schedule = {parallel.schedule}, "
        "needed interleaved; leave it at 1, or choose that",
    ),
    Conflict((_staged, _served), _WHOLE.format("exchange.kind = server")),
    Conflict(
        (_in_shards, _sync_bn),
        "parallel.sync_bn: got true with exchange.reproducible = ranks, which computes the "
        "shards of {exchange.shard} samples one after the other, needed all at once; set "
        "parallel.sync_bn to false or exchange.reproducible to run",
    ),
    Conflict(
        (_in_shards, _compressed),
        "exchange.wire: got {exchange.wire} with exchange.reproducible = ranks, whose sums "
        "travel in float64; set wire to none, or reproducible to run",
    ),
    Conflict(
        (_compressed, lambda c: c.device.dtype != "float32"),
        "exchange.wire: got {exchange.wire} for gradients in {device.precision}, needed "
        "float32; set wire to none",
    ),
    Conflict(
        (_staged, _blocking), _UNBLOCKED.format("parallel.pipeline = {parallel.pipeline}")
    ),
    Conflict((_served, _blocking), _UNBLOCKED.format("exchange.kind = server")),
    Conflict(
        (_served, _sharded),
        "optim.sharded: got true with exchange.kind = server, whose servers keep the "
        "optimizer's state already; set it to false",
    ),
    Conflict(
        (_tolerant, lambda c: not (_served(c) and _without_rounds(c))),
        "exchange.tolerate: got {exchange.tolerate} with exchange.kind = {exchange.kind} and "
        "exchange.mode = {exchange.mode}, needed server, and async or bounded with a staleness "
        "above 0, where nobody waits for all; choose these, or set it to 0",
    ),
    Conflict(
        (_corrected, lambda c: not (_served(c) and _without_rounds(c))),
        "exchange.compensation: got {exchange.compensation} with exchange.kind = "
        "{exchange.kind} and exchange.mode = {exchange.mode}, where no gradient is late, "
        "needed server, and async or bounded with a staleness above 0; choose these, or none",
    ),
    Conflict(
        (_corrected, _without_velocity),
        "exchange.compensation: got momentum with optim.name = {optim.name} and optim.momentum "
        "= 0, needed more than 0; set one of them, or choose delay",
    ),
    Conflict(
        (_served, _without_rounds, _sync_bn),
        "parallel.sync_bn: got true with exchange.mode = {exchange.mode}, in which workers do "
        "not step together, needed sync; leave out one of them",
    ),
    Conflict(
        (_served, _tuned),
        "exchange.tune: got true with exchange.kind = server, needed allreduce; leave out one "
        "of them",
    ),
)


def check(config: Config) -> None:
    """Raise `ConfigError` if settings do not go together: the first row that holds."""
    for row in CONFLICTS:
        if row.meets(config):
            raise ConfigError(row.said(config))


def check_ranks(config: Config, ranks: int) -> None:
    """Raise `ConfigError` if a batch is too small for so many ranks.

    Servers take no part of a batch, and the ranks of a pipeline share one.
    """
    serving = config.exchange.servers if _served(config) else 0
    replicas = (ranks - serving) // (config.parallel.pipeline * config.parallel.tensor)
    batch, shard = config.data.batch, config.exchange.shard if _in_shards(config) else 1
    if batch < replicas:
        who = "replicas" if _staged(config) or _shared(config) else "ranks"
        raise ConfigError(
            f"data.batch: got {batch} records for {replicas} {who}, needed at least one for "
            "each; raise data.batch or start fewer ranks"
        )
    units = -(-batch // shard)
    if units < replicas:
        raise ConfigError(
            f"exchange.shard: a batch of {batch} records has {units} shards of {shard}, needed "
            f"at least one for each of {replicas} ranks; raise data.batch, lower "
            "exchange.shard, or set exchange.reproducible to run"
        )
