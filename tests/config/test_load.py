"""Values come from the right source, and what is wrong is said in one sentence."""

import pytest

from hpctrain.config import Config, load, split
from hpctrain.errors import ConfigError

pytestmark = pytest.mark.serial


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Write a TOML file into the current directory, so that messages name it briefly."""
    monkeypatch.chdir(tmp_path)

    def write(text, name="run.toml"):
        (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
        return name

    return write


def refusal(paths=(), argv=(), environ=None):
    """Return the sentence with which these sources are refused."""
    with pytest.raises(ConfigError) as caught:
        load(paths, split(argv)[1], environ)
    sentence = str(caught.value)
    assert "\n" not in sentence
    return sentence


def test_without_sources_the_defaults_hold():
    config, provenance = load()
    assert config == Config()
    assert set(provenance.values()) == {"default"}


def test_flags_win_over_the_environment_over_later_files_over_earlier_ones(write):
    first = write("[optim]\nlr = 1.0\nmomentum = 0.1\nbeta1 = 0.1\neps = 0.1\n", "a.toml")
    second = write("[optim]\nlr = 2\nmomentum = 0.2\nbeta1 = 0.2\n", "b.toml")
    environ = {"HPCTRAIN__OPTIM__LR": "3", "HPCTRAIN__OPTIM__MOMENTUM": "0.3", "HOME": "/"}

    config, provenance = load([first, second], [("optim.lr", "4")], environ)

    optim = config.optim
    assert (optim.lr, optim.momentum, optim.beta1, optim.eps) == (4.0, 0.3, 0.2, 0.1)
    assert provenance["optim.lr"] == "--optim.lr"
    assert provenance["optim.momentum"] == "HPCTRAIN__OPTIM__MOMENTUM"
    assert provenance["optim.beta1"] == "b.toml"
    assert provenance["optim.eps"] == "a.toml"
    assert provenance["optim.beta2"] == "default"


def test_a_command_line_parts_into_words_and_flags():
    words, flags = split(
        ["train", "a.toml", "--optim.lr", "-1e-3", "--run.dry-run", "b.toml", "--data.batch=8"]
    )
    assert words == ["train", "a.toml", "b.toml"]
    assert flags == [("optim.lr", "-1e-3"), ("run.dry_run", "true"), ("data.batch", "8")]


@pytest.mark.parametrize(
    ("argv", "section", "key", "value"),
    [
        (["--run.dry_run"], "run", "dry_run", True),
        (["--run.dry_run", "false"], "run", "dry_run", False),
        (["--run.dry_run=True"], "run", "dry_run", True),
        (["--optim.lr", "1e-3"], "optim", "lr", 0.001),
        (["--optim.lr", "1"], "optim", "lr", 1.0),
        (["--run.epochs", "3"], "run", "epochs", 3),
        (["--run.name", "3"], "run", "name", "3"),
        (["--data.inputs", "a, b/c", "--data.targets=y"], "data", "inputs", ["a", "b/c"]),
        (["--data.inputs", '["a,b"]', "--data.targets=y"], "data", "inputs", ["a,b"]),
        (["--model.args", "{width = 3}"], "model", "args", {"width": 3}),
        (["--model.args.width", "3"], "model", "args", {"width": 3}),
        (["--model.args.sizes=[1, 2]"], "model", "args", {"sizes": [1, 2]}),
        (["--model.args.act", "relu"], "model", "args", {"act": "relu"}),
        (["--model.args.a", "1", "--model.args.b", "2"], "model", "args", {"a": 1, "b": 2}),
        (["--run.time_limit", "1-12:00:00"], "run", "time_limit", "1-12:00:00"),
        (["--model.name", "pkg.nets:build"], "model", "name", "pkg.nets:build"),
    ],
)
def test_the_text_of_a_flag_is_read_as_the_type_of_its_key(argv, section, key, value):
    config, _ = load([], split(argv)[1])
    got = getattr(getattr(config, section), key)
    assert got == value
    assert type(got) is type(value)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('[optim]\nlr = "fast"', 'run.toml: optim.lr: got "fast", needed a number > 0'),
        ("[optim]\nlr = -1", "run.toml: optim.lr: got -1, needed a number > 0"),
        ("[optim]\nlr = nan", "run.toml: optim.lr: got nan, needed a number > 0"),
        ("[optim]\nlr = inf", "run.toml: optim.lr: got inf, needed a number > 0"),
        ("[optim]\nlr = true", "run.toml: optim.lr: got true, needed a number > 0"),
        ("[run]\nepochs = 1.5", "run.toml: run.epochs: got 1.5, needed a whole number ≥ 1"),
        ('[run]\nepochs = "3"', 'run.toml: run.epochs: got "3", needed a whole number ≥ 1'),
        ("[run]\nseed = true", "run.toml: run.seed: got true, needed a whole number ≥ 0"),
        ("[run]\ndry_run = 1", "run.toml: run.dry_run: got 1, needed true or false"),
        (
            "[optim]\nmomentum = 1",
            "run.toml: optim.momentum: got 1, needed a number ≥ 0 and < 1",
        ),
        (
            '[run]\nname = "../x"',
            'run.toml: run.name: got "../x", needed a file name of letters, digits and . _ -',
        ),
        (
            '[optim]\nname = "sdg"',
            'run.toml: optim.name: got "sdg", needed "sgd", "adam" or "adamw"; '
            'did you mean "sgd"?',
        ),
        (
            '[data]\ninputs = "x"',
            'run.toml: data.inputs: got "x", needed a list of strings; '
            'as a flag write x, in a file ["x"]',
        ),
        (
            "[model.args]\na = {b = 1}",
            "run.toml: model.args: got {'a': {'b': 1}}, needed a table of plain values",
        ),
        ("[optim]\nlrr = 1", "run.toml: optim.lrr: no such key; did you mean optim.lr?"),
        ("[run]\nlr = 1", "run.toml: run.lr: no such key; did you mean optim.lr?"),
        ("[optm]\nlr = 1", "run.toml: [optm]: no such section; did you mean optim?"),
        (
            "[loss]\nlabel_smoothing = 1",
            "run.toml: loss.label_smoothing: no such key; the keys of [loss] are name",
        ),
        (
            "[x]\n",
            "run.toml: [x]: no such section; the sections are "
            "run, model, data, loss, optim, exchange, parallel, device, memory, graph",
        ),
        (
            "lr = 1",
            "run.toml: lr: got a key outside any section, needed it under one of "
            "[run], [model], [data], [loss], [optim], [exchange], [parallel], [device], "
            "[memory], [graph]",
        ),
        ("[optim]\nlr = = 1", "run.toml:2:6: not valid TOML: invalid value"),
        ("[optim]\nlr =", "run.toml: not valid TOML: invalid value at the end of the file"),
        (b"\xff", "run.toml: got a byte at 0 that is not UTF-8, needed a TOML file"),
    ],
)
def test_what_is_wrong_in_a_file_is_said_in_one_sentence(write, text, sentence):
    assert refusal([write(text)]) == sentence


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["--optim.lr", "fast"], '--optim.lr: got "fast", needed a number > 0'),
        (["--optim.lr", "-1"], '--optim.lr: got "-1", needed a number > 0'),
        (["--optim.lr"], "--optim.lr: got no value, needed a number > 0"),
        (["--optim.lr", "--run.epochs"], "--optim.lr: got no value, needed a number > 0"),
        (["--run.epochs", "1.5"], '--run.epochs: got "1.5", needed a whole number ≥ 1'),
        (["--run.dry_run=yes"], '--run.dry_run: got "yes", needed true or false'),
        (["--lr", "1"], "--lr: no such key; did you mean optim.lr?"),
        (["--optim.lr.x", "1"], "--optim.lr.x: no such key; did you mean optim.lr?"),
        (["--data.batchsize=1"], "--data.batchsize: no such key; did you mean data.batch?"),
        (["--run.time_limit=soon"], '--run.time_limit: got "soon", needed MINUTES, '
         "HOURS:MINUTES:SECONDS, DAYS-HOURS:MINUTES:SECONDS, auto or nothing"),
        (["--model.args", "3"], '--model.args: got "3", needed a table of plain values'),
    ],
)  # fmt: skip
def test_what_is_wrong_on_the_command_line_is_said_in_one_sentence(argv, sentence):
    assert refusal(argv=argv) == sentence


def test_what_is_wrong_in_the_environment_names_the_variable():
    assert (
        refusal(environ={"HPCTRAIN__OPTIM__LR": "fast"})
        == 'HPCTRAIN__OPTIM__LR: got "fast", needed a number > 0'
    )
    assert (
        refusal(environ={"HPCTRAIN__OPTIM__LRR": "1"})
        == "HPCTRAIN__OPTIM__LRR: no such key; did you mean optim.lr?"
    )


def test_a_missing_file_is_named(tmp_path):
    assert refusal([tmp_path / "x.toml"]).endswith(
        "x.toml: cannot be read: No such file or directory"
    )


def test_text_cannot_smuggle_a_second_key_into_a_table():
    assert load([], [("model.args.a", "1\nb = 2")])[0].model.args == {"a": "1\nb = 2"}


def test_a_later_file_replaces_a_table_as_a_whole(write):
    first = write("[model.args]\nwidth = 1\ndepth = 1\n", "a.toml")
    second = write("[model.args]\nwidth = 2\n", "b.toml")
    assert load([first, second])[0].model.args == {"width": 2}


def test_who_names_another_model_leaves_the_arguments_of_the_first(write):
    file = write('[model]\nargs = {size = 1}\nname = "lenet"\n')

    def loaded(*argv):
        config, provenance = load([file], split(argv)[1])
        return config.model.name, config.model.args, provenance["model.args"]

    assert loaded() == ("lenet", {"size": 1}, file)
    assert loaded("--model.name", "mlp") == ("mlp", {}, "default")
    assert loaded("--model.name", "lenet") == ("lenet", {"size": 1}, file)
    args = ("--model.args.classes", "2")
    assert loaded("--model.name", "mlp", *args)[1] == {"classes": 2}
    assert loaded(*args)[1] == {"size": 1, "classes": 2}


def test_some_flags_need_no_section():
    words = ["--profile", "3:5", "--resume=never", "run.toml", "--reproducible", "ranks"]

    assert split([*words, "--precision", "bf16"]) == (
        ["run.toml"],
        [
            ("run.profile", "3:5"),
            ("run.resume", "never"),
            ("exchange.reproducible", "ranks"),
            ("device.precision", "bf16"),
        ],
    )
