"""What happens around the steps of a run: where it lives, what it says, how it survives.

A run owns a directory (``rundir``), found again by the same command until the run is finished.
Its state is saved as checkpoints (``checkpoint``), each a directory that appears whole under
its name or not at all; what is in it is listed with digests in a ``manifest``, its arrays are
one HDF5 file (``arrayfile``).  Signals, a stop file and a time limit only raise a flag
(``signals``); the ranks agree on it between two steps, save, and leave with code 75.

Numbers about the test set are exact (``metrics``): ranks add sums and counts, never means.
Rank 0 alone speaks (``console``), with a live bar on a terminal and plain lines elsewhere.

``module`` and ``bucketing`` (`Module.fit` on symbols) and ``gluon`` (`Trainer` on a block) hold
MXNet's ways to train, with their ``callback``; they have loop, store and checkpoint files of
their own.

The others take plain values and host arrays.  They know neither the configuration nor MPI:
where ranks must agree, one decides and its caller broadcasts.
"""
