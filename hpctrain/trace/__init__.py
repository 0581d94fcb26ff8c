"""What happened when, on every rank: spans and counters, and a Chrome trace of them.

A *span* is a piece of work on a lane from one moment to another; a *counter* is a number at a
moment.  Times are ``time.perf_counter_ns`` of the rank.  Each rank has a ``Recorder``; at the
end it sends ``dump()`` to rank 0, which reads it with ``load`` and writes one file for all:

    recorder = Recorder()
    with recorder.measure("main", "epoch"):
        ...
    write_chrome_trace("run.json.gz", {0: recorder.events()}, {0: 0}, {0: "node7"})

The clocks of different hosts have nothing in common.  Rank 0 pings the others, and
``offset_from_pings`` tells from the fastest ping how far a clock is from its own.

What is *going on* is another matter: threads write it on the board ``Activity``, and it is
read when the run stalls.

The file opens in Perfetto (ui.perfetto.dev) and in chrome://tracing: one process per rank, one
track per lane.  How many messages are sent for all that is not decided here: this package
knows no MPI.
"""

from hpctrain.trace.activity import Activity, Doing
from hpctrain.trace.chrome import chrome_trace, write_chrome_trace
from hpctrain.trace.clock import offset_from_pings
from hpctrain.trace.recorder import Counter, Event, Recorder, Span, load

__all__ = [
    "Activity",
    "Counter",
    "Doing",
    "Event",
    "Recorder",
    "Span",
    "chrome_trace",
    "load",
    "offset_from_pings",
    "write_chrome_trace",
]
