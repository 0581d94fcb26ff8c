"""A server without MPI: who is answered when, and what a death changes."""

import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from posted import Served
from replicas import SCHEDULE, Model, mlp, parameters

from hpctrain.comm.letter import Header, Op
from hpctrain.comm.post import PUSH
from hpctrain.comm.request import Handle
from hpctrain.engine import create
from hpctrain.errors import CommError, EngineError, LostRankError
from hpctrain.optim import SGD
from hpctrain.optim import create as create_optimizer
from hpctrain.parallel.losses import Losses
from hpctrain.parallel.recipe import Rules, exchange_items
from hpctrain.parallel.server import lanes_of_server
from hpctrain.parallel.state import ModelState
from hpctrain.parallel.terms import ROWS, Terms
from hpctrain.parallel.work import BAD, COUNT, LOSS, RIDERS, STOP, Options

pytestmark = pytest.mark.serial
RULES = Rules(order=(2, 1, 0), gathered=(0, 1, 2), served=True)
BOUNDED = {"mode": "bounded", "tolerate": 1, "shared": False}


@pytest.fixture
def served():
    """Make a server with workers; closed at the end."""
    engines = []

    def make(terms, workers=3, kind="serial", in_flight=4, model=None, **more):
        engines.append(create(kind, lanes_of_server(1, in_flight)))
        return Served(model or mlp(), terms, workers, engines[-1], **more)

    yield make
    for engine in engines:
        engine.close()


def mourned(deaths, tolerate=1):
    """The losses of a run with one server; ``deaths`` are told when they are in the list."""

    def told():
        found = list(deaths)
        deaths.clear()
        return found

    return Losses(told, 1, tolerate, [f"host{rank}" for rank in range(9)])


def until(condition, limit_s=20):
    """Wait for another thread."""
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, "it does not come"
        time.sleep(1e-3)


def test_nobody_waits_for_a_worker_that_has_died(served):
    deaths = []
    server = served(Terms(staleness=1, **BOUNDED), losses=mourned(deaths))
    for worker in 1, 2:
        for version in 0, 1:
            server.push(worker, version)
    server.push(3, 0, whole=False)  # it dies while it sends
    server.step()
    assert server.answers() == [(1, 0, 0), (2, 0, 0)]

    deaths.append(3)
    server.step()
    assert sorted(server.answers()) == [(1, 1, 0), (2, 1, 0)]

    server.push(2, 2)
    server.push(1, 2)
    server.step()
    assert server.answers() == [(2, 2, 0), (1, 2, 0)]


def test_a_slice_that_only_the_dead_one_has_pushed_begins_anew(served):
    deaths = []
    server = served(Terms(staleness=1, **BOUNDED), losses=mourned(deaths))
    server.push(3, 5, index=1)
    server.step()
    deaths.append(3)
    server.push(1, 5, index=1)
    server.push(2, 5, index=1)
    server.step()

    assert server.answers() == [(3, 5, 1), (1, 5, 1), (2, 5, 1)]


def test_an_answer_to_a_dead_worker_is_no_error_where_that_is_tolerated(served):
    server = served(Terms(mode="async", tolerate=1), losses=mourned([]))
    server.post.dead = {3}
    server.push(3, 0)
    server.push(2, 0)
    server.step()

    assert server.answers() == [(2, 0, 0)]


def test_an_answer_to_a_dead_worker_is_an_error_where_it_is_not(served):
    server = served(Terms(mode="async"))
    server.post.dead = {3}
    server.push(3, 0)

    with pytest.raises((EngineError, LostRankError), match="died"):
        server.step()


@pytest.mark.parametrize(("dead", "message"), [
    ([[2], [4]], "rank 2 on host2, rank 4 on host4 died, needed all but 1"),
    ([[2, 3]], "rank 2 on host2, rank 3 on host3 died, needed all but 1"),
    ([[0]], "server: rank 0 on host0 has died, and with it the parameters"),
    ([[1]], "rank 1 on host1 has died, which leads them and writes the checkpoints"),
])  # fmt: skip
def test_what_a_run_cannot_do_without_ends_it_in_a_sentence(dead, message):
    deaths = []
    losses = mourned(deaths)

    with pytest.raises(LostRankError, match=message) as caught:
        for ranks in dead:
            deaths += ranks
            losses.news()

    assert "the same command" in str(caught.value) and caught.value.exit_code == 137


@pytest.mark.parametrize("staleness", [1, 2, 5, 10**6, None])
def test_a_straggler_is_left_behind_by_the_staleness_and_no_further(served, staleness):
    """MXNet's asynchronous server answers everybody at once, however late one is."""
    mode = "async" if staleness is None else "bounded"
    server = served(Terms(mode=mode, staleness=staleness or 0), workers=2)
    ahead, steps = 0, 12
    for version in range(steps):
        server.push(1, version)
        server.step()
        ahead += len(server.answers())
    assert ahead == min(steps, steps if staleness is None else staleness)

    server.push(2, 0)
    server.step()
    released = server.answers()
    assert released[-1] == (2, 0, 0)
    assert len(released) == 1 + (ahead < steps)


def test_without_staleness_workers_are_in_step():
    assert Terms(mode="bounded", staleness=0).sync
    assert not Terms(mode="bounded", staleness=1).sync


def test_a_start_while_somebody_waits_is_refused_lest_it_waits_for_ever(served):
    """The worker's push was forgotten, and so it was never answered: the run hung."""
    server = served(Terms(mode="bounded", staleness=1), workers=2)
    server.push(2, 0)
    server.push(2, 1)
    server.step()
    server.order(1, do="start", step=0, scale={"value": 1.0, "good": 0, "skipped": 0})

    with pytest.raises(CommError, match=r"workers \[2\] wait for an answer"):
        server.step()


def test_a_push_that_is_not_finite_is_left_out_and_counted_by_rank(served):
    server = served(Terms(mode="async"), workers=2, options=Options(skip=True))
    before = server.weights
    nan = {f"_{LOSS}": np.nan, f"_{COUNT}": 6, f"_{BAD}": 1}
    server.push(2, 0, share=0.0, **nan)
    server.step()
    assert np.array_equal(server.weights, before)

    server.push(1, 0, value=1.0, **{f"_{LOSS}": 3.0, f"_{COUNT}": 6})
    server.step()
    assert not np.array_equal(server.weights, before)
    parts = server.server.parts
    assert parts.tally.take()["skipped"] == [(2, 1)]
    assert parts.news.take(2).tolist() == [3.0, 0.0, 6.0]


def test_a_push_has_the_loss_scale_of_its_worker(served):
    found = []
    for scale in 0.0, 8.0:
        server = served(Terms(mode="async"), workers=2, options=Options(loss_scale=1.0))
        server.push(1, 0, value=scale or 1.0, scale=scale)
        server.step()
        found.append(server.weights)

    assert np.array_equal(*found)


def test_answers_leave_by_what_the_next_step_needs_first(served):
    """T2: in MXNet answers have no priority, so that weights arrive in any order."""
    server = served(Terms(mode="async"), workers=1, kind="threaded", in_flight=1)
    server.post.held = True
    for index in 2, 1, 3, 0:
        server.push(1, 0, index=index)
        server.server._receive()
        server.engine.wait(server.server._slots[index])  # its answer is pushed
        if index == 2:
            until(lambda: server.post.sent)
    server.post.held = False
    server.engine.wait_all()

    assert server.answers() == [(1, 0, 2), (1, 0, 0), (1, 0, 1), (1, 0, 3)]


def test_the_wish_of_any_server_stops_all_workers(served):
    server = served(Terms(), workers=1)
    server.push(1, 0)
    server.step()
    assert server.post.sent[0][3].view(server.state.flat.dtype)[STOP] == 0
    server.answers()

    server.order(5, do="wish")  # from another server
    server.step()
    server.push(1, 1)
    server.step()
    assert server.post.sent[0][3].view(server.state.flat.dtype)[STOP] > 0


def test_the_rate_goes_by_the_data_and_not_by_the_pushes(served):
    """T6: in MXNet each push counts: with n workers the rate falls n times too early."""
    asked = []
    schedule = SimpleNamespace(lr=lambda step: asked.append(step) or 0.1)
    server = served(Terms(mode="async"), schedule=schedule)
    for version in 0, 1:
        for worker in 1, 2, 3:
            server.push(worker, version)
    server.step()

    assert sorted(asked) == [0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize("name", ["sgd", "nag", "adam", "adamw"])
def test_every_optimizer_runs_without_rounds(served, name):
    """In MXNet one of them crashes an asynchronous server."""
    optimizer = create_optimizer(name)
    server = served(Terms(mode="async"), workers=1, optimizer=optimizer)
    a, b = server.spans[1]
    weight, state = (
        server.state.flat.weights[a:b].copy(),
        optimizer.make_state(b - a, np.float64),
    )
    for version, value in enumerate((0.5, -2.0, 0.25)):
        optimizer.update(
            weight,
            np.full(b - a, value),
            state,
            lr=SCHEDULE.lr(version),
            step=version,
            scale=1.0,
        )
        server.push(1, version, index=1, value=value, share=1.0)
        server.step()

    np.testing.assert_allclose(server.state.flat.weights[a:b], weight, rtol=1e-12)


def test_what_is_first_in_the_model_is_first_on_the_way_whatever_its_name():
    """T3: MXNet's Trainer sorts by name, so that conv10 goes before conv2."""
    shapes = {"conv2": (4, 3), "conv10": (5, 4), "a": (2, 5)}
    state = ModelState(parameters(shapes), SGD(), 64)

    assert state.names == list(shapes)
    assert state.flat.slices[0].parameters[0] == 0
    items = exchange_items(replace(RULES, order=(2, 1, 0), gathered=(0, 1, 2)))
    for verb in "exchange", "gather":
        found = {item.at: item.priority for item in items if item.verb == verb}
        assert found == {0: 0, 1: -1, 2: -2}


def test_a_slice_leaves_as_soon_as_it_is_final():
    """T1: in MXNet sends waited for the whole backward pass, and left in its order."""
    made = {i.at: {*i.reads, *i.writes} for i in exchange_items(RULES) if i.verb == "exchange"}

    for index in made:
        others = {("gradients", i) for i in made if i != index}
        assert ("gradients", index) in made[index] and not made[index] & others


def test_a_clipped_gradient_leaves_when_it_is_whole():
    items = exchange_items(replace(RULES, alone=True, clipped=True))
    assert items[0].verb == "sift"
    assert {("gradients", i) for i in RULES.order} <= set(items[0].writes)


def tabled(served, terms, rows=10, **more):
    """A server whose slice 1 is a table of so many rows, and how a worker asks for some."""
    model = Model(parameters({"w": (4,), "table": (rows, 3), "b": (5,)}), None)
    server = served(terms, model=model, whole=(1,), widths={1: 3}, **more)

    def ask(worker, *numbers):
        a, b = server.spans[1]
        letter = server.post.room(8 * len(numbers))
        letter.view(np.int64, len(numbers))[:] = numbers
        letter.seal(Header(Op.PULL, 1, 0, a, b - a, "d", flags=ROWS, number=len(numbers)))
        server.post.coming[PUSH].append((worker, letter, Handle()))

    return server, ask


def push_rows(server, worker, version, **rows):
    a, b = server.spans[1]
    letter = server.post.room(len(rows) * 32)
    letter.view(np.int64, len(rows))[:] = [int(name[1:]) for name in rows]
    letter.view(np.float64, 3 * len(rows), 8 * len(rows)).reshape(-1, 3)[:] = [
        [value] * 3 for value in rows.values()
    ]
    head = Header(Op.PUSH, 1, version, a, b - a, "d", ROWS, len(rows), share=0.5, scale=0.0)
    letter.seal(head)
    server.post.coming[PUSH].append((worker, letter, Handle()))


def test_rows_are_told_when_the_round_of_the_workers_own_push_is_over(served):
    server, ask = tabled(served, Terms(), workers=2)
    before = server.weights.copy()
    ask(1, 3)
    server.step()
    assert server.answers() == [(1, 0, 1)]  # nothing is under way yet

    push_rows(server, 1, 0, _3=2.0, _7=1.0)
    ask(1, 7, 3)
    ask(2, 3)
    server.step()
    assert server.answers() == [(2, 0, 1)]

    push_rows(server, 2, 0, _3=0.5)
    server.step()
    ((_, _, _, body),) = server.post.sent
    found = body.view(np.float64)[:6].reshape(2, 3)
    a = server.spans[1][0]
    old = before[a - RIDERS :][: 10 * 3].reshape(10, 3)
    rate = SCHEDULE.lr(0)
    np.testing.assert_allclose(found, [old[7] - rate, old[3] - 2.5 * rate], rtol=1e-12)


def test_rows_wait_for_the_norm_of_the_whole_step(served):
    server, ask = tabled(served, Terms(), workers=1, options=Options(clip_norm=1.0))
    push_rows(server, 1, 0, _3=2.0)
    ask(1, 3)
    server.step()
    assert server.answers() == []

    others = [i for i in range(len(server.spans)) if i != 1]
    for index in others:
        server.push(1, 0, index)
    server.step()
    assert (1, 0, 1) in server.answers()


def test_rows_are_held_back_by_the_staleness_and_let_go_by_a_death(served):
    deaths = []
    terms = Terms(staleness=1, **BOUNDED)
    server, ask = tabled(served, terms, losses=mourned(deaths))
    for version in 0, 1:
        push_rows(server, 1, version, _3=2.0)
        push_rows(server, 2, version, _4=2.0)
        ask(1, 3)
        ask(2, 4)
        server.step()
    assert sorted(server.answers()) == [(1, 0, 1), (2, 0, 1)]

    push_rows(server, 3, 0, _3=1.0)
    ask(3, 9)
    server.step()
    assert sorted(server.answers()) == [(1, 0, 1), (2, 0, 1), (3, 0, 1)]
    push_rows(server, 1, 2, _3=1.0)
    ask(1, 3)
    push_rows(server, 2, 2, _3=1.0)
    server.step()
    assert server.answers() == []
    deaths.append(3)
    server.step()
    assert server.answers() == [(1, 0, 1)]


@pytest.mark.parametrize("number", [-1, 10, 2**40])
def test_rows_that_a_server_does_not_keep_are_refused(served, number):
    server, ask = tabled(served, Terms(mode="async"))
    ask(1, 2, number)

    with pytest.raises((CommError, EngineError), match="needed numbers from 0 to"):
        server.step()
