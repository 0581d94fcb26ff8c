"""Pipeline schedules as data: what each rank does for which micro-batch, in which order.

A model is cut into *stages*. Stage ``s`` is on rank ``s % ranks``; with ``chunks`` stages on
each rank there are ``ranks * chunks`` of them. A batch is cut into *micro-batches*, and a stage
does for each of them

    F    forward: from the activation of the stage before,
    B    the input part of backward: the cotangent that the stage before waits for,
    W    the weight part of backward: the gradient of the stage's own parameters,
    BW   both parts at once.

Three stages and four micro-batches, where F, B and W take one column each
(``python -m hpctrain plan`` draws any other):

    gpipe: first all forwards; keeps all activations
    rank 0 |F0 F1 F2 F3 .  .  .  .  .  .  BW0-- BW1-- BW2-- BW3--
    rank 1 |.  F0 F1 F2 F3 .  .  .  BW0-- BW1-- BW2-- BW3-- .  .
    rank 2 |.  .  F0 F1 F2 F3 BW0-- BW1-- BW2-- BW3-- .  .  .  .

    1f1b: a backward as soon as there is one; as long, but keeps fewer
    rank 0 |F0 F1 F2 .  .  .  .  BW0-- F3 BW1-- .  BW2-- .  BW3--
    rank 1 |.  F0 F1 .  .  BW0-- F2 BW1-- F3 BW2-- .  BW3-- .  .
    rank 2 |.  .  F0 BW0-- F1 BW1-- F2 BW2-- F3 BW3-- .  .  .  .

    zero_bubble: nobody waits for W, so that it can fill gaps; keeps as many on each rank
    rank 0 |F0 F1 F2 .  .  B0 W0 F3 B1 W1 B2 W2 B3 W3
    rank 1 |.  F0 F1 .  B0 F2 B1 W0 F3 B2 W1 B3 W2 W3
    rank 2 |.  .  F0 B0 F1 B1 F2 B2 W0 F3 B3 W1 W2 W3

and on two ranks, two micro-batches in 7.5 columns instead of 9 under 1f1b:

    interleaved: a rank has several stages, here a and b, each half as long
    rank 0 |F0a F1a F0b F1b .   .   BW0b--- .   BW1b--- BW0a--- BW1a---
    rank 1 |.   F0a F1a F0b BW0b--- F1b BW1b--- BW0a--- BW1a--- .   .

A BW hands over its cotangent when all of it is done, as the papers have it. Training takes
schedules *apart*: each BW as a B, after which the cotangent leaves, and a W.

In every schedule a stage takes the micro-batches in one order, 0, 1, 2, ... in F, in B and in
W: the gradients are summed in the same order, so all schedules give the same bits.

References
----------
Huang et al., "GPipe: efficient training of giant neural networks using pipeline parallelism",
NeurIPS 2019, arXiv 1811.06965.
Narayanan et al., "PipeDream: generalized pipeline parallelism for DNN training", SOSP 2019
(one forward, one backward).
Narayanan et al., "Efficient large-scale language model training on GPU clusters using
Megatron-LM", SC 2021, arXiv 2104.04473 (interleaved).
Qi, Wan, Huang and Lin, "Zero bubble pipeline parallelism", ICLR 2024, arXiv 2401.10241
(ZB-H1).
"""

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from hpctrain.errors import ConfigError

__all__ = [
    "KINDS", "Action", "Kind", "PipelineSchedule", "apart", "groups_of", "schedule", "warm_up",
    "zero_bubble",
]  # fmt: skip

Kind = Literal["F", "B", "W", "BW"]
KINDS = ("gpipe", "1f1b", "interleaved", "zero_bubble")


class Action(NamedTuple):
    """What a rank does next: one kind of work of one stage for one micro-batch."""

    kind: Kind
    stage: int
    micro: int

    def __str__(self) -> str:
        return f"{self.kind} of stage {self.stage} for micro-batch {self.micro}"


PipelineSchedule = tuple[tuple[Action, ...], ...]  # by rank; each rank's actions in order


def schedule(kind: str, stages: int, micro_batches: int, chunks: int = 1) -> PipelineSchedule:
    """Return what each rank does, in order.

    Parameters
    ----------
    kind : {"gpipe", "1f1b", "interleaved", "zero_bubble"}
    stages : int
        Ranks of the pipeline, at least 1.
    micro_batches : int
        Parts of the batch, at least 1; any number, also fewer than ``stages``.
    chunks : int
        Stages on each rank; more than 1 for ``interleaved`` only.

    Returns
    -------
    tuple of tuple of Action, length ``stages``
        Stages are numbered through the whole model: those of rank r are r, r + stages, ...

    Raises
    ------
    ConfigError
        If there is no such schedule.

    Examples
    --------
    >>> for actions in schedule("1f1b", 2, 3):
    ...     print(*(f"{a.kind}{a.micro}" for a in actions))
    F0 F1 BW0 F2 BW1 BW2
    F0 BW0 F1 BW1 F2 BW2
    """
    _check(kind, stages, micro_batches, chunks)
    if kind == "zero_bubble":
        return zero_bubble(stages, micro_batches, range(stages))
    ranks = range(stages)
    return tuple(
        tuple(
            _in_turn(
                _forwards(rank, stages, micro_batches, chunks),
                _backwards(rank, stages, micro_batches, chunks),
                warm_up(kind, rank, stages, micro_batches, chunks),
            )
        )
        for rank in ranks
    )


def apart(schedule: PipelineSchedule) -> PipelineSchedule:
    """Return a schedule with each BW as B and W: cotangents need not wait for W.

    Examples
    --------
    >>> for actions in apart(schedule("1f1b", 2, 2)):
    ...     print(*(f"{a.kind}{a.micro}" for a in actions))
    F0 F1 B0 W0 B1 W1
    F0 B0 W0 F1 B1 W1
    """
    return tuple(tuple(_put_off(actions, 0)) for actions in schedule)


def zero_bubble(stages: int, micro_batches: int, delays: Sequence[int]) -> PipelineSchedule:
    """Return 1F1B with each backward pass in two parts, the second put off.

    Parameters
    ----------
    stages, micro_batches : int
    delays : sequence of int, length ``stages``
        How many more Bs a rank does before the W that belongs to a B. ZB-H1 is
        ``range(stages)``: then every rank keeps as many micro-batches as the first one does
        under 1F1B.

    Returns
    -------
    tuple of tuple of Action, length ``stages``
    """
    whole = schedule("1f1b", stages, micro_batches)
    return tuple(tuple(_put_off(*of_rank)) for of_rank in zip(whole, delays, strict=True))


def warm_up(kind: str, rank: int, stages: int, micro_batches: int, chunks: int = 1) -> int:
    """Return how many forwards ``rank`` does before F and BW take turns.

    Notes
    -----
    A first backward comes back to rank r after it has gone on through S - 1 - r ranks. With
    chunks, the first micro-batches go v - 1 times around all ranks before that, and each
    message has twice the time (Narayanan et al. 2021, section 2.2, and Megatron-LM).
    """
    if kind == "gpipe":
        return micro_batches
    first, behind = groups_of(micro_batches, stages)[0], stages - 1 - rank
    ahead = behind if chunks == 1 else 2 * behind + (chunks - 1) * first
    return min(ahead, chunks * micro_batches)


def groups_of(micro_batches: int, stages: int) -> list[int]:
    """Return how many micro-batches go through a chunk before the next chunk is begun.

    As many groups as have at least one micro-batch for each stage; the larger come first.

    Examples
    --------
    >>> groups_of(8, 4), groups_of(11, 4), groups_of(3, 4)
    ([4, 4], [6, 5], [3])
    """
    count = max(1, micro_batches // stages)
    return [-(-(micro_batches - i) // count) for i in range(count)]


def _check(kind: str, stages: int, micro_batches: int, chunks: int) -> None:
    if kind not in KINDS:
        raise ConfigError(f"schedule: got {kind!r}, needed one of {', '.join(KINDS)}")
    if min(stages, micro_batches, chunks) < 1:
        raise ConfigError(
            f"schedule: got {stages} stages, {micro_batches} micro-batches, {chunks} chunks, "
            "needed at least 1 of each"
        )
    if chunks > 1 and kind != "interleaved":
        raise ConfigError(
            f"schedule: got {chunks} chunks for {kind}, needed 1; take interleaved for more"
        )


def _forwards(rank: int, stages: int, micro_batches: int, chunks: int) -> list[Action]:
    """List the forwards of a rank: group by group, in each chunk by chunk."""
    found, start = [], 0
    for size in groups_of(micro_batches, stages):
        for chunk in range(chunks):
            stage = chunk * stages + rank
            found += [Action("F", stage, i) for i in range(start, start + size)]
        start += size
    return found


def _backwards(rank: int, stages: int, micro_batches: int, chunks: int) -> list[Action]:
    """List the backwards of a rank: as the forwards, the last chunk first."""
    mirror = {c * stages + rank: (chunks - 1 - c) * stages + rank for c in range(chunks)}
    forwards = _forwards(rank, stages, micro_batches, chunks)
    return [Action("BW", mirror[stage], micro) for _, stage, micro in forwards]


def _in_turn(
    forwards: Sequence[Action], backwards: Sequence[Action], first: int
) -> Iterator[Action]:
    """Yield ``first`` forwards, then one forward and one backward, then the backwards left."""
    yield from forwards[:first]
    paired = len(forwards) - first
    for pair in zip(forwards[first:], backwards[:paired], strict=True):
        yield from pair
    yield from backwards[paired:]


def _put_off(actions: Sequence[Action], delay: int) -> Iterator[Action]:
    """Yield B for BW, and each W once ``delay`` more Bs have been done, or at the end."""
    waiting: list[Action] = []
    for action in actions:
        kind, stage, micro = action
        if kind != "BW":
            yield action
            continue
        yield Action("B", stage, micro)
        waiting.append(Action("W", stage, micro))
        if len(waiting) > delay:
            yield waiting.pop(0)
    yield from waiting
