"""What a run is told: typed settings, where they come from, how they are written down.

The settings are sections of plain values (``schema``), one frozen struct each.  They are
collected from four places, later ones winning: the defaults, TOML files, environment variables
such as ``HPCTRAIN__OPTIM__LR`` and flags such as ``--optim.lr 0.1`` (``load``).  Whatever is
wrong ends as one ``ConfigError`` that names the place, what was there and what was needed.
What does not go together is a table (``conflicts``), looked through before any work.

``to_toml`` writes a configuration with every value and its meaning, so that a run directory
explains itself; read back, it gives the same configuration.  ``digest`` tells whether two
configurations ask for the same run: it covers what decides the numbers, and leaves out where,
how fast and how talkatively they are computed.

Configuration stops here: the trainer, the engine and the models take plain arguments and never
see these types.  Nothing in this package imports NumPy or MPI, so ``--help`` and
``config show`` work on a login node.

The flags are parsed here and not by a library for command lines: each value must remember the
place it came from and pass the same checks whether a file, a variable or a flag gave it.
"""

from hpctrain.config.conflicts import check_ranks
from hpctrain.config.digest import NOT_COUNTED, digest
from hpctrain.config.load import Provenance, load
from hpctrain.config.render import help_text, to_toml
from hpctrain.config.schema import Config
from hpctrain.config.sources import split

__all__ = [
    "NOT_COUNTED",
    "Config",
    "Provenance",
    "check_ranks",
    "digest",
    "help_text",
    "load",
    "split",
    "to_toml",
]
