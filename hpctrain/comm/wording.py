"""How messages name ranks and what each of them has."""

from collections.abc import Sequence


def ranks(numbers: Sequence[int]) -> str:
    """Name ranks in a sentence: ``rank 3``, ``ranks 0, 2``, and runs as ``ranks 0-6, 8``.

    Examples
    --------
    >>> ranks([0, 1, 2, 5])
    'ranks 0-2, 5'
    """
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    parts = [
        f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs
    ]
    return ("ranks " if len(numbers) != 1 else "rank ") + ", ".join(parts)


def spread(values: Sequence[str]) -> str:
    """Say which ranks have which of ``values``, given in the order of the ranks.

    Examples
    --------
    >>> spread(["0.1", "0.2", "0.1"])
    '0.1 on ranks 0, 2 but 0.2 on rank 1'
    """
    holders: dict[str, list[int]] = {}
    for rank, value in enumerate(values):
        holders.setdefault(value, []).append(rank)
    parts = [f"{value} on {ranks(numbers)}" for value, numbers in holders.items()]
    return " but ".join([parts[0], ", ".join(parts[1:])] if len(parts) > 1 else parts)
