"""The command line: subcommands, and how a run is built from a configuration.

`main` finds the subcommand and loads its module only then, so that help, ``config`` and
``data inspect`` start neither MPI nor a GPU and work on a login node. `build` makes the parts
of a run from a `hpctrain.config.Config`: it is the only place that knows both.
"""
