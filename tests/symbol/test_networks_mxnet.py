"""Whole networks against MXNet 1.9.1 itself (oracle/make_networks.py)."""

import json
from pathlib import Path

import numpy as np
import pytest
from mxnet_zoo import CELLS, ZOO, draw, summary

from hpctrain import symbol as sym

pytestmark = pytest.mark.serial

ORACLE = Path(__file__).parent / "oracle"
NETS = {**ZOO, **CELLS}


@pytest.fixture(scope="module")
def results():
    with np.load(ORACLE / "networks.npz", allow_pickle=False) as file:
        return dict(file)


@pytest.fixture(autouse=True)
def names():
    with sym.NameManager():
        yield


def file(name):
    return ORACLE / "networks" / f"{name}-symbol.json"


def check(found, wanted, scale, what):
    """Within 1e-4 of the largest number; what is 0 but for rounding is below 2e-6."""
    limit = 1e-4 * scale + 2e-6
    np.testing.assert_allclose(found, wanted, rtol=0, atol=limit, err_msg=what)


@pytest.mark.parametrize("name", NETS)
def test_outputs_and_gradients_are_mxnets(name, results):
    net, symbol = NETS[name], sym.load(file(name))
    requests = net.requests(symbol.list_arguments())
    executor = symbol.simple_bind(grad_req=requests, **net.shapes)
    for arrays in (executor.arg_dict, executor.aux_dict):
        for key, array in arrays.items():
            array[:] = draw(name, key, array.shape, net.below.get(key))

    found = {"predict": executor.forward()[0], "train": executor.forward(is_train=True)[0]}
    executor.backward()

    found.update({f"grad-{k}": v for k, v in executor.grad_dict.items()})
    found.update({f"aux-{k}": v for k, v in executor.aux_dict.items()})
    wanted = {k.partition("/")[2]: v for k, v in results.items() if k.startswith(f"{name}/")}
    assert found.keys() == wanted.keys()
    for key, value in wanted.items():
        array = found[key].asnumpy()
        if array.shape == value.shape and array.shape != (3,):
            check(array, value, np.abs(value).max(), key)
        else:  # (product with a seeded vector, norm, maximum)
            check(summary(name, key.partition("-")[2], array), value, value[1], key)


@pytest.mark.parametrize("name", NETS)
def test_a_file_is_written_as_mxnet_writes_it(name):
    theirs = json.loads(file(name).read_text("utf-8"))

    ours = json.loads(sym.load(file(name)).tojson())

    for whole in (theirs, ours):
        whole.pop("node_row_ptr", None)
    assert ours == theirs


@pytest.mark.parametrize("name", ZOO)
def test_a_network_that_is_built_here_is_mxnets(name):
    theirs = json.loads(file(name).read_text("utf-8"))

    ours = json.loads(ZOO[name].build(sym).tojson())

    def plain(whole):
        nodes = [(n["op"], n["name"], n["inputs"]) for n in whole["nodes"]]
        return nodes, whole["arg_nodes"], whole["heads"]

    assert plain(ours) == plain(theirs)
