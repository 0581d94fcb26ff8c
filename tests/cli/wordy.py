"""A model with a table of words that writes down how many bytes of letters its rank sends."""

import atexit
import os
from pathlib import Path

from hpctrain import nn
from hpctrain.comm import launch
from hpctrain.comm.letter import HEADER_BYTES
from hpctrain.comm.post import Post

FOLDER, STARTED = Path(os.environ["TEST_FOLDER"]), launch.detect(os.environ)
SENT = []


def build(classes, words=5000, width=8):
    """Return a model of a few words to one of the classes."""
    net = nn.HybridSequential()
    net.add(nn.Embedding(words, width), nn.Flatten(), nn.Dense(classes, in_units=3 * width))
    return net


def weighed(post, letter, dest, tag, send=Post.send):
    SENT.append(letter.blocks * HEADER_BYTES)
    return send(post, letter, dest, tag)


@atexit.register
def write():
    (FOLDER / f"sent-{STARTED.rank if STARTED else 0}").write_text(str(sum(SENT)))


Post.send = weighed
