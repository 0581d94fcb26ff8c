"""Messages between ranks: the only door to MPI.

A *rank* is one process of the run, a *group* is an ordered set of ranks that exchange
messages among themselves and with nobody else.  This package knows arrays and short facts;
it knows no tensors, no models and no engine.

Read it in this order.  ``launch`` looks at the environment only: which launcher started us,
and did MPI see all the tasks that it started.  ``world`` starts MPI and names this rank, its
host and its neighbours on the host.  ``guard`` keeps the promise that no rank dies, or leaves,
alone: an error on one rank ends the run on all of them within seconds, printed once; ``stall``
says who keeps the others waiting, and with what, and ends a run that does not move.  ``group``
holds the collectives and the messages between pairs; beneath it, in ``buffers``, an array
becomes something that MPI can send.  ``mesh`` arranges the ranks as data × pipeline × tensor.
``agree`` lets the ranks compare what they believe before they start, and ``clock`` measures how
far their clocks are apart.

Slices of the gradient go by a *transport*: one interface in ``transport``, with MPI's own
collectives behind it; ``direct`` sends between pairs, ``node`` sums in memory that the ranks of
a host share (``window``) and then over hosts, and ``paths`` chooses.  A transfer of several
rounds is a generator (``transfer``), ``wire`` and ``coded`` say what stands in its messages.
``compress`` names the codecs that shorten them, ``rows`` sums tables of which only rows differ
from zero.  ``schedule`` finds the order in which slices should go: it simulates steps
(``simulate``, ``timeline``) from measured times and from what ``link`` finds out about the
connection; ``probe`` tries whether a core is free for a thread that looks for messages.

Three rules hold everywhere.  A message is a raw buffer or JSON text, never a pickle.  Every
rank of a group makes the same calls in the same order; ``Group(debug=True)`` checks it.
A rank never decides alone what all must do: outcomes go through one small exchange first.

Importing this package, or ``launch``, starts no MPI; the other modules call ``MPI_Init`` when
they are imported.
"""
