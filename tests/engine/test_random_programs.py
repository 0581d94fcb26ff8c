"""Ten thousand random tasks: the threads must not show."""

import random
from functools import partial

import pytest

from hpctrain.engine import LaneSpec, create
from hpctrain.errors import EngineError

pytestmark = pytest.mark.serial
VARIABLES, TASKS = 24, 10_000
LANES = {
    "compute": 3,
    "comm": LaneSpec(ordered=True, in_flight=3, pause_s=1e-5),
    "io": LaneSpec(in_flight=2),
    "copy": 1,
}
MODULUS = 1_000_003


def program(seed, failing):
    """Return tasks (reads, writes, lane, priority, fails) and waits (variable or None)."""
    rng = random.Random(seed)
    steps = []
    for _ in range(TASKS):
        chance = rng.random()
        if chance < 0.01:
            steps.append(rng.randrange(VARIABLES))
        elif chance < 0.012:
            steps.append(None)
        else:
            picked = rng.sample(range(VARIABLES), rng.randrange(1, 6))
            cut = rng.randrange(len(picked) + 1)
            lane, priority = rng.choice(list(LANES)), rng.randrange(-3, 4)
            fails = rng.random() < failing
            steps.append((picked[:cut], picked[cut:], lane, priority, fails))
    return steps


def work(data, key, reads, writes, fails):
    """Change what is written by what is read; a failing task does half of it."""
    total = sum(data[i] * (i + 1) for i in reads)
    for i in writes:
        data[i] = (data[i] * 31 + total + key) % MODULUS
        if fails:
            break
    if fails:
        raise ValueError(f"task {key}")


class Later:
    """Does its work at the third look."""

    def __init__(self, fn):
        self.fn, self.looks = fn, 0

    def test(self):
        """Return whether it is done, and do it if so."""
        self.looks += 1
        if self.looks == 3:
            self.fn()
        return self.looks == 3


def carry_out(steps, kind):
    """Return the data, the versions and what each wait raised."""
    data, raised = list(range(VARIABLES)), []
    engine = create(kind, lanes=LANES, run_ahead=50)
    variables = [engine.variable(str(i)) for i in range(VARIABLES)]

    def attempt(wait):
        try:
            wait()
        except EngineError as error:
            raised.append(str(error))
        else:
            raised.append(None)

    for key, step in enumerate(steps):
        if step is None:
            attempt(engine.wait_all)
        elif isinstance(step, int):
            attempt(partial(engine.wait, variables[step]))
            raised.append(data[step])
        else:
            reads, writes, lane, priority, fails = step
            uses = [[variables[i] for i in picked] for picked in (reads, writes)]
            fn = partial(work, data, key, reads, writes, fails)
            deferred = lane in ("comm", "io") and key % 3 > 0
            how = partial(Later, fn) if deferred else fn
            engine.push(how, *uses, lane, priority, f"task {key}", deferred=deferred)
    attempt(engine.close)
    return data, [variable.version for variable in variables], raised


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_random_tasks_give_what_a_plain_loop_gives(seed):
    steps = program(seed, failing=0.0)
    expected, versions = list(range(VARIABLES)), [0] * VARIABLES
    for key, step in enumerate(steps):
        if isinstance(step, tuple):
            work(expected, key, step[0], step[1], fails=False)
            for i in step[1]:
                versions[i] += 1

    for kind in ("serial", "threaded"):
        data, counted, _ = carry_out(steps, kind)
        assert data == expected
        assert counted == versions


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_random_failures_are_the_same_on_both_engines(seed):
    steps = program(seed, failing=0.003)

    serial, threaded = carry_out(steps, "serial"), carry_out(steps, "threaded")

    assert threaded == serial
    assert sum(isinstance(entry, str) for entry in serial[2]) >= 10
