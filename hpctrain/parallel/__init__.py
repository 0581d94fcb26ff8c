"""Where engine, communication and models meet.

`flat` puts parameters, gradients and optimizer state into flat buffers and cuts these into
slices; `program` captures model, loss and gradient as one plan; `exchange` says what happens
to a slice of the gradient; `data_parallel` pushes one training step to the engine: segments
of the plan, the exchange of each slice as soon as it is final, its update as soon as it has
arrived. The next step is pushed at once and waits, slice by slice, for what it reads.

A model in stages on several ranks: `cutting` and `cut_graph` say where it is cut, `stages`
what then travels, `stage_parts` what each stage computes; `pipeline_schedule` says in which
order, `pipeline_messages` what is sent and received, `pipeline_order` proves that it ends, and
`pipeline_times` foretells how long it takes, drawn by `staircase`. All of that is data.

`kvstore` is the way of MXNet's programs instead: they push and pull arrays by key themselves,
and wait for each; an `updater` runs their optimizer.
"""
