"""Where engine, communication and models meet.

`flat` puts parameters, gradients and optimizer state into flat buffers and cuts these into
slices; `program` captures model, loss and gradient as one plan. A step is data: `recipe` lists
what is done with which reads and writes, `actions` does it, `data_parallel` pushes it to the
engine: segments of the plan, the exchange of each slice when it is final, its update when it
has arrived. The next step is pushed at once and waits, slice by slice, for what it reads.

`ways` chooses a path for the gradients and puts their buffers on it, `exchange` says what
happens to a slice (`rows`: if only rows of it differ from zero), `forecast` orders the slices
by the times measured so far. `together` is what layers share with other ranks while they run.

A model in stages on several ranks: `cutting` and `cut_graph` say where it is cut, `stages`
what then travels, `stage_parts` what each stage computes; `pipeline_schedule` says in which
order, `pipeline_messages` what is sent and received, `pipeline_order` proves that it ends, and
`pipeline_times` foretells how long it takes, drawn by `staircase`. All of that is data.

With servers, `traded` and `served_parallel` are the worker's side of a step, `serve` and what
it uses (`rounds`, `served`, `placement`) the server's.

`kvstore` is the way of MXNet's programs instead: they push and pull arrays by key themselves,
and wait for each; an `updater` runs their optimizer.
"""
