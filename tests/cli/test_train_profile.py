"""The timeline of some steps: one file for all ranks, on one clock."""

import json
from itertools import pairwise

import pytest

pytestmark = [pytest.mark.serial, pytest.mark.slow]


def spans(path):
    """The spans of each rank and track, by start; times in µs."""
    events = json.loads(path.read_text())["traceEvents"]
    names = {
        (e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"
    }
    tracks = {}
    for event in events:
        if event["ph"] == "X":
            row = tracks.setdefault((event["pid"], names[event["pid"], event["tid"]]), [])
            row.append((event["ts"], event["ts"] + event["dur"], event["name"]))
    return {track: sorted(row) for track, row in tracks.items()}


@pytest.mark.parametrize("ranks", [1, 2])
def test_three_steps_are_on_one_timeline(train, tmp_path, ranks):
    ended = train(ranks, "--run.profile", "3:5", "--exchange.overlap", "on").end()

    assert (ended.code, ended.err) == (0, "")
    files = list((tmp_path / "runs/mnist/trace").iterdir())
    assert [f.name for f in files] == ["trace.json"]
    tracks = spans(files[0])
    compute = {rank: track for (rank, name), track in tracks.items() if "compute" in name}
    assert sorted(compute) == list(range(ranks))
    for track in tracks.values():
        assert all(a[1] <= b[0] + 0.001 for a, b in pairwise(track))
    for track in compute.values():
        assert [name for _, _, name in track].count("feed 0") == 3
    # One clock: the ranks do the same steps at about the same time.
    starts = [track[0][0] for track in compute.values()]
    ends = [track[-1][1] for track in compute.values()]
    assert max(starts) < min(ends)


def test_the_exchange_starts_before_the_backward_pass_ends(train, tmp_path):
    # The gradient of a late layer is final while those of the first ones are still to come.
    sizes = {"model.args.hidden": "[1024,1024,1024]", "data.batch": 50}

    ended = train(2, "--run.profile", "1:6", "--exchange.overlap", "on", **sizes).end()

    assert (ended.code, ended.err) == (0, "")
    tracks = spans(tmp_path / "runs/mnist/trace/trace.json")
    for rank in range(2):
        (compute,) = [t for (r, n), t in tracks.items() if r == rank and "compute" in n]
        # What overlaps on the lane is on tracks of its own.
        comm = [span for (r, n), t in tracks.items() if r == rank and "comm" in n for span in t]
        slices = len({name for _, _, name in comm})
        assert slices > 2 and len(comm) == 6 * slices
        first = [start for start, _, _ in sorted(comm)[::slices]]
        # The riders come after the last segment of the backward pass. On a busy machine the
        # thread may wake too late in some steps; tests/parallel holds the pass until it has.
        backward_ended = [start for start, _, name in compute if name == "ride 0"]
        assert sum(a < b for a, b in zip(first, backward_ended, strict=True)) >= 1
