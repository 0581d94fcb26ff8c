"""Embeddings with servers: the rows in use travel, and the numbers are those of one rank."""

import numpy as np
import pytest
from replicas import SCHEDULE, share
from serving import in_steps, served
from tabled import Scales, sentences, twin, words

from hpctrain.comm.compress import codec
from hpctrain.optim import SGD, Adam
from hpctrain.parallel import near
from hpctrain.parallel.terms import Terms
from hpctrain.parallel.work import Options

pytestmark = pytest.mark.mpi(min_size=2)

SIZES = (12, 5, 1, 12)
PLAIN = SGD()  # leaves rows as they are that nobody has touched
CASES = {
    "plain": (PLAIN, Options()),
    "momentum": (SGD(momentum=0.9, weight_decay=0.01), Options()),
    "adam": (Adam(), Options(clip_norm=0.05)),
    "clipped": (PLAIN, Options(clip_norm=0.05)),
    "after": (SGD(momentum=0.9), Options(overlap=False, clip_norm=0.05)),
    "shards": (PLAIN, Options(shard=2)),
    "accumulated": (Adam(), Options(accumulate=2)),
    "skip": (SGD(momentum=0.9), Options(skip=True, loss_scale=4.0)),
}


def halves(batch):
    """Cut a batch into two that make one step together, if there is enough."""
    cut = len(batch[0]) // 2
    parts = (slice(0, cut), slice(cut, None)) if cut else (slice(None),)
    return [tuple(a[part] for a in batch) for part in parts]


def parameters(model):
    return {name: p.data().asnumpy().copy() for name, p in model.parameters.items()}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("servers", [1, pytest.param(2, marks=pytest.mark.mpi(min_size=3))])
def test_rows_by_servers_give_the_numbers_of_a_serial_twin(world, case, servers):
    optimizer, options = CASES[case]
    batches = sentences(SIZES)
    expected = twin(words(), batches, optimizer, options.clip_norm)
    model, terms = words(), Terms(servers=servers, shared=False)
    steps = [halves(b) for b in batches] if options.accumulate > 1 else batches

    served(model, optimizer, world, steps, terms, options, slice_bytes=256)

    if world.rank >= servers:
        for name, array in expected.items():
            np.testing.assert_allclose(
                parameters(model)[name], array, rtol=1e-10, atol=1e-13, err_msg=name
            )


@pytest.mark.parametrize("optimizer", [PLAIN, Adam()], ids=["sgd", "adam"])
def test_only_the_rows_in_use_travel(world, monkeypatch, optimizer):
    """MXNet wants to be told which rows a batch needs; here the plan of the step tells."""
    height, width, steps, batch = 20_000, 4, 3, 8
    scales = Scales(monkeypatch)
    table = height * width * 8
    before = []

    def use(step, batches):
        scales.nbytes = 0
        results = in_steps(step, batches)
        before.append(scales.nbytes)
        return results

    model, terms = words(height, width), Terms(shared=False)
    data = sentences([batch] * steps, height)
    served(model, optimizer, world, data, terms, use=use)

    if world.rank:
        assert before[0] < steps * 8000 < table / 10  # numbers and rows, and what is dense
    else:  # the last letters are the whole tables, for those who look at the parameters
        workers = world.size - 1
        assert scales.nbytes < steps * workers * 8000 + workers * (table + 8000)
    expected = twin(words(height, width), data, optimizer)
    if world.rank:
        np.testing.assert_allclose(parameters(model)["table"], expected["table"], rtol=1e-10)


@pytest.mark.parametrize("kind", ["threaded", "serial"])
@pytest.mark.parametrize("mode", ["async", "bounded"])
def test_without_rounds_workers_end_with_the_servers_tables(world, mode, kind):
    ahead = mode == "bounded"
    terms = Terms(mode=mode, staleness=2, ahead=ahead, shared=False, debug=True)

    def use(step, steps):
        found = in_steps(step, steps)
        step.catch_up()
        return found

    model = words(tables=2)
    data = [sentences([6])[0]] * 20
    results, state = served(
        model, SGD(momentum=0.5), world, data, terms, use=use, slice_bytes=256, kind=kind
    )

    mine = state.flat.weights[len(state.flat.riders) :].copy()
    world.bcast(mine, 1)
    np.testing.assert_array_equal(state.flat.weights[len(state.flat.riders) :], mine)
    if world.rank:
        losses = [result.loss for result in results if result.count]
        assert losses[-1] < losses[0]


@pytest.mark.parametrize("mode", ["async", "bounded"])
@pytest.mark.parametrize("optimizer", [PLAIN, Adam()], ids=["sgd", "adam"])
def test_one_worker_trains_tables_the_same_in_every_mode(world, mode, optimizer):
    group = world.split(0 if world.rank < 2 else 1 + world.rank)
    if group.size == 2:
        data, model = sentences(SIZES), words(tables=2)
        served(model, optimizer, group, data, Terms(mode=mode, shared=False), slice_bytes=256)
        expected = twin(words(tables=2), data, optimizer)
        for name, array in expected.items() if group.rank else ():
            np.testing.assert_allclose(parameters(model)[name], array, rtol=1e-10, atol=1e-13)
    group.free()


@pytest.mark.mpi(min_size=3)
@pytest.mark.parametrize("servers", [1, pytest.param(2, marks=pytest.mark.mpi(min_size=4))])
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_workers_near_and_far_have_the_same_tables(world, monkeypatch, mode, servers):
    """Who shares memory with a server reads and writes whole tables there."""
    apart = [0] * world.size
    apart[-1] = world.size - 1  # as if the last worker, and the last server, had other hosts
    if servers > 1:
        apart[servers - 1] = servers - 1
    monkeypatch.setattr(near, "hosts_of", lambda group: apart)
    data, model = sentences(SIZES), words()

    def use(step, steps):
        found = in_steps(step, steps)
        step.catch_up()
        return found

    terms = Terms(servers=servers, mode=mode)
    _, state = served(model, PLAIN, world, data, terms, use=use, slice_bytes=256)

    mine = state.flat.weights[len(state.flat.riders) :].copy()
    world.bcast(mine, servers)
    if world.rank >= servers:
        np.testing.assert_array_equal(state.flat.weights[len(state.flat.riders) :], mine)
        expected = twin(words(), data, PLAIN)
        for name, array in expected.items() if mode == "sync" else ():
            np.testing.assert_allclose(parameters(model)[name], array, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("how", ["shared", "compensated"])
def test_tables_stay_whole_where_nothing_travels_or_all_must_be_known(world, how):
    terms = Terms() if how == "shared" else Terms(mode="async", compensation=0.1, shared=False)
    found = []

    def use(step, steps):
        found.append(step.rules.asked)
        return in_steps(step, steps)

    served(words(), PLAIN, world, sentences(SIZES), terms, use=use)

    assert found == ([()] if world.rank else [])


@pytest.mark.parametrize("name", ["fp16", "2bit"])
def test_rows_are_exact_beside_slices_that_are_compressed(world, name):
    def trained(coded):
        model = words(height=8000)
        for parameter in model.parameters.values():
            parameter.cast(np.float32)
        kinds = (lambda: codec(name, threshold=0.01)) if coded else (lambda: None)
        terms = Terms(shared=False, codec=kinds)
        served(model, PLAIN, world, sentences([12], 8000), terms, slice_bytes=256)
        return parameters(model)

    plain, coded = trained(False), trained(True)

    if world.rank:
        np.testing.assert_array_equal(coded["table"], plain["table"])


def test_a_change_comes_behind_all_updates_of_rows(world):
    """And the optimizer's state is fetched and stored, by rows of several servers or one."""
    servers = min(2, world.size - 1)
    terms, data, kept = Terms(servers=servers, shared=False), sentences(SIZES), {}

    def use(step, steps):
        for (batch,) in steps[:2]:
            step.result(step.step(share(batch, step.group)))
        step.change(schedule=SCHEDULE)
        step.catch_up()
        kept.update(step.state.gathered(step.group))
        if not step.group.rank:
            step.state.load({n: a.copy() for n, a in kept.items()})
        step.state.broadcast(step.group, kept)
        step.begin_at(2)
        for (batch,) in steps[2:]:
            step.result(step.step(share(batch, step.group)))
        return []

    model = words()
    served(model, Adam(), world, data, terms, use=use, slice_bytes=256)

    if world.rank >= servers:
        expected = twin(words(), data, Adam())
        for name, array in expected.items():
            np.testing.assert_allclose(parameters(model)[name], array, rtol=1e-10, atol=1e-13)
    if world.rank == servers:
        assert kept["optimizer/mean/table"].any()
