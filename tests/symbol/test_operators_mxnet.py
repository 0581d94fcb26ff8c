"""Every operator of the table against MXNet 1.9.1 itself (oracle/make_mxnet.py)."""

from pathlib import Path

import mxnet_cases
import numpy as np
import pytest

from hpctrain import symbol as sym
from hpctrain.autograd import Tensor
from hpctrain.backend import CPU

pytestmark = pytest.mark.serial

ORACLE = Path(__file__).parent / "oracle"


@pytest.fixture(scope="module")
def results():
    with np.load(ORACLE / "operators.npz", allow_pickle=False) as file:
        return dict(file)


@pytest.mark.parametrize("case", mxnet_cases.CASES, ids=lambda case: case.name)
def test_an_operator_gives_what_mxnet_gives(case, results):
    arrays = case.arrays()
    names = [f"in{i}" for i in range(len(arrays))]
    symbol = getattr(sym, case.op)(*map(sym.var, names), name="node", **case.attrs)
    given = dict(zip(names, map(Tensor, arrays), strict=True))
    aux = {name: given.pop(name) for name in names[len(names) - case.aux :]}
    executor = symbol.bind(CPU, given, grad_req=case.requests(), aux_states=aux)

    outputs = executor.forward(is_train=True)
    heads = [Tensor(case.cotangent(out.shape)) for out in outputs]
    if any(out.requires_grad for out in outputs):
        executor.backward(heads)

    ours = {f"out{i}": out for i, out in enumerate(outputs)}
    ours.update({f"grad-{name}": value for name, value in executor.grad_dict.items()})
    ours.update({f"aux-{name}": value for name, value in executor.aux_dict.items()})
    wanted = {
        k.partition("/")[2]: v for k, v in results.items() if k.partition("/")[0] == case.name
    }
    assert ours.keys() == wanted.keys()
    for key, value in wanted.items():
        np.testing.assert_allclose(ours[key].asnumpy(), value, 1e-4, 1e-4, err_msg=key)
