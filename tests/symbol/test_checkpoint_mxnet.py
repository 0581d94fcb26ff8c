"""Checkpoints that MXNet 1.9.1 wrote (oracle/make_networks.py), and trainings from them."""

from pathlib import Path

import numpy as np
import pytest
from mxnet_digits import BATCH, OPTIMIZER, digits, network

import hpctrain
from hpctrain import symbol as sym
from hpctrain.errors import CheckpointError
from hpctrain.io import NDArrayIter
from hpctrain.symbol import nd
from hpctrain.train.module import Module

pytestmark = pytest.mark.serial

PREFIX = Path(__file__).parent / "oracle" / "digits"


def test_training_goes_on_as_in_mxnet():
    module = Module.load(PREFIX, 2)
    module.fit(
        NDArrayIter(*digits(), BATCH), optimizer="sgd", optimizer_params=OPTIMIZER,
        begin_epoch=2, num_epoch=3,
    )  # fmt: skip

    _, args, aux = hpctrain.model.load_checkpoint(PREFIX, 3)
    found = module.get_params()
    for ours, theirs in zip(found, (args, aux), strict=True):
        assert ours.keys() == theirs.keys()
        for name, value in theirs.items():
            np.testing.assert_allclose(
                ours[name].asnumpy(), value.asnumpy(), 1e-4, 1e-4, err_msg=name
            )


def test_a_checkpoint_is_written_byte_for_byte_as_mxnet_does(tmp_path):
    symbol, args, aux = hpctrain.model.load_checkpoint(PREFIX, 2)

    hpctrain.model.save_checkpoint(tmp_path / "m", 2, symbol, args, aux)

    theirs = PREFIX.with_name("digits-0002.params").read_bytes()
    assert (tmp_path / "m-0002.params").read_bytes() == theirs


def test_a_network_that_is_built_here_takes_the_parameters():
    with sym.NameManager():
        module = Module(network(sym))
    module.bind([("data", (BATCH, 1, 8, 8))], for_training=False)
    _, args, aux = hpctrain.model.load_checkpoint(PREFIX, 2)
    module.set_params(args, aux)

    assert dict(module.score(NDArrayIter(*digits(seed=6), BATCH), "acc"))["accuracy"] > 0.9


def test_archives_of_arrays_are_still_read(tmp_path):
    symbol, args, aux = hpctrain.model.load_checkpoint(PREFIX, 2)
    symbol.save(tmp_path / "m-symbol.json")
    arrays = {
        **{f"arg:{k}": v for k, v in args.items()},
        **{f"aux:{k}": v for k, v in aux.items()},
    }
    nd.save(tmp_path / "m.npz", arrays)
    (tmp_path / "m.npz").rename(tmp_path / "m-0001.params")

    found = hpctrain.model.load_checkpoint(tmp_path / "m", 1)

    assert found[1].keys() == args.keys() and found[2].keys() == aux.keys()
    nd.save(tmp_path / "m-0002.params", list(args.values()))
    with pytest.raises(CheckpointError, match="arrays without names"):
        hpctrain.model.load_checkpoint(tmp_path / "m", 2)
