"""Arguments of the small subcommands, by tyro from the functions' own signatures."""

import os
from collections.abc import Callable, Sequence
from typing import Any

import tyro

from hpctrain.comm import launch

__all__ = ["call"]


def call(commands: dict[str, Callable[..., Any]], argv: Sequence[str], name: str) -> Any:
    """Call the one of ``commands`` that ``argv`` names, with the arguments in it.

    Parameters
    ----------
    commands : dict of str to callable
        Keyword and positional parameters become flags and words; docstrings become help.
    argv : sequence of str
    name : str
        What stands before ``argv``, for the help.

    Returns
    -------
    object
        What the function returned.

    Notes
    -----
    Wrong arguments end the process with code 2 before MPI starts; rank 0 alone says why.
    """
    started = launch.detect(os.environ)
    speaks = started is None or started.rank == 0
    return tyro.extras.subcommand_cli_from_dict(
        commands, prog=f"python -m hpctrain {name}", args=list(argv), console_outputs=speaks
    )
