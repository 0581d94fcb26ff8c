"""Servers and workers over the ranks of a group, and training with them."""

from replicas import SCHEDULE, share

from hpctrain.engine import create
from hpctrain.parallel.roles import roles
from hpctrain.parallel.serve import serve
from hpctrain.parallel.served_parallel import ServedParallel
from hpctrain.parallel.server import lanes_of_server
from hpctrain.parallel.state import ModelState
from hpctrain.parallel.terms import Terms
from hpctrain.parallel.trade import Trade
from hpctrain.parallel.ways import to_servers
from hpctrain.parallel.work import LAG, Options, Work


def worker(model, optimizer, places, terms, engine, first, options=None, slice_bytes=2**20):
    """Return a step of a worker that is ready for batches."""
    options = options or Options()
    state = ModelState(model.parameters, optimizer, slice_bytes)
    trade = Trade(places.post, terms, places.own)
    way = to_servers(trade, state, options)
    step = ServedParallel(
        model.objective, state, optimizer, SCHEDULE, engine, places.own, options, way
    )
    specs = share(first, places.own).specs()
    if not specs[0][0].shape[0]:
        specs = Work(first[:-1], first[-1:], 0, 0).specs()
    step.prepare(*specs)
    return step


def served(
    model, optimizer, group, data, terms=None, options=None, slice_bytes=2**20, use=None,
    kind="threaded",
):  # fmt: skip
    """Train; return the results on workers, and on servers the words of the end.

    ``use(step, steps)`` makes the steps; by default all of them. The state comes with it.
    """
    terms = terms or Terms()
    options = options or Options()
    steps = [batch if isinstance(batch, list) else [batch] for batch in data]
    with roles(group, terms) as places:
        if places.serves:
            with create(kind, lanes_of_server(2)) as engine:
                state = ModelState(model.parameters, optimizer, slice_bytes)
                words = serve(
                    state, optimizer, SCHEDULE, options, terms, places.post, places.own, engine
                )
                return words, state
        with create(kind) as engine:
            step = worker(
                model, optimizer, places, terms, engine, steps[0][0], options, slice_bytes
            )
            results = (use or in_steps)(step, steps)
            step.close(finished=True)
            return results, step.state


def in_steps(step, steps):
    """Make steps, each of a list of batches, and return their results."""
    pending, results = [], []
    for batches in steps:
        unit = step.options.shard or 1
        pending.append(step.step(*(share(batch, step.group, unit) for batch in batches)))
        if len(pending) > LAG:
            results.append(step.result(pending.pop(0)))
    results += [step.result(number) for number in pending]
    step.engine.wait_all()
    return results
