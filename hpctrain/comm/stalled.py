"""The report of a stall, made of what all ranks have said; pure."""

from collections.abc import Mapping, Sequence

from hpctrain.comm.progress import CONTROL, State, Wait
from hpctrain.comm.wording import ranks

__all__ = ["report", "stalled"]

SHOWN = 8  # ranks that are described one by one

States = Mapping[int, State | None]


def stalled(states: States, limit_s: float) -> dict[str, Wait]:
    """Return by sequence the first exchange that some rank has waited for too long.

    Parameters
    ----------
    states : mapping of int to State or None
        By rank; None if a rank has not answered.
    limit_s : float
    """
    found: dict[str, Wait] = {}
    for state in states.values():
        for wait in state.late(limit_s) if state else ():
            if wait.sequence not in found or wait.number < found[wait.sequence].number:
                found[wait.sequence] = wait
    return found


def report(states: States, hosts: Sequence[str], limit_s: float) -> str:
    """Say what all ranks wait for, who has not started it, and what these do instead.

    Parameters
    ----------
    states : mapping of int to State or None
        By rank; None if a rank has not answered.
    hosts : sequence of str
        By rank.
    limit_s : float
        What counts as a stall.

    Returns
    -------
    str
        Some lines, the last one with its end; empty if nobody has waited that long.
    """
    subjects = stalled(states, limit_s)
    silent = [rank for rank, state in states.items() if state is None]
    lines: list[str] = []
    missing: dict[int, State] = {}
    for subject in subjects.values():
        behind, busy = _behind(states, subject)
        lines += _waiting(states, subject)
        groups = {
            "not started on": list(behind),
            "started, but not carried on, by": list(busy),
            "unknown of": silent,
        }
        found = [f"  {what} {ranks(who)}" for what, who in groups.items() if who]
        lines += found or ["  started on all ranks: look at the network between them"]
        missing |= behind | busy
    if not subjects:
        return ""
    for rank in sorted(missing)[:SHOWN]:
        lines += [f"  rank {rank} @ {hosts[rank]}:", *_instead(missing[rank])]
    if len(missing) > SHOWN:
        lines.append(f"  and {len(missing) - SHOWN} more")
    lines += [
        f"  rank {rank} @ {hosts[rank]}: no answer; its process is stopped, its host is out of "
        "reach, or it is in code that does not let go of the interpreter"
        for rank in silent[:SHOWN]
    ]
    return "".join(f"{line}\n" for line in lines)


def _behind(states: States, subject: Wait) -> tuple[dict[int, State], dict[int, State]]:
    """Return the ranks that have not started an exchange, and those that have left it since."""
    behind, busy, sequence = {}, {}, subject.sequence
    for rank, state in states.items():
        if state is None or sequence not in state.started:
            continue
        if state.started[sequence] < subject.number:
            behind[rank] = state
        elif state.busy.get(sequence) == subject.number:
            busy[rank] = state
    return behind, busy


def _waiting(states: States, subject: Wait) -> list[str]:
    """Return the lines about those who wait for an exchange, and for others after it."""
    holders: dict[tuple[int, str], list[tuple[int, float]]] = {}
    for rank, state in states.items():
        for wait in state.waits if state else ():
            if wait.sequence == subject.sequence:
                holders.setdefault((wait.number, wait.name), []).append((rank, wait.seconds))
    longest = max(seconds for _, seconds in holders[subject.number, subject.name])
    lines = [f"stalled for {longest:.0f} s: {_kind(subject)}{subject.name}"]
    for (number, name), rows in sorted(holders.items()):
        same = (number, name) == (subject.number, subject.name)
        what = "it" if same else f"{_kind(subject)}{name}"
        numbers = [rank for rank, _ in rows]
        least, most = (f"{f(s for _, s in rows):.1f}" for f in (min, max))
        since = f"{most} s" if least == most else f"{least} to {most} s"
        lines.append(f"  waiting for {what}: {ranks(numbers)} ({since})")
    return lines


def _kind(wait: Wait) -> str:
    return "collective of the control group, " if wait.sequence == CONTROL else ""


def _instead(state: State) -> list[str]:
    """Return what a rank does that has not started an exchange."""
    waits = [f"waiting for {_kind(w)}{w.name} for {w.seconds:.1f} s" for w in state.waits]
    return [f"    {line}" for line in (*waits, *state.doing)]
