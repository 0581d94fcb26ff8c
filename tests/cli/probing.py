"""Models whose forward pass does something at a certain call, as the environment says.

``TEST_FAULT="RANK CALL DEED"``: at that call on that rank ``raise``; ``die``; or ``mark`` that
it has come so far, and be slow from then on; several of these with commas between. Call
1 and 2 are those that find the shapes.
``TEST_AWAIT`` names what must be there before: checkpoints are written while training goes on.
"""

import atexit
import itertools
import os
import signal
import time
from pathlib import Path

from hpctrain import nn
from hpctrain.autograd import Primitive, apply, register
from hpctrain.comm import launch

FOLDER = Path(os.environ["TEST_FOLDER"])
STARTED = launch.detect(os.environ)
RANK = STARTED.rank if STARTED else 0
CALLS = itertools.count(1)


def kernel(xp, ins, outs, scratch):
    outs[0][...] = ins[0]
    call = next(CALLS)
    if call == 1:
        (FOLDER / f"pid-{RANK}").write_text(str(os.getpid()))
    for fault in os.environ.get("TEST_FAULT", "0 0 none").split(","):
        rank, at, deed = fault.split()
        if int(rank) == RANK and call >= int(at) > 0:
            while not (FOLDER / os.environ.get("TEST_AWAIT", ".")).exists():
                time.sleep(0.01)
            DEEDS[deed](call == int(at))


def raise_error(first):
    raise RuntimeError("no such luck")


def die(first):
    os.kill(os.getpid(), signal.SIGKILL)


def mark(first):
    if first:
        (FOLDER / "reached").touch()
    time.sleep(0.05)


DEEDS = {"raise": raise_error, "die": die, "mark": mark}
register(
    Primitive(
        "probe",
        "elementwise",
        lambda specs: specs,
        kernel,
        lambda inputs, outputs, given: given,
        pure=False,
    )
)


@atexit.register
def count():
    (FOLDER / f"calls-{RANK}").write_text(str(next(CALLS) - 1))


class Probed(nn.HybridBlock):
    def __init__(self, dropout=0.0, norm=False):
        super().__init__()
        with self.name_scope():
            self.hidden = nn.Dense(8, "relu", in_units=64)
            self.norm = nn.BatchNorm(axis=-1, in_channels=8) if norm else None
            self.dropout = nn.Dropout(dropout)
            self.output = nn.Dense(4, in_units=8)

    def forward(self, x, *args):
        x = self.hidden(apply("probe", x))
        x = self.norm(x) if self.norm else x
        return self.output(self.dropout(x))


def build(dropout=0.0, norm=False):
    return Probed(dropout, norm)
