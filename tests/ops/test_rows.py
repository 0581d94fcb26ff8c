"""What every row of the table promises, tested on every call that the cases make."""

import numpy as np
import pytest
from op_cases import ELSEWHERE, every_case
from spy import Spy

from hpctrain import ops
from hpctrain.autograd import PRIMITIVES, Spec, Tensor, grad, record

pytestmark = pytest.mark.serial
LIMIT = {"float64": 1e-11, "float32": 2e-5}


def calls_of(dtype):
    """Run all cases forward and backward in ``dtype``; return one call of each kind."""
    spy = Spy()
    with spy.watch():
        for _, case in every_case():
            arrays = [a.astype(dtype) if a.dtype.kind == "f" else a for a in case.arrays()]
            tensors = [Tensor(a) for a in arrays]
            floating = [t for t in tensors if t.dtype.kind == "f"]
            for tensor in floating:
                tensor.attach_grad()
            with record():
                outputs = case.ours(ops, *tensors)
            outputs = outputs if isinstance(outputs, tuple) else (outputs,)
            heads = [o for o in outputs if o.requires_grad and o.dtype.kind == "f"]
            if heads and case.order:
                grad(heads, floating, create_graph=True)
    return list({call.key(): call for call in spy.calls}.values())


@pytest.fixture(scope="module", params=["float64", "float32"])
def calls(request):
    return calls_of(request.param)


def poisoned(specs):
    """Allocate arrays whose bytes are all ones: not a number, -1, or 255."""
    arrays = [np.empty(s.shape, s.dtype) for s in specs]
    for array in arrays:
        array.reshape(-1).view(np.uint8)[...] = 0xFF
    return arrays


def run(row, arrays, attrs, outs=None):
    """Run the kernel into poisoned outputs, with inputs that cannot be written."""
    for array in arrays:
        array.flags.writeable = outs is not None
    specs = [Spec.of(a) for a in arrays]
    results = poisoned(row.infer(specs, **attrs))
    for place, out in (outs or {}).items():
        results[place] = out
    scratch = poisoned(row.scratch(specs, **attrs)) if row.scratch else []
    row.kernel(np, arrays, results, scratch, **attrs)
    return results


def assert_close(have, want, what):
    assert have.shape == want.shape, what
    assert have.dtype == want.dtype, what
    if have.dtype.kind == "f":
        limit = LIMIT[have.dtype.name]
        scale = np.abs(want[np.isfinite(want)]).max(initial=1)
        np.testing.assert_allclose(have, want, limit, limit * scale, err_msg=what)
    else:
        np.testing.assert_array_equal(have, want, err_msg=what)


def say(call):
    return f"{call.row.name} {call.attrs} {[str(Spec.of(a)) for a in call.arrays]}"


def transposed(array):
    return np.array(array, order="F")


def strided(array):
    wide = np.repeat(array[..., None], 2, axis=-1)
    wide[..., 1] = 99 if array.dtype.kind != "b" else True
    return wide[..., 0]


def one_row_broadcast(array):
    return np.broadcast_to(array[:1], array.shape) if array.ndim else array


def test_every_row_is_in_a_case(calls):
    missing = set(PRIMITIVES) - {call.row.name for call in calls} - ELSEWHERE
    assert not missing, f"rows that no case calls: {sorted(missing)}"


def test_kernels_define_every_element_of_their_outputs(calls):
    for call in calls:
        got = run(call.row, [a.copy() for a in call.arrays], call.attrs)
        for have, want in zip(got, call.results, strict=True):
            assert_close(have, want, say(call))


@pytest.mark.parametrize("stride", [transposed, strided, one_row_broadcast])
def test_kernels_take_inputs_of_any_strides(calls, stride):
    for call in calls:
        moved = [stride(a) for a in call.arrays]
        want = run(call.row, [np.array(m, order="C") for m in moved], call.attrs)
        got = run(call.row, moved, call.attrs)
        for have, ours in zip(got, want, strict=True):
            assert_close(have, ours, f"{stride.__name__} {say(call)}")


def test_specs_are_those_of_the_results(calls):
    for call in calls:
        assert call.specs == [Spec.of(r) for r in call.results], say(call)


def test_float32_stays_float32(calls):
    for call in calls:
        floats = {a.dtype for a in call.arrays if a.dtype.kind == "f"}
        if floats != {np.dtype(np.float32)} or "dtype" in call.attrs:
            continue
        specs = [Spec.of(a) for a in call.arrays]
        made = [
            *call.specs,
            *(call.row.scratch(specs, **call.attrs) if call.row.scratch else []),
        ]
        assert np.float64 not in {s.dtype for s in made}, say(call)


def test_views_share_memory_and_equal_the_kernel(calls):
    for call in calls:
        if call.row.view is None:
            continue
        x = call.arrays[0].copy()
        seen = call.row.view(x, **call.attrs)
        assert seen is not None, say(call)
        assert seen.size == 0 or np.shares_memory(seen, x), say(call)
        assert_close(seen, run(call.row, [x], call.attrs)[0], say(call))


def test_outputs_may_be_written_over_the_inputs_that_the_row_names(calls):
    for call in calls:
        for place, result in call.row.inplace:
            arrays = [a.copy() for a in call.arrays]
            if Spec.of(arrays[place]) != call.specs[result]:
                continue
            got = run(call.row, arrays, call.attrs, {result: arrays[place]})
            for have, want in zip(got, call.results, strict=True):
                assert_close(have, want, f"{place} over {result}: {say(call)}")
