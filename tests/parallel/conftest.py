"""Groups to train on."""

import pytest
from mpi4py import MPI

from hpctrain.comm.group import Group


@pytest.fixture
def world():
    """All ranks."""
    with Group(MPI.COMM_WORLD.Dup()) as group:
        yield group
