"""From settings to the exchange of a run; and runs with every codec on the wire."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from launched import ROOT
from mpi4py import MPI

from hpctrain import nn
from hpctrain.cli import exchange
from hpctrain.cli.exchange import (
    CODED_MIB,
    LEAST_BYTES,
    PAUSE_S,
    PAUSE_SPARE_S,
    WHOLE_MIB,
    Traffic,
    lanes_for,
    overlaps,
    settled,
    way_of,
)
from hpctrain.comm.group import Group
from hpctrain.comm.timeline import Link
from hpctrain.comm.transfer import block
from hpctrain.config import Config, load
from hpctrain.engine import DEFAULT_LANES
from hpctrain.optim import SGD
from hpctrain.parallel import ways
from hpctrain.parallel.state import ModelState
from hpctrain.parallel.work import Options
from hpctrain.train import checkpoint

LINK = Link(1e-3, 1e8, 8, cpu_s_per_byte=1e-9)


@pytest.fixture
def world():
    """All ranks, on one host."""
    comm = MPI.COMM_WORLD
    with Group(comm.Dup()) as group, Group(comm.Dup()) as control:
        yield SimpleNamespace(
            rank=group.rank,
            size=group.size,
            local_size=group.size,
            group=group,
            control=control,
        )


@pytest.fixture(params=[True, False], ids=["spare", "shared"])
def spare(request, monkeypatch):
    """Whether a communication thread has a core for itself."""
    monkeypatch.setattr(exchange, "spare_core", lambda group: request.param)
    return request.param


def two_hosts(size):
    return SimpleNamespace(size=size, local_size=size // 2)


def one_host(size):
    return SimpleNamespace(size=size, local_size=size)


@pytest.mark.serial
def test_settings_are_those_of_the_configuration():
    words = {
        "path": "direct", "wire": "topk", "slice_mib": 0.5, "in_flight": 3,
        "overlap": "off", "threshold": 0.25, "ratio": 0.125, "waiting": "blocking",
    }  # fmt: skip
    flags = [(f"exchange.{name}", str(value)) for name, value in words.items()]

    assert Traffic.of(load([], flags, {})[0]) == Traffic(**words)
    assert Traffic.of(Config()) == Traffic()


@pytest.mark.serial
@pytest.mark.parametrize("setting", ["exchange.kind=server", "parallel.pipeline=2"])
def test_a_thread_that_may_wait_for_itself_is_not_to_block(setting):
    config = load([], [tuple(setting.split("="))], {})[0]

    assert Traffic.of(config).waiting == "polling"


@pytest.mark.serial
def test_the_lane_of_the_exchange_is_ordered_and_looks_as_often_as_was_found():
    lanes = lanes_for(Traffic(in_flight=3, pause_s=0.01), readers=2)

    assert lanes["comm"].ordered and lanes["comm"].workers == 1
    assert (lanes["comm"].in_flight, lanes["comm"].pause_s) == (3, 0.01)
    assert lanes["io"] == 2
    assert set(lanes) == {*DEFAULT_LANES, "comm", "io"}
    assert lanes_for(Traffic())["comm"].pause_s == PAUSE_S
    blocks = [lanes_for(Traffic(waiting=w))["comm"].block for w in ("blocking", "polling")]
    assert blocks == [block, None]


@pytest.mark.serial
@pytest.mark.parametrize("cores", [0.5, 1, 4])
@pytest.mark.parametrize("world", [one_host(1), one_host(4), two_hosts(4)])
def test_an_overlap_that_was_chosen_is_kept(world, cores):
    assert overlaps(Traffic(overlap="on"), world, cores)
    assert not overlaps(Traffic(overlap="off"), world, cores)


@pytest.mark.serial
def test_ranks_overlap_by_themselves_between_hosts_or_with_a_core_for_each():
    auto = Traffic()

    assert overlaps(auto, one_host(1), 0.5)
    assert overlaps(auto, two_hosts(4), 0.5)
    assert overlaps(auto, one_host(4), 1.0)
    assert not overlaps(auto, one_host(4), 0.5)


def test_what_is_open_is_filled_in(world, spare):
    found = settled(Traffic(), world, 2.0)

    blocking = spare and world.size > 1
    assert found.waiting == ("blocking" if blocking else "polling")
    assert found.pause_s == (PAUSE_SPARE_S if blocking else PAUSE_S)
    one = (WHOLE_MIB, False) if world.size == 1 else (4.0, True)
    assert (found.slice_mib, found.fitted, found.cores) == (*one, 2.0)
    assert settled(Traffic(), world, 1.5).waiting == "polling"  # not one for each thread
    world.local_size = 0  # as seen from one of several hosts
    assert settled(Traffic(), world, 2.0).slice_mib == (WHOLE_MIB if world.size == 1 else 1.0)
    coded = settled(Traffic(wire="2bit", served=True), world, 2.0)
    if world.size > 1:
        assert (coded.slice_mib, coded.fitted) == (CODED_MIB, False)


def test_a_lone_pipeline_has_nothing_to_cut_gradients_for(world, spare):
    found = settled(Traffic(), world, 1.0, replicas=1)

    assert (found.slice_mib, found.fitted) == (WHOLE_MIB, False)


def test_who_has_a_core_looks_often_while_it_has_nothing_to_do(world, spare):
    own, shared = (settled(Traffic(waiting="polling"), world, cores) for cores in (1.0, 0.5))

    assert (own.eager_s, shared.eager_s) == (PAUSE_SPARE_S, PAUSE_S)


def test_what_was_chosen_stays(world, spare):
    chosen = Traffic("direct", "2bit", 0.3, 5, 0.001, "off", 0.1, 0.2, waiting="blocking")

    found = settled(chosen, world, 1.0)

    assert found == chosen
    assert settled(Traffic(pause_s=0.001), world, 1.0).waiting == "polling"


def test_ranks_that_share_cores_unevenly_go_by_the_fewest(world, spare):
    found = settled(Traffic(), world, 1 / (world.rank + 1))

    assert found.cores == 1 / world.size


@pytest.mark.serial
@pytest.mark.parametrize(
    ("mib", "fitted", "width", "expected"),
    [
        (4.0, False, 1, 4 * 2**20),
        (0.25, False, 4096, 2**18),
        (4.0, True, 1, LEAST_BYTES),
        (4.0, True, 4096, 4 * 1000 * 4096 // 8),
        (1.0, True, 4096, 2**20),
        (0.001, True, 1, round(0.001 * 2**20)),
    ],
)
def test_small_models_have_small_slices(mib, fitted, width, expected):
    net = nn.Dense(width, in_units=1000, use_bias=False)
    net.initialize()

    assert Traffic(slice_mib=mib, fitted=fitted).slice_bytes(net.collect_params()) == expected


def state_of(dtype="float32"):
    net = nn.Dense(3, in_units=5)
    net.initialize()
    net.cast(dtype)
    return ModelState(net.collect_params(), SGD())


@pytest.mark.parametrize("wire", ["none", "fp16", "bf16", "2bit", "topk"])
def test_a_way_has_the_path_and_the_codec_that_were_asked_for(world, monkeypatch, wire):
    monkeypatch.setattr(ways, "measure", lambda group, rounds, in_flight: LINK)
    state = state_of()

    way = way_of(Traffic("direct", wire, threshold=0.3, ratio=0.2), world, state, Options())

    if world.size > 1:
        assert (way.kind, way.link.in_flight) == ("direct", 8)
        assert (way.codec is None) == (wire == "none")
        assert wire == "none" or way.codec.name == wire
    else:
        assert way.kind == "none"
    state.leave()
    way.free()


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize(
    ("waiting", "cores", "cost"),
    [("blocking", 0.5, 0.0), ("polling", 2.0, 1e-9), ("polling", 0.25, 4e-9)],
)
def test_messages_cost_computation_what_ranks_share_of_a_core(
    world, monkeypatch, waiting, cores, cost
):
    monkeypatch.setattr(ways, "measure", lambda *args: LINK)
    state = state_of()

    way = way_of(
        Traffic("direct", waiting=waiting, cores=cores), world, state, Options(sharded=True)
    )

    assert way.link.cpu_s_per_byte == pytest.approx(cost)
    state.leave()
    way.free()


DIGITS = {
    "data.train": ROOT / "data/mnist/train", "data.test": ROOT / "data/mnist/test",
    "model.args": "{inputs = 784, hidden = [64], classes = 10}", "data.batch": 128,
    "data.test_batch": 500, "optim.lr": 0.03, "optim.schedule": "cosine", "run.epochs": 5,
    "exchange.path": "direct", "exchange.threshold": 0.002, "exchange.ratio": 0.02,
}  # fmt: skip


@pytest.mark.serial
@pytest.mark.slow
def test_handwritten_digits_are_learned_with_every_codec(train, tmp_path):
    """150 steps on two ranks, to a tenth of wrong answers without compression."""
    found = {}
    for wire in ("none", "fp16", "bf16", "2bit", "topk"):
        ended = train(2, **DIGITS, exchange__wire=wire, run__name=wire).end()
        assert (ended.code, ended.err) == (0, "")
        found[wire] = json.loads((tmp_path / f"runs/{wire}/done.json").read_text())

    none = found["none"]
    right = {wire: values["test_accuracy"] for wire, values in found.items()}
    assert right["none"] > 0.88
    for wire, loss in (("fp16", 0.01), ("bf16", 0.01), ("topk", 0.03), ("2bit", 0.05)):
        assert right[wire] > right["none"] - loss, right
        assert found[wire]["train_loss"] != none["train_loss"]


WIDE = {
    # 262144 weights in a slice: three ranks exchange it in two rounds, and owe in both.
    "model.args": "{inputs = 64, hidden = [4096], classes = 4}", "exchange.path": "direct",
    "exchange.slice_mib": 4, "exchange.threshold": 0.002, "exchange.ratio": 0.05,
    "run.epochs": 2,
}  # fmt: skip


@pytest.mark.serial
@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "wire"), [(2, "2bit"), (3, "topk")])
def test_a_run_that_goes_on_ends_with_the_bits_of_one_that_was_not_stopped(
    train, tmp_path, ranks, wire
):
    whole = tmp_path / "runs/whole/checkpoints"
    assert train(ranks, **WIDE, exchange__wire=wire, run__name="whole").end().code == 0

    ended = train(
        ranks, **WIDE, exchange__wire=wire, run__name="resumed",
        run__resume=whole / "step-00000007",
    ).end()  # fmt: skip

    assert (ended.code, ended.err) == (0, "")
    arrays, state = checkpoint.load(tmp_path / "runs/resumed/checkpoints/step-00000014")
    expected, expected_state = checkpoint.load(whole / "step-00000014")
    assert list(arrays) == list(expected) and state == expected_state
    for name, array in expected.items():
        assert np.array_equal(arrays[name].view("u1"), array.view("u1")), name
    sides = {entry[0].split("/")[0] for row in state["owed"] for entry in row}
    assert sides == ({"up", "down"} if ranks > 2 else {"up"})
    assert all(np.abs(arrays[f"owed/{rank}"]).max() > 0 for rank in range(ranks))
