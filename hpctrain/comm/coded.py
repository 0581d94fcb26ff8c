"""Slices whose bodies are compressed on the way, with error feedback in both directions."""

from collections.abc import Sequence

import numpy as np

from hpctrain.comm.compress import Codec
from hpctrain.comm.transfer import Flat
from hpctrain.comm.wire import Packet, Work
from hpctrain.errors import CheckpointError

_UP, _DOWN = "up", "down"


class Coded:
    """Bodies in the bytes of a codec.

    What a codec with error feedback has not sent is kept for each key: *up*, the whole slice of
    this rank, and *down*, the part whose sum it makes.  All ranks, this one included, take
    what they add and what they end with from the same encoded bytes.

    Parameters
    ----------
    codec : Codec
    ranks : int
        How many sum.

    Attributes
    ----------
    residuals : dict of str to ndarray, float32
        By ``up/KEY`` and ``down/KEY``; made when a key is first used.
    """

    lossy = True

    def __init__(self, codec: Codec, ranks: int) -> None:
        self._codec = codec
        self._sums = codec.of_sums(ranks)
        self.residuals: dict[str, Flat] = {}

    @property
    def owes(self) -> bool:
        """Whether the codec has residuals."""
        return self._codec.residual

    def nbytes(self, count: int, itemsize: int) -> int:
        """Return how many bytes a body of ``count`` elements takes."""
        return self._codec.nbytes(count)

    def own(self, work: Work, span: slice) -> Packet:
        """Return the message that this rank would send itself."""
        return self.pack(work, span)

    def pack(self, work: Work, span: slice) -> Packet:
        """Return a copy of the head, and the encoded body."""
        packet = self.room(work, span)
        packet.head[:] = work.array[: work.exact]
        residual = self._residual(_UP, work.key, work.array.size)
        self._encode(self._codec, work.array[span], packet.body, residual, span)
        return packet

    def room(self, work: Work, span: slice) -> Packet:
        """Return scratch memory for head and body."""
        head_bytes = work.exact * work.array.itemsize
        body_bytes = self._codec.nbytes(span.stop - span.start)
        data = work.scratch.array(head_bytes + body_bytes, np.uint8)
        return Packet(data, data[:head_bytes].view(work.array.dtype), data[head_bytes:])

    def add_up(self, work: Work, packets: Sequence[Packet], span: slice, rank: int) -> None:
        """Overwrite ``span`` by the sum of the decoded bodies, in float32."""
        out = work.array[span]
        if out.size:
            self._codec.decode(packets[0].body, out)
            for packet in packets[1:]:
                self._codec.add(packet.body, out)

    def landing(self, work: Work, span: slice) -> Flat:
        """Return scratch memory."""
        return work.scratch.array(self._sums.nbytes(span.stop - span.start), np.uint8)

    def announce(self, work: Work, data: Flat, span: slice) -> None:
        """Encode the sums."""
        residual = self._residual(_DOWN, work.key, span.stop - span.start)
        self._encode(self._sums, work.array[span], data, residual, slice(None))

    def land(self, work: Work, data: Flat, span: slice) -> None:
        """Decode the sums into their place."""
        if span.stop > span.start:
            self._sums.decode(data, work.array[span])

    def _encode(
        self, codec: Codec, values: Flat, out: Flat, residual: Flat | None, span: slice
    ) -> None:
        if values.size:
            codec.encode(values, out, None if residual is None else residual[span])

    def _residual(self, way: str, key: int, count: int) -> Flat | None:
        if not self._codec.residual:
            return None
        name = f"{way}/{key}"
        kept = self.residuals.get(name)
        if kept is None:
            kept = self.residuals[name] = np.zeros(count, np.float32)
        if kept.size != count:
            raise CheckpointError(
                f"residual {name}: got {kept.size} elements, needed {count}; it belongs to "
                "other slices or another number of ranks: reset it, or go on as before"
            )
        return kept
