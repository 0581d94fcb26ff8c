"""Letters that hold words: what a worker wants of servers besides parameters, and answers."""

import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from hpctrain.comm.letter import Header, Letter, Op
from hpctrain.comm.post import CONTROL, Post

__all__ = ["hear", "read", "say"]

PAUSE_S = 1e-4  # between two looks


def say(post: Post, dest: int, words: Any) -> None:
    """Send words, which JSON can hold, and wait until they are on their way."""
    data = np.frombuffer(json.dumps(words).encode(), np.uint8)
    letter = post.room(data.size)
    letter.body[:] = data
    letter.seal(Header(Op.CONTROL, number=data.size, dtype="B"), post.debug)
    post.send(letter, dest, CONTROL).wait()
    letter.close()


def read(letter: Letter, source: int) -> Any:
    """Return the words of a letter, and give its memory back."""
    header = letter.open(f"words from rank {source}")
    words = json.loads(letter.body[: header.number].tobytes())
    letter.close()
    return words


def hear(post: Post, look: Callable[[], object] = lambda: None) -> tuple[int, Any]:
    """Wait for words; return who says them, and what.

    ``look`` is called now and then meanwhile, and may raise.
    """
    while True:
        look()
        for source, letter, handle in post.arrivals(CONTROL, most=1):
            handle.wait()
            return source, read(letter, source)
        time.sleep(PAUSE_S)
