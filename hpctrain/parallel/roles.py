"""Who of a group serves, and who works: each kind with a group of its own."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from hpctrain.comm.group import Group
from hpctrain.comm.post import Post
from hpctrain.parallel.terms import Terms

__all__ = ["Roles", "roles"]


@dataclass(frozen=True, slots=True)
class Roles:
    """The place of a rank.

    Attributes
    ----------
    serves : bool
    own : Group
        The ranks of the same kind.
    post : Post
        Over all ranks.
    """

    serves: bool
    own: Group
    post: Post


@contextmanager
def roles(group: Group, terms: Terms) -> Iterator[Roles]:
    """Let the first ranks of ``group`` serve, as many as ``terms`` say; collective."""
    serves = group.rank < terms.servers
    own, post = group.split(int(serves), group.rank), Post(group.dup(), terms.debug)
    yield Roles(serves, own, post)
    post.free()
    own.free()
