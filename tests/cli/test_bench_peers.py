"""The comparison with other frameworks, with programs that stand for them."""

import ast
import sys
from pathlib import Path

import numpy as np
import pytest

import hpctrain
from hpctrain.autograd import Spec
from hpctrain.cli import bench_peers
from hpctrain.cli.bench_floor import Floor, floor, products
from hpctrain.cli.fastest import fastest_product
from hpctrain.errors import ConfigError
from hpctrain.graph.capture import capture
from hpctrain.models.workloads import WORKLOADS
from hpctrain.ops import self_attention

pytestmark = pytest.mark.serial
PYTHON = sys.executable
PEERS = Path(hpctrain.__file__).parent / "peers"


def program(tmp_path, name, text):
    path = tmp_path / name
    path.write_text(f"#!{PYTHON}\n{text}\n")
    path.chmod(0o755)
    return str(path)


def talker(tmp_path, name, **ms):
    """Make a stand-in for a Python: it answers by variant, or by ``plain``."""
    text = f"""
import json, os, sys
assert os.environ["OMP_NUM_THREADS"] == "1" and os.sched_getaffinity(0) != set()
word = sys.argv[sys.argv.index("--variant") + 1] if "--variant" in sys.argv else "plain"
print("a warning")
print(json.dumps({{"ms_per_step": {ms!r}[word], "peak_rss_mb": 300.0}}))
"""
    return program(tmp_path, name, text)


@pytest.fixture
def alone(monkeypatch, tmp_path):
    """Let our own part be a stand-in, too, and the floor a number."""
    ours = talker(tmp_path, "ours", plain=10.0)
    monkeypatch.setattr(bench_peers.sys, "executable", ours)
    monkeypatch.setattr(bench_peers, "floor", lambda name: Floor(6.0, 1.0))
    monkeypatch.setattr(bench_peers.os, "sched_setaffinity", lambda *given: None)
    return tmp_path


def test_a_table_has_ratios_and_the_bars_that_are_missed(alone, capsys):
    torch = talker(alone, "torch", eager=20.0, channels_last=12.0, compile=11.5)
    mxnet = talker(alone, "mxnet", plain=17.0)

    bench_peers.peers(torch, mxnet, "resnet20,gpt", rounds=2)

    head, first, second = (line.split() for line in capsys.readouterr().out.splitlines())
    assert head[:3] == ["ours", "eager", "best"]
    wanted = "resnet20 10.0 20.0 11.5 (compile) 17.0 2.00 1.15 1.70 (< 1.8) 7.0 0.70 (< 0.8)"
    assert " ".join(first) == f"{wanted} 300.0 300.0"
    assert second[:6] == ["gpt", "10.0", "20.0", "11.5", "(compile)", "-"]


def test_bfloat16_is_compared_with_autocast(alone, capsys):
    torch = talker(alone, "torch", eager=20.0, channels_last=11.0)

    bench_peers.peers(torch, "none", "cosmo", rounds=1, precision="bf16")

    _, row = (line.split() for line in capsys.readouterr().out.splitlines())
    assert " ".join(row) == (
        "cosmo 10.0 20.0 11.0 (channels_last) - 2.00 1.10 (< 1.2) - - - 300.0 300.0"
    )
    ours, *others = bench_peers.contenders("cosmo", torch, "", 3, "bf16").values()
    assert ours[-2:] == ["--precision", "bf16"]
    assert all("--bf16" in other for other in others)


def test_a_contender_that_fails_is_named_and_left_out(alone, capsys):
    torch = program(alone, "torch", "raise SystemExit('no such wheel')")

    bench_peers.peers(torch, "", "mlp", rounds=1)

    shown = capsys.readouterr()
    assert "torch eager: no result: no such wheel" in shown.err
    assert shown.out.splitlines()[1].split()[:5] == ["mlp", "10.0", "-", "-", "-"]


def test_only_workloads_of_the_benchmark_are_compared():
    with pytest.raises(ConfigError, match="got --models vgg, needed some of mlp"):
        bench_peers.peers(models="mlp,vgg")


@pytest.mark.parametrize(("name", "missing"), [("torch_step", set()), ("mxnet_step", {"gpt"})])
def test_each_script_has_the_workloads_that_are_compared(name, missing):
    tree = ast.parse((PEERS / f"{name}.py").read_text())
    tables = {
        node.targets[0].id: {key.value for key in node.value.keys}
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict)
    }

    found = tables.get("WORKLOADS") or tables["MODELS"]

    assert found == set(bench_peers.STEPS) - missing <= set(WORKLOADS)


def test_products_of_attention_count_what_causality_leaves():
    spec = Spec((2, 6, 24), np.dtype(np.float32))
    graph = capture(lambda x: self_attention(x, 4, causal=True)[0], [spec])
    (node,) = (n for n in graph.nodes if n.row.name == "self_attention")

    found = list(products(node, [spec], [graph.specs[v] for v in node.outputs]))

    assert found == [(4.0, 6, 2, 6, False, True), (4.0, 6, 6, 2, False, False)]


@pytest.mark.slow
def test_the_floor_of_a_model_is_more_than_its_largest_product():
    least = floor("mlp")

    assert least.products_ms > 1.5e3 * fastest_product(128, 2048, 2048, False, True)
    assert 0 < least.bytes_ms < least.ms
