"""Which parameters are tables: only the rows that a batch has touched need to travel."""

from itertools import pairwise
from typing import NamedTuple

from hpctrain.comm.compress import Codec
from hpctrain.comm.group import Group
from hpctrain.comm.link import bytes_sent
from hpctrain.comm.rows import rows_bytes
from hpctrain.graph.plan import Plan
from hpctrain.graph.rows import rows_of_outputs, rows_read
from hpctrain.optim import Optimizer
from hpctrain.parallel.flat import FlatParameters
from hpctrain.parallel.state import ModelState
from hpctrain.parallel.trade import Trade
from hpctrain.parallel.ways import Way

__all__ = ["Table", "tables"]

FIRST_GRADIENT = 2  # outputs of a training plan: losses, right answers, gradients


class Table(NamedTuple):
    """A trained parameter whose gradient has few rows.

    Attributes
    ----------
    source : int
        Position among the inputs and targets of a batch of the array of row numbers.
    height, width : int
        How many rows there are, and elements of a row.
    touched : int
        How many rows a rank sends, at most, of a batch as it is first.
    parts : tuple of (start, stop)
        The elements that each rank updates; empty if every rank updates all.
    back : bool
        Whether rows are what comes back of the update of a part; parts are whole rows then.
    """

    source: int
    height: int
    width: int
    touched: int
    parts: tuple[tuple[int, int], ...] = ()
    back: bool = False

    def nbytes(self, itemsize: int, ranks: int) -> int:
        """Return how many bytes a rank sends, if what it touches is spread over the parts."""
        to_all = rows_bytes(self.touched, self.width, itemsize, ranks)
        if not self.parts:
            return to_all
        whole = bytes_sent(self.height * self.width * itemsize, ranks)
        return to_all // ranks + (to_all if self.back else whole // 2)

    def whole(self, itemsize: int, ranks: int, codec: Codec | None = None) -> int:
        """Return how many bytes a rank sends without regard to rows."""
        count = self.height * self.width
        plain = bytes_sent(count * itemsize, ranks)
        if codec is None:
            return plain
        coded = bytes_sent(codec.nbytes(count), ranks)
        return (coded + plain) // 2 if self.parts else coded

    def traded(self, itemsize: int) -> int:
        """Return how many bytes a worker and its servers send each other in a step, by rows.

        The gradient goes there, the numbers of what is needed next too, and that comes back.
        """
        return 2 * rows_bytes(self.touched, self.width, itemsize, 2)

    def by_rows(self) -> "Table":
        """Return the table with parts of whole rows, of which touched ones come back."""
        ranks = len(self.parts)
        edges = [self.height * rank // ranks * self.width for rank in range(ranks + 1)]
        return self._replace(parts=tuple(pairwise(edges)), back=True)


def tables(
    group: Group, plan: Plan, state: ModelState, optimizer: Optimizer, way: Way, sharded: bool
) -> dict[int, Table]:
    """Return the parameters, by place, whose gradients travel in fewer bytes as rows.

    Collective; all ranks get what holds for rank 0.

    Parameters
    ----------
    group : Group
    plan : Plan
    state : ModelState
    optimizer : Optimizer
        Tells whether rows that no rank has touched change.
    way : Way
    sharded : bool
        Whether each rank updates a part.
    """
    flat, p = state.flat, group.size
    if way.trade is not None:
        return _traded(group, plan, state, way.trade)
    if way.rows is None or way.transport is None:
        return {}
    decay, factors = optimizer.weight_decay, state.factors()
    ends, itemsize, found = [*flat.offsets[1:], flat.total], flat.dtype.itemsize, {}
    for place, *numbers in group.bcast_obj(_tall(plan, flat), 0):
        table = Table(*numbers)
        if sharded:
            size = flat.sizes[place]
            mine = way.transport.part(ends[place] - flat.offsets[place])
            parts = group.allgather_obj([min(mine.start, size), min(mine.stop, size)])
            table = table._replace(parts=tuple((a, b) for a, b in parts))
            if optimizer.rests(decay * factors[place][1]):
                table = min(table, table.by_rows(), key=lambda t: t.nbytes(itemsize, p))
        if table.nbytes(itemsize, p) < table.whole(itemsize, p, way.codec):
            found[place] = table
    return found


def _traded(group: Group, plan: Plan, state: ModelState, trade: Trade) -> dict[int, Table]:
    """Return the parameters of which servers get rows, and send rows that are asked for.

    A worker then lacks the other rows as they are now: nothing else in a step may read them.
    """
    terms, codec, flat = trade.terms, trade.terms.codec(), state.flat
    far = any(trade.is_far(server) for server in range(terms.servers))
    # What corrects late gradients has to know all that a worker has.
    known = terms.compensation > 0 and not terms.sync
    if known or not any(group.allgather_obj(far)):
        return {}
    read = [row for row in _tall(plan, flat) if _only_looked_up(plan, state, *row[:2])]
    itemsize, found = flat.dtype.itemsize, {}
    for place, *numbers in group.bcast_obj(read, 0):
        table, count = Table(*numbers), flat.sizes[place]
        whole = count * itemsize if codec is None else codec.nbytes(count)
        if table.traded(itemsize) < 2 * whole:
            found[place] = table
    return found


def _only_looked_up(plan: Plan, state: ModelState, place: int, source: int) -> bool:
    """Return whether a step reads no row of a parameter but those whose numbers are told."""
    leaf = next(i for i, t in enumerate(state.leaves) if t is state.trained[place])
    return rows_read(plan, plan.graph.leaves[leaf]) == {source}


def _tall(plan: Plan, flat: FlatParameters) -> list[tuple[int, ...]]:
    """Return the place of each parameter that might be a table, and the numbers of `Table`."""
    graph = plan.graph
    found: list[tuple[int, ...]] = []
    for position, source in rows_of_outputs(plan).items():
        place = position - FIRST_GRADIENT
        if place >= 0:
            height = flat.tensors[place].shape[0]
            width = flat.sizes[place] // max(height, 1)
            touched = min(graph.specs[graph.inputs[source]].size, height)
            found.append((place, source, height, width, touched))
    return found
