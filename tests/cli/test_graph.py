"""``graph`` and ``summary``: what they print, and what they refuse."""

import os
import re
import subprocess
import sys

import pytest

from hpctrain.cli.main import main
from hpctrain.cli.subject import of_model
from hpctrain.cli.summary import layers
from hpctrain.graph.passes import PASSES
from hpctrain.models.workloads import WORKLOADS

pytestmark = pytest.mark.serial


def printed(capsys, *words):
    assert main(words) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("name", WORKLOADS)
def test_graph_shows_figures_of_each_pass_and_the_graph(name, capsys):
    lines = printed(capsys, "graph", name, "--small").splitlines()

    assert [line.split()[0] for line in lines[1 : 2 + len(PASSES)]] == ["capture", *PASSES]
    nodes = [int(line.split()[1]) for line in lines[1 : 2 + len(PASSES)]]
    assert nodes[-1] < max(nodes)  # some passes take operations apart
    assert lines[-1].startswith("output %")


def test_graph_shows_one_pass_before_and_after(capsys):
    text = printed(capsys, "graph", "lstm", "--small", "--inference", "--pass", "simplify")

    before, after = text.split("before simplify")[1].split("after simplify")
    assert "cast" in before
    assert after.count("= cast") < before.count("= cast")
    assert "common_subexpressions" not in text


def test_graph_writes_a_file_for_graphviz(capsys, tmp_path):
    path = tmp_path / "net.dot"

    printed(capsys, "graph", "mlp", "--small", "--batch", "3", "--dot", str(path))

    assert path.read_text().startswith('digraph "mlp" {')
    assert "float32[3,20]" in path.read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["graph", "mlp", "--pass", "magic"], "got pass 'magic', needed one of recompute"),
        (["graph", "bert"], "got 'bert', needed one of mlp"),
        (["graph", "mlp", "--training", "--inference"], "needed one of them"),
        (["graph", "mlp", "--small", "--dot", "/nowhere/x.dot"], "cannot write /nowhere/x.dot"),
        (["summary"], "got nothing, needed the name of a workload"),
        (["summary", "mlp", "-n", "0"], "got -n 0, needed at least 1 rank"),
    ],
)
def test_what_cannot_be_shown_is_refused_in_a_sentence(words, message, capsys):
    assert main(words) == 2
    assert message in capsys.readouterr().out


def test_summary_adds_up(capsys):
    text = printed(capsys, "summary", "mlp", "-n", "4")

    found = dict(re.findall(r"^(\S.*?)  +(.*)$", text, re.MULTILINE))
    assert found["parameters"].startswith("23,298,176 bytes")
    assert "5,824,522 trained" in text
    assert found["FLOPs of an evaluation"] == "1,490,553,856"
    # How much depends on the scratch memory of the kernels that this host has.
    planned = r"([\d,]+) bytes .* in 3 piece\(s\); naive ([\d,]+) bytes"
    sizes = re.match(planned, found["planned, inference"]).groups()
    piece, naive = (int(size.replace(",", "")) for size in sizes)
    assert 712_704 <= piece <= naive / 4
    assert found["sent in a step by a rank"].startswith(f"{23_298_176 * 6 // 4:,} bytes")
    assert re.search(r"features\.1 +Dense +\(128, 2048\) +4,196,352", text)


@pytest.mark.parametrize("name", WORKLOADS)
def test_layers_hold_all_parameters_and_most_of_the_work(name):
    subject = of_model(name, small=True)

    found = layers(subject)

    assert sum(x.parameters for x in found) == sum(t.size for t in subject.wanted().values())
    assert all(x.shape for x in found)
    assert len({x.path for x in found}) == len(found)


def test_summary_takes_a_configuration_as_a_run_would(capsys, data, tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(
        f'[model]\nname = "mlp"\nargs = {{inputs = 64, hidden = [8], classes = 4}}\n'
        f'[data]\ntrain = "{data}/train"\ntest = "{data}/test"\nbatch = 30\n'
    )

    text = printed(capsys, "summary", str(path), "-n", "3", "--optim.name", "adam")

    assert "10 samples a rank" in text
    assert "(adam)" in text


PACKED = 16 * 2**20  # at most, that gemm of oneDNN takes for packed factors during a call


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "batch"), [("mlp", 1024), ("resnet20", 24), ("lstm", 32), ("gpt", 5), ("cosmo", 8)]
)
def test_the_process_needs_what_was_planned(name, batch):
    """Measured in a process of its own, where some 35 MB and more are planned."""
    code = (
        "from hpctrain.cli.subject import of_model\n"
        "from hpctrain.cli.measure import peak_of_two_steps\n"
        f"print(*peak_of_two_steps(of_model({name!r}, {batch})))"
    )

    # Large pieces come from the system and go back to it, whatever was free before.
    env = os.environ | {"MALLOC_MMAP_THRESHOLD_": str(2**20)}
    run = [sys.executable, "-c", code]
    done = subprocess.run(run, capture_output=True, text=True, env=env)

    assert done.returncode == 0, done.stderr
    planned, peak = map(int, done.stdout.split())
    assert 0.95 * planned < peak < 1.05 * planned + PACKED


def test_graph_shows_recomputation_and_the_plan(capsys):
    again = printed(capsys, "graph", "resnet20", "--small", "--pass", "recompute")
    plan = printed(capsys, "graph", "mlp", "--small", "--pass", "memory")

    before, after = again.split("after recompute\n")
    assert after.count(" = conv(") > before.count(" = conv(")
    assert "\nafter memory\narena " in plan and "@0" in plan


def test_recomputation_needs_a_training_step(capsys):
    assert main(["graph", "mlp", "--pass", "recompute", "--inference"]) == 2

    assert "got --pass recompute and --inference" in capsys.readouterr().out
