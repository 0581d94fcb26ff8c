"""What the ranks of a team do together inside a plan, and its gradients.

A value of a model that a team shares is on each rank *whole*, the same on all; or *cut*, each
rank having a part (`hpctrain.ops.cut`); or a *term*, of which the sum over the ranks is meant.
Its cotangent is whole, cut alike, or, of a term, whole. The rows here lead from one to another,
and the gradient of each is another one:

| row | from | to | cotangent |
|---|---|---|---|
| ``team_sum`` | term | whole | nothing to do |
| ``team_spread`` | whole | whole, used with cut values | ``team_sum`` |
| ``team_gather`` | cut | whole | ``team_slice`` |
| ``team_gather``, ``terms`` | cut | whole, used with cut values | ``team_scatter`` |
| ``team_scatter`` | term | cut | ``team_gather`` |
| ``team_slice`` | whole | cut | ``team_gather`` |

All ranks must apply them in one order. So what sends is not pure: no pass merges, moves or
repeats it. Sums are made by one rank each, in the order of the ranks, and then sent: all have
the same bits.

References
----------
Shoeybi et al., "Megatron-LM", arXiv 1909.08053 (2019), for the pairs ``team_spread`` and
``team_sum``; Korthikanti et al., "Reducing activation recomputation in large transformer
models", MLSys 2023, for ``team_gather`` and ``team_scatter``.
"""

from collections.abc import Sequence
from typing import Any

from hpctrain.autograd import Primitive, Spec, apply, register
from hpctrain.ops.cut import Cut, Team
from hpctrain.ops.rules import need, same_spec

__all__ = ["team_gather", "team_scatter", "team_slice", "team_spread", "team_sum"]

SMALL_BYTES = 2**13  # of an array whose sum takes one round: everybody adds up everything
_FLAT = Cut(0)


def team_sum(x: Any, team: Team) -> Any:
    """Return the sum of the terms of all ranks."""
    return apply("team_sum", x, team=team)


def team_spread(x: Any, team: Team) -> Any:
    """Return ``x``, a whole value for use with cut ones: cotangents are terms."""
    return apply("team_spread", x, team=team)


def team_gather(x: Any, team: Team, cut: Cut, length: int, terms: bool = False) -> Any:
    """Return the whole of ``x``.

    Parameters
    ----------
    x : Tensor
        This rank's part.
    team : Team
    cut : Cut
    length : int
        Of the axis that is cut.
    terms : bool
        Whether the result is used with cut values, so that cotangents of it are terms.
    """
    return apply("team_gather", x, team=team, cut=cut, length=int(length), terms=bool(terms))


def team_scatter(x: Any, team: Team, cut: Cut) -> Any:
    """Return this rank's part of the sum of the terms of all ranks."""
    return apply("team_scatter", x, team=team, cut=cut)


def team_slice(x: Any, team: Team, cut: Cut) -> Any:
    """Return this rank's part of ``x``, a whole value."""
    return apply("team_slice", x, team=team, cut=cut)


def _contiguous(specs: Sequence[Spec], **_: Any) -> bool:
    return True


def _several(team: Team, outs: Any, ins: Any) -> bool:
    """Return whether there are others; a rank alone copies."""
    if team.size == 1:
        outs[0][...] = ins[0].reshape(outs[0].shape)
    return team.size > 1


def _named(what: str, whole: Any) -> str:
    """Name a round for whoever waits in it: what it is, and the shape of the whole value."""
    return f"{what} {whole.shape}"


# Sum


def _sum_scratch(specs: Sequence[Spec], *, team: Team) -> list[Spec]:
    (x,) = specs
    if team.size == 1:
        return []
    if x.nbytes <= SMALL_BYTES:
        return [x.with_shape((team.size, x.size))]
    return [x.with_shape((team.size, _FLAT.length(x.size, team)))]


def _sum(xp: Any, ins: Any, outs: Any, scratch: Any, *, team: Team) -> None:
    if not _several(team, outs, ins):
        return
    x, out, (terms,) = ins[0].reshape(-1), outs[0].reshape(-1), scratch
    name = _named("team_sum", ins[0])
    if x.nbytes <= SMALL_BYTES:
        team.swap([x] * team.size, terms, name)
        add_up(xp, terms, x, out, team.rank)
        return
    given, made = ([p[0] for p in _FLAT.parts(a[:, None], team)] for a in (x, out))
    given, made = ([p.reshape(-1) for p in parts] for parts in (given, made))
    team.swap(given, terms, name)
    add_up(xp, terms, given[team.rank], made[team.rank], team.rank)
    team.swap([made[team.rank]] * team.size, made, name)


def add_up(xp: Any, terms: Any, own: Any, out: Any, rank: int) -> None:
    """Write the sum of the terms in their order; that of this rank is ``own``."""
    every = [own if place == rank else term for place, term in enumerate(terms)]
    xp.add(every[0], every[1], out=out)
    for term in every[2:]:
        xp.add(out, term, out=out)


register(Primitive("team_sum", "normalize", same_spec, _sum, lambda i, o, g, team: [g[0]],
                   scratch=_sum_scratch, pure=False, any_strides=True,
                   dense=_contiguous))  # fmt: skip


# Spread


def _spread(xp: Any, ins: Any, outs: Any, scratch: Any, *, team: Team) -> None:
    outs[0][...] = ins[0]


register(Primitive("team_spread", "movement", same_spec, _spread,
                   lambda i, o, g, team: [team_sum(g[0], team)],
                   view=lambda x, team: x))  # fmt: skip


# Gather


def _gather_infer(
    specs: Sequence[Spec], *, team: Team, cut: Cut, length: int, terms: bool
) -> list[Spec]:
    (x,) = specs
    whole = x.with_shape((*x.shape[: cut.axis], length, *x.shape[cut.axis + 1 :]))
    need(cut.spec(whole, team) == x, "team_gather", specs, f"a part of {whole} cut at {cut}")
    return [whole]


def _in_place(spec: Spec, cut: Cut) -> bool:
    """Return whether the part of each rank is contiguous in the whole."""
    return all(n == 1 for n in spec.shape[: cut.axis]) and cut.blocks == 1


def _gather_scratch(specs: Sequence[Spec], *, team: Team, cut: Cut, **more: Any) -> list[Spec]:
    (whole,) = _gather_infer(specs, team=team, cut=cut, **more)
    alone = team.size == 1 or _in_place(whole, cut)
    return [] if alone else [whole.with_shape((whole.size,))]


def _gather(xp: Any, ins: Any, outs: Any, scratch: Any, *, team: Team, **attrs: Any) -> None:
    if not _several(team, outs, ins):
        return
    x, parts = ins[0], attrs["cut"].parts(outs[0], team)
    room = [part.reshape(-1) for part in parts] if not scratch else _laid(scratch[0], parts)
    parts[team.rank][...] = x.reshape(parts[team.rank].shape)
    team.swap([x.reshape(-1)] * team.size, room, _named("team_gather", outs[0]))
    for rank, (part, got) in enumerate(zip(parts, room, strict=True)):
        if scratch and rank != team.rank:
            part[...] = got.reshape(part.shape)


def _laid(flat: Any, parts: Sequence[Any]) -> list[Any]:
    """Cut a flat array into pieces of the sizes of ``parts``."""
    found, start = [], 0
    for part in parts:
        found.append(flat[start : start + part.size])
        start += part.size
    return found


def _gather_vjp(i: Any, o: Any, g: Any, *, team: Team, cut: Cut, **attrs: Any) -> list[Any]:
    back = team_scatter if attrs["terms"] else team_slice
    return [back(g[0], team, cut)]


register(Primitive("team_gather", "normalize", _gather_infer, _gather, _gather_vjp,
                   scratch=_gather_scratch, pure=False, any_strides=True,
                   dense=_contiguous))  # fmt: skip


# Scatter


def _part_infer(specs: Sequence[Spec], *, team: Team, cut: Cut) -> list[Spec]:
    (x,) = specs
    fits = cut.axis < x.ndim and cut.units(x.shape[cut.axis]) >= team.size
    need(fits, "team", specs, f"{cut} with at least a unit for each of {team}")
    return [cut.spec(x, team)]


def _scatter_scratch(specs: Sequence[Spec], *, team: Team, cut: Cut) -> list[Spec]:
    (x,) = specs
    if team.size == 1:
        return []
    terms = x.with_shape((team.size, cut.spec(x, team).size))
    return [terms] if _in_place(x, cut) else [terms, x.with_shape((x.size,))]


def _scatter(xp: Any, ins: Any, outs: Any, scratch: Any, *, team: Team, cut: Cut) -> None:
    if not _several(team, outs, ins):
        return
    parts, terms = cut.parts(ins[0], team), scratch[0]
    packed = [p.reshape(-1) for p in parts] if len(scratch) == 1 else _laid(scratch[1], parts)
    if len(scratch) > 1:
        for part, to in zip(parts, packed, strict=True):
            to.reshape(part.shape)[...] = part
    team.swap(packed, terms, _named("team_scatter", ins[0]))
    add_up(xp, terms, packed[team.rank], outs[0].reshape(-1), team.rank)


def _cut_vjp(i: Any, o: Any, g: Any, *, team: Team, cut: Cut) -> list[Any]:
    return [team_gather(g[0], team, cut, i[0].shape[cut.axis])]


register(Primitive("team_scatter", "normalize", _part_infer, _scatter, _cut_vjp,
                   scratch=_scatter_scratch, pure=False, any_strides=True,
                   dense=_contiguous))  # fmt: skip


# Slice


def _slice(xp: Any, ins: Any, outs: Any, scratch: Any, *, team: Team, cut: Cut) -> None:
    part = cut.parts(ins[0], team)[team.rank]
    outs[0].reshape(part.shape)[...] = part


register(Primitive("team_slice", "movement", _part_infer, _slice, _cut_vjp,
                   dense=_contiguous))  # fmt: skip
