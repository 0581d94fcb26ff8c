"""One asynchronous engine for computation, communication and input/output.

A *task* is a function without arguments, with the variables that it reads and those that it
writes.  A *variable* stands for anything that tasks share (an array, a slice of a buffer, a
file); the engine never looks at the thing itself.  Each variable keeps one first-in,
first-out queue of uses: reads with no write before them run together, a write waits for all
before it and bumps the version.  That rule alone makes every run equal to the run in push
order, while tasks without a common variable overlap as the workers allow.

A random number generator is a variable as well, and drawing from it *writes* it: name it in
``writes``, and the stream of numbers is the same on every run, however the tasks overlap.

    with ThreadedEngine() as engine:
        weight, gradient = engine.variable("weight"), engine.variable("gradient")
        engine.push(backward, reads=[weight], writes=[gradient], name="backward")
        engine.push(send, writes=[gradient], lane="comm", priority=3, name="allreduce")
        engine.push(update, reads=[gradient], writes=[weight], name="update")
        engine.wait(weight)

Workers belong to lanes (``compute``, ``comm``, ``io``, ``copy``); each lane runs its ready
tasks by priority, then in push order; an *ordered* lane strictly in push order.  A *deferred*
task only starts something: its worker looks after it until it is done, and starts others
meanwhile.  A lane that is too far ahead makes ``push`` wait.  A
task's exception travels through the variables to whoever waits, once.  ``SerialEngine``
behind the same interface runs everything at the push: the oracle, and the engine to debug
with.

One lock guards the whole of ``ThreadedEngine``: simple to trust, and cheap enough.  Pushing and
running an empty task takes 4-6 µs if it was prepared with ``operation``, about 10 µs if not; a
push with a wait for it takes 40 µs (Python 3.11, one thread per lane, 2-core virtual Xeon).
"""

from hpctrain.engine.create import create
from hpctrain.engine.interface import DEFAULT_LANES, Engine, Statistics
from hpctrain.engine.lanes import LaneSpec, LaneStatistics
from hpctrain.engine.serial import SerialEngine
from hpctrain.engine.task import Operation, Pending
from hpctrain.engine.threaded import ThreadedEngine
from hpctrain.engine.variable import Variable

__all__ = [
    "DEFAULT_LANES",
    "Engine",
    "LaneSpec",
    "LaneStatistics",
    "Operation",
    "Pending",
    "SerialEngine",
    "Statistics",
    "ThreadedEngine",
    "Variable",
    "create",
]
