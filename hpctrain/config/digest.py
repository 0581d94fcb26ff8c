"""Tell whether two configurations ask for the same run."""

import hashlib
import json

import msgspec

from hpctrain.config.schema import Config

__all__ = ["NOT_COUNTED", "digest"]

# What is left out neither decides the parameters at the end nor what is reported about them.
# Where and how fast it is computed is left out on purpose: a run may go on with other ranks,
# on other devices or in smaller slices, though sums may then round differently in the last
# bit.  The epochs and the step limit are in: they shape the learning rate and the last
# parameters, and a finished run must not pass for an unfinished longer one.
NOT_COUNTED = frozenset({
    "run.name", "run.dir", "run.resume", "run.log_every", "run.checkpoint_every", "run.keep",
    "run.profile", "run.time_limit", "run.dry_run", "optim.sharded",
    "data.test_batch", "data.prefetch", "data.verify", "data.cache_mib",
    "exchange.slice_mib", "exchange.path", "exchange.in_flight", "exchange.overlap",
    "exchange.waiting", "exchange.tune", "exchange.kind", "exchange.servers",
    "exchange.checksum",
    "exchange.stall_s", "exchange.abort_s",
    "parallel.pipeline", "parallel.tensor", "parallel.schedule", "parallel.micro_batches",
    "parallel.chunks", "parallel.balance", "parallel.sequence",
    "device.kind", "device.threads", "device.pin", "device.kernels", "device.engine",
    "memory.budget", "memory.recompute",
})  # fmt: skip


def digest(config: Config) -> str:
    """Return 64 hexadecimal digits that are equal for configurations of the same run.

    Counted is what decides the numbers: seed, epochs, model, data, loss, optimizer, kind of
    exchange and precision.  See ``NOT_COUNTED`` for the rest.
    """
    counted = {
        f"{section}.{name}": value
        for section, content in msgspec.to_builtins(config).items()
        for name, value in content.items()
        if f"{section}.{name}" not in NOT_COUNTED
    }
    return hashlib.sha256(json.dumps(counted, sort_keys=True).encode()).hexdigest()
