"""What a training step consists of, what a link can do, and what came of both: plain data.

Times are seconds, floating point; the simulator counts whole nanoseconds inside.
"""

import math
from collections import Counter
from dataclasses import dataclass
from itertools import chain
from operator import itemgetter
from typing import Literal

from hpctrain.errors import ConfigError

__all__ = ["Kind", "Link", "Piece", "Span", "Step", "Stretch", "Timeline"]

Kind = Literal["stretch", "update", "send"]
_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclass(frozen=True, slots=True)
class Stretch:
    """Computation of a step that runs in one go on the compute lane.

    Attributes
    ----------
    seconds : float
    reads : tuple of int
        Slices of the parameters that it reads: in a step, it waits for their updates in the
        step before.
    final : tuple of int
        Slices of the gradient that may be sent when it has ended.
    """

    seconds: float
    reads: tuple[int, ...] = ()
    final: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Piece:
    """A slice: the bytes that a rank sends for it, and the time of its update.

    Attributes
    ----------
    nbytes : int
        Bytes on the wire, in one direction, of the whole exchange; see `link.bytes_sent`.
    update_s : float
        Time on the compute lane.
    """

    nbytes: int
    update_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Step:
    """One training step of one rank.

    Attributes
    ----------
    stretches : tuple of Stretch
        In the order of the program.
    pieces : tuple of Piece
        The slices, by index.

    Raises
    ------
    ConfigError
        If a time or size is negative, or a slice is not final in exactly one stretch.
    """

    stretches: tuple[Stretch, ...]
    pieces: tuple[Piece, ...]

    def __post_init__(self) -> None:
        for value in chain(
            (s.seconds for s in self.stretches),
            (n for p in self.pieces for n in (p.nbytes, p.update_s)),
        ):
            _check(value, "step", "a time or size")
        slices = range(len(self.pieces))
        finals = Counter(s for stretch in self.stretches for s in stretch.final)
        for s in chain(slices, finals, *(stretch.reads for stretch in self.stretches)):
            if finals[s] != 1 or s not in slices:
                raise ConfigError(
                    f"step: slice {s} of {len(slices)} is final in {finals[s]} stretches, "
                    "needed exactly one"
                )


@dataclass(frozen=True, slots=True)
class Link:
    """What the exchange of slices costs.

    A slice that starts occupies the wire for ``overhead_s + nbytes / bytes_per_s`` when those
    before it have left the wire, and is there ``latency_s`` later.

    Attributes
    ----------
    latency_s : float
        From the last byte on the wire to the sum in memory, over all rounds of an exchange.
    bytes_per_s : float
        Bytes that a rank sends while it receives as many.
    in_flight : int
        How many slices may be under way; from 2 on the latency of one is hidden by the next.
    overhead_s : float
        Cost of a message that no other message hides.
    cpu_s_per_byte : float
        Time that a byte takes from the compute lane (copies, checksums, sums) where the
        communication has no core of its own; spread evenly over the time on the wire.

    Raises
    ------
    ConfigError
        If a value is out of range.
    """

    latency_s: float
    bytes_per_s: float
    in_flight: int = 1
    overhead_s: float = 0.0
    cpu_s_per_byte: float = 0.0

    def __post_init__(self) -> None:
        _check(self.latency_s, "link", "latency_s")
        _check(self.overhead_s, "link", "overhead_s")
        _check(self.cpu_s_per_byte, "link", "cpu_s_per_byte")
        if not self.bytes_per_s > 0:
            raise ConfigError(f"link: got {self.bytes_per_s} bytes_per_s, needed more than 0")
        if self.in_flight < 1:
            raise ConfigError(f"link: got in_flight {self.in_flight}, needed at least 1")


def _check(value: float, where: str, what: str) -> None:
    if not (math.isfinite(value) and value >= 0):
        raise ConfigError(f"{where}: got {value} for {what}, needed a finite number from 0")


@dataclass(frozen=True, slots=True)
class Span:
    """Something that occupied a lane for a while.

    Attributes
    ----------
    kind : {"stretch", "update", "send"}
        The first two on the compute lane, the last on the link.
    index : int
        Of the stretch, or of the slice.
    start_s, end_s : float
    """

    kind: Kind
    index: int
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Timeline:
    """A training step among many alike, as simulated.

    Times count from the moment at which the compute lane has done the last stretch of the step
    before.  What belongs to a slice is a tuple by its index.

    Attributes
    ----------
    order : tuple of int
        In which slices are sent.
    step_ns : int
        Nanoseconds from one step to the next.
    compute_s : float
        Stretches and updates of a step, undisturbed.
    exposed_s : float
        How long the compute lane stands still in a step.
    link_s : float
        How long the wire is busy in a step.
    ready_s, start_s, end_s : tuple of float
        When the gradient of a slice is final, when its exchange starts, and when it has ended.
    needed_s : tuple of float
        When the next step would read it if nothing held it up.
    waited_s : tuple of float
        For how long the compute lane stands still in a step for want of the slice.
    spans : tuple of Span
        What the lanes do in the step, the end of the exchange of the one before included.
    """

    order: tuple[int, ...]
    step_ns: int
    compute_s: float
    exposed_s: float
    link_s: float
    ready_s: tuple[float, ...]
    start_s: tuple[float, ...]
    end_s: tuple[float, ...]
    needed_s: tuple[float, ...]
    waited_s: tuple[float, ...]
    spans: tuple[Span, ...]

    @property
    def step_s(self) -> float:
        """Time from one step to the next, s."""
        return self.step_ns / 1e9

    @property
    def link_idle_s(self) -> float:
        """How long the wire is free in a step, s."""
        return max(0.0, self.step_s - self.link_s)

    def draw(self, width: int = 72) -> str:
        """Return the step as text, a row for each lane.

        Parameters
        ----------
        width : int
            Characters of a row, each an equal part of the step; what fills most of it is shown.

        Returns
        -------
        str
            Stretches are digits, updates ``u``, slices letters in the order of their index.
        """
        rows = {
            "compute": self._row(("stretch", "update"), width),
            "link": self._row(("send",), width),
        }
        lines = [f"{name:>8} |{row}|" for name, row in rows.items()]
        figures = (
            f"{self.step_s * 1e3:.3f} ms a step: compute {self.compute_s * 1e3:.3f}, "
            f"exposed {self.exposed_s * 1e3:.3f}, link {self.link_s * 1e3:.3f}"
        )
        return "\n".join([*lines, f"{'':>8}  {figures}"])

    def _row(self, kinds: tuple[str, ...], width: int) -> str:
        cell = max(self.step_s, 1e-9) / width
        busy = [0.0] * width
        most = [(0.0, ".")] * width
        for span in self.spans:
            if span.kind not in kinds:
                continue
            first, last = int(span.start_s / cell), int(span.end_s / cell)
            for place in range(max(0, first), min(width, last + 1)):
                part = min(span.end_s, (place + 1) * cell) - max(span.start_s, place * cell)
                busy[place] += part
                most[place] = max(most[place], (part, _sign(span)), key=itemgetter(0))
        pairs = zip(busy, most, strict=True)
        return "".join(sign if part >= cell / 2 else "." for part, (_, sign) in pairs)


def _sign(span: Span) -> str:
    if span.kind == "update":
        return "u"
    signs = "0123456789" if span.kind == "stretch" else _LETTERS
    return signs[span.index % len(signs)]
