"""All schedules that tests walk through, and random ones."""

from hypothesis import strategies as st

from hpctrain.parallel.pipeline_schedule import schedule

WAYS = [
    ("gpipe", 1), ("1f1b", 1), ("zero_bubble", 1), ("interleaved", 1), ("interleaved", 2),
    ("interleaved", 3), ("interleaved", 4),
]  # fmt: skip
STAGES = range(1, 9)
MICRO_BATCHES = range(1, 18)


@st.composite
def sizes(draw):
    """Kind, stages, micro-batches and chunks of a schedule."""
    kind, chunks = draw(st.sampled_from(WAYS))
    return kind, draw(st.integers(1, 5)), draw(st.integers(1, 9)), chunks


@st.composite
def merged(draw):
    """A schedule whose ranks take forwards and backwards in turns of their own."""
    ranks = []
    for actions in schedule("gpipe", draw(st.integers(1, 4)), draw(st.integers(1, 4))):
        forwards, backwards = ([a for a in actions if a.kind == k] for k in ("F", "BW"))
        row = []
        while forwards or backwards:
            may = len(backwards) > len(forwards)  # the forward of the next one is done
            if not forwards or (may and draw(st.booleans())):
                row.append(backwards.pop(0))
            else:
                row.append(forwards.pop(0))
        ranks.append(tuple(row))
    return tuple(ranks)
