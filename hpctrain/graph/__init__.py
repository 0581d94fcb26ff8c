"""Graphs: capture a function, improve it, plan its memory, run it.

`capture` runs model code on names instead of arrays and yields a `Graph` (`ir`), immutable
data. `passes` are pure functions from graph to graph with a verifier between them. `plan`
decides which value lives where, with the memory planner of `memory`, and yields a `Plan`.
`execute` binds a plan to arrays and runs it, whole or in the pieces that `segments` cuts.
`cached` puts all of it behind a call, for hybridized blocks.

A compiled run gives the same bits as eager execution: it calls the same kernels, in an order
that the dependencies allow.
"""
