"""Data parallelism with servers: workers compute gradients, servers keep the parameters.

worker    S0 S1 S2 S3 S4 S5 . L2 L1 L0 | S0 S1 ...       L: parameters land in their place
comm               X2    X1    X0                        X: gradient there, parameters back
server               S U   S U   S U                     S: sum over workers, U: update
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hpctrain.autograd import Spec
from hpctrain.errors import ConfigError
from hpctrain.optim import Optimizer, Schedule
from hpctrain.parallel.actions import Turn
from hpctrain.parallel.data_parallel import DataParallel
from hpctrain.parallel.debts import Debts
from hpctrain.parallel.recipe import WANTED, Item, Rules, asking_items
from hpctrain.parallel.served_actions import ServedActions
from hpctrain.parallel.trade import Trade
from hpctrain.parallel.traded import Traded
from hpctrain.parallel.work import StepResult, Work

__all__ = ["ServedParallel"]


class ServedParallel(DataParallel):
    """Pushes the training steps of a worker; see `DataParallel` for its parameters.

    ``group`` are the workers, and ``way`` is that of `hpctrain.parallel.ways.to_servers`. At
    the end `close` tells the servers so.

    Notes
    -----
    In the modes ``async`` and ``bounded`` workers are not in step. A result then counts what
    all of them have done since the result before, and `catch_up` gives the rest.
    """

    actions = ServedActions

    @property
    def trade(self) -> Trade:
        """What this worker has to do with servers."""
        assert self.way.trade is not None, "a worker has servers"
        return self.way.trade

    @property
    def rules(self) -> Rules:
        """How steps are made."""
        gathered, alone = tuple(sorted(self.order)), not self.trade.terms.sync
        asked = self._traded.rows.slices
        return replace(super().rules, served=True, gathered=gathered, alone=alone, asked=asked)

    def prepare(self, inputs: Sequence[Spec], targets: Sequence[Spec]) -> None:
        """Capture and plan for a shape of batch; the first time the servers begin."""
        first = not self.order
        super().prepare(inputs, targets)
        if first:
            widths = self._traded.rows.widths
            self.trade.open(self.state.flat, self.state.optimizer, widths)
            self.state.remote = self.trade

    def begin_at(self, number: int) -> None:
        """Let the next step have this number, on the servers too."""
        super().begin_at(number)
        self.trade.start(number, self.scale.plain())

    def result(self, number: int) -> StepResult:
        """Wait for a step and return its sums, or what is new since the last result."""
        found = super().result(number)
        if found.stop and not self.trade.terms.sync:
            found = replace(found, stop=self.step_number >= self._traded.stop_at)
        return found

    def _gradient(self, parts: Sequence[Work], number: int) -> list[tuple[Item, Turn]]:
        rules, found = self.rules, []
        if rules.asked:
            want = Item("want", 0, (), (WANTED,))
            found += [(want, Turn(number, part)) for part in parts if part.count]
            nothing = Turn(number, Work((), (), 0, 0))
            found += [(item, nothing) for item in asking_items(rules)]
        return found + super()._gradient(parts, number)

    @property
    def _traded(self) -> Traded:
        assert isinstance(self._exchange, Traded), "a worker trades"
        return self._exchange

    @property
    def debts(self) -> Debts:
        """What compression has not sent yet."""
        return self._traded.debts

    def catch_up(self) -> tuple[float, float, int]:
        """Take the servers' parameters; return losses, right answers, samples not told yet."""
        return self._traded.catch_up()

    def change(
        self,
        optimizer: Optimizer | None = None,
        schedule: Schedule | None = None,
        clip_norm: float | None = None,
    ) -> None:
        """Go on with other settings; collective over the workers, with no step under way.

        Raises
        ------
        ConfigError
            If another norm is asked for where each worker clips its own gradients.
        """
        if clip_norm is not None and not self.trade.terms.sync:
            raise ConfigError(
                f"change: got clip_norm {clip_norm:g} in mode {self.trade.terms.mode}, where "
                f"each worker clips by the {self.options.clip_norm:g} that it began with; "
                "start again with another optim.clip_norm"
            )
        self.engine.wait_all()
        self._traded.rows.flush()  # no update is to come late, and be made by other settings
        self.group.barrier()
        self.trade.change(optimizer, schedule, clip_norm)
        if optimizer is not None:
            empty: dict[str, Any] = optimizer.make_state(0, self.state.flat.dtype, np)
            self.optimizer, self.state.optimizer = optimizer, empty
        self.schedule = schedule or self.schedule

    def close(self, **words: Any) -> None:
        """Let the servers end; collective over the workers.

        This worker then has the servers' tables.
        """
        self.engine.wait_all()
        if self._traded.rows.slices and self._traded.behind:
            self.catch_up()
        self.trade.close(**words)
        self.state.leave()
        self.trade.near.free()
