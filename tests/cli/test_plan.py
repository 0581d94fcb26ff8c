"""``plan``: what it draws, and what it refuses."""

import pytest

from hpctrain.cli.main import main
from hpctrain.cli.subject import of_model
from hpctrain.cli.summary import layers

pytestmark = pytest.mark.serial


def printed(capsys, *words):
    assert main(["plan", *words]) == 0
    return capsys.readouterr().out


def test_plan_draws_1f1b_with_its_figures(capsys):
    text = printed(
        capsys,
        "--schedule",
        "1f1b",
        "--stages",
        "3",
        "--micro-batches",
        "4",
        "--times",
        "1,1,1",
        "--whole",
    )

    assert text == (
        "1f1b: 3 ranks, 4 micro-batches\n"
        "rank 0 |F0 F1 F2 .  .  .  .  BW0-- F3 BW1-- .  BW2-- .  BW3--\n"
        "rank 1 |.  F0 F1 .  .  BW0-- F2 BW1-- F3 BW2-- .  BW3-- .  .\n"
        "rank 2 |.  .  F0 BW0-- F1 BW1-- F2 BW2-- F3 BW3-- .  .  .  .\n"
        "makespan          18 s\n"
        "bubble            33.33%; formula for equal ranks and free messages 33.33%\n"
        "peak activations  3 2 1; formula 3 2 1\n"
        "message buffers   1 for each channel\n"
    )


def test_plan_draws_what_a_run_does_cotangents_before_weights(capsys):
    text = printed(capsys, "--stages", "2", "--micro-batches", "2")

    assert text == (
        "1f1b: 2 ranks, 2 micro-batches\n"
        "rank 0 |F0 F1 .  B0 W0 .  B1 W1\n"
        "rank 1 |.  F0 B0 W0 F1 B1 W1 .\n"
        "makespan          8 s\n"
        "bubble            25.00%; formula for equal ranks and free messages 25.00%\n"
        "peak activations  2 1; formula 2 1\n"
        "message buffers   1 for each channel\n"
    )


def test_plan_measures_the_stages_of_a_model_and_fits_to_them(capsys):
    words = ["mlp", "--small", "--stages", "2", "--micro-batches", "3", "--balance", "params"]

    text = printed(capsys, *words, "--schedule", "zero_bubble", "--measure", "--fit")

    assert text.startswith("mlp: forward part for one micro-batch, measured\n\nstage  layers")
    assert "zero_bubble: 2 ranks, 3 micro-batches\nrank 0 |F0" in text


def test_plan_spreads_the_time_of_a_rank_over_its_chunks(capsys):
    words = (
        "--schedule",
        "interleaved",
        "--stages",
        "2",
        "--micro-batches",
        "2",
        "--chunks",
        "2",
        "--whole",
    )
    text = printed(capsys, *words)

    assert text == printed(capsys, *words, "--times", "0.5,0.5,0.5,0.5")
    assert text.startswith("interleaved: 2 ranks of 2 chunks, 2 micro-batches\nrank 0 |F0a F1a")
    assert "\nmakespan          7.5 s\nbubble            20.00%" in text


def test_plan_takes_times_of_parts_and_messages(capsys):
    words = ["--stages", "2", "--micro-batches", "1", "--times", "2,3"]
    slow = ["--backward", "0.5", "--weight", "2", "--message", "0.25", "--latency", "0.5"]

    text = printed(capsys, "--schedule", "zero_bubble", *words, *slow)

    # F 2, message 0.75, F 3, B 1.5, and W 6 of the second rank outlasts the first one's
    assert "\nmakespan          13.25 s\n" in text


def test_plan_fits_zero_bubble_to_the_times(capsys):
    words = ["--schedule", "zero_bubble", "--stages", "2", "--times", "20,1", "--weight", "10"]

    assert "peak activations  2 2; formula 2 2" in printed(capsys, *words)
    assert "peak activations  2 1; formula 2 2" in printed(capsys, *words, "--fit")


def test_plan_cuts_a_model_and_draws_its_estimated_times(capsys):
    words = ["mlp", "--small", "--stages", "2", "--micro-batches", "3", "--balance", "params"]

    lines = printed(capsys, *words, "--schedule", "gpipe").splitlines()

    assert lines[0] == "mlp: forward part for one micro-batch, estimated"
    rows = [line.split() for line in lines[3:5]]
    assert [row[0] for row in rows] == ["0", "1"]
    parameters = [int(row[-2].replace(",", "")) for row in rows]
    assert sum(parameters) == sum(
        4 * layer.parameters for layer in layers(of_model("mlp", small=True))
    )
    assert lines[6] == "gpipe: 2 ranks, 3 micro-batches"
    assert lines[7].startswith("rank 0 |F0")


def test_plan_cuts_the_model_of_a_configuration_into_chunks(capsys, data, tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(
        f'[model]\nname = "mlp"\nargs = {{inputs = 64, hidden = [8, 8], classes = 4}}\n'
        f'[data]\ntrain = "{data}/train"\ntest = "{data}/test"\nbatch = 30\n'
    )
    words = ["--schedule", "interleaved", "--stages", "2", "--chunks", "2"]

    text = printed(capsys, str(path), *words, "--data.batch", "60", "--micro-batches", "2")

    assert [line.split()[0] for line in text.splitlines()[3:7]] == ["0", "1", "2", "3"]
    sent = int(text.splitlines()[3].split()[-1].replace(",", ""))
    assert sent % (4 * 30) == 0  # float32, half of the batch
    assert text.count("\nrank ") == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["mlp", "--times", "1,1,1,1"], "got a model and --times, needed one of them"),
        (["mlp", "--small", "--stages", "99"], "layers for 99 stages, needed at least 1 layer"),
        (["--schedule", "dual"], "got 'dual', needed one of gpipe, 1f1b, interleaved"),
        (
            ["--stages", "0"],
            "got 0 stages, 8 micro-batches, 1 chunks, needed at least 1 of each",
        ),
        (["--chunks", "2"], "got 2 chunks for 1f1b, needed 1; take interleaved"),
        (["--times", "1,2"], "plan: got 2 --times, needed 4, one for each rank"),
        (["--times", "1,x"], "got --times '1,x', needed numbers with commas between them"),
        (["--fit"], "got --fit and 1f1b, needed zero_bubble"),
        (["--measure"], "got --measure and no model, needed one"),
        (["--message=-1"], "all finite, none negative"),
    ],
)
def test_plan_refuses_what_it_cannot_draw_in_one_sentence(words, message, capsys):
    assert main(["plan", *words]) == 2

    said = capsys.readouterr().out
    assert message in said and said.count("\n") == 1
