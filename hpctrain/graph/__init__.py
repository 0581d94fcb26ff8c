"""Graphs: capture a function, improve it, plan its memory, run it.

`capture` runs model code on names instead of arrays and yields a `Graph` (`ir`), immutable
data. `passes` are pure functions from graph to graph with a verifier between them. `plan`
decides which value lives where, with the memory planner of `memory`, and yields a `Plan`.
`execute` binds a plan to arrays and runs it, whole or in the pieces that `segments` cuts.
`cached` puts all of it behind a call, for hybridized blocks.

A compiled run gives the same bits as eager execution: it calls the same kernels, in an order
that the dependencies allow. The pass ``fuse``, which has to be asked for, is the exception: it
makes one loop of neighbouring element-wise operations and sums (`groups` says which, `work`
what the loop computes), and results are then the same within rounding. Loops are LLVM text
(`codegen`, `instructions`, `elementary`) that `native` compiles; without a compiler the
members' own kernels run over cache-sized `tiles`, and on a GPU `cuda` writes a kernel.
"""
