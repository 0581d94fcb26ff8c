"""Control flow: eager execution against NumPy, captured graphs against eager execution."""

import numpy as np
import pytest
from loops import PROGRAMS, SHAPES, tensors

from hpctrain import control, nn, ops
from hpctrain.autograd import Tensor, assign, backward, check_gradients, record
from hpctrain.errors import ConfigError, ShapeError
from hpctrain.graph.cached import CachedGraph
from hpctrain.symbol import nd

pytestmark = pytest.mark.serial
SEEDS = range(6)
every_program = pytest.mark.parametrize("name", PROGRAMS)


def values_and_gradients(function, inputs, leaves, used=None):
    for tensor in (*inputs, *leaves):
        tensor.attach_grad()
    with record():
        outputs = function(*inputs)
    heads = [
        o for i, o in enumerate(outputs) if o.requires_grad and (used is None or i == used)
    ]
    weights = [Tensor(np.cos(np.arange(o.size)).reshape(o.shape)) for o in heads]
    backward(heads, weights)
    return [o.asnumpy() for o in outputs] + [t.grad.asnumpy() for t in (*inputs, *leaves)]


def assert_equal(have, want):
    for a, b in zip(have, want, strict=True):
        np.testing.assert_array_equal(a, b)


@every_program
@pytest.mark.parametrize("seed", SEEDS)
def test_eager_loops_are_those_of_numpy(name, seed):
    ours, plain = PROGRAMS[name]
    given = tensors(seed, *SHAPES)

    have, want = ours(*given), plain(*(t.asnumpy() for t in given))

    for a, b in zip(have, want, strict=True):
        np.testing.assert_allclose(a.asnumpy(), b, 1e-12, 1e-12)


@every_program
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("used", [None, 0, 1])
def test_a_captured_program_gives_the_bits_of_eager_execution(name, seed, used):
    ours, _ = PROGRAMS[name]
    x, h, w, b = tensors(seed, *SHAPES)

    def function(x, h):
        first = ours(x, h, w, b)
        return (*first[:1], first[1] + ops.sum(w * w) * b[0], *first[2:])

    eager = values_and_gradients(function, [x, h], [w, b], used)
    compiled = values_and_gradients(CachedGraph(function, [w, b]), [x, h], [w, b], used)

    assert_equal(compiled, eager)


@every_program
@pytest.mark.parametrize("seed", range(3))
def test_gradients_are_those_of_finite_differences(name, seed):
    ours, _ = PROGRAMS[name]
    given = tensors(seed, *SHAPES)

    check_gradients(ours, [t.asnumpy() for t in given], 1)
    check_gradients(CachedGraph(ours, []), [t.asnumpy() for t in given], 1)


@every_program
def test_inference_and_float32_give_the_same_bits(name):
    ours, _ = PROGRAMS[name]
    given = [Tensor(t.asnumpy().astype(np.float32)) for t in tensors(9, *SHAPES)]
    x, h, w, b = given

    want = [t.asnumpy() for t in ours(*given)]
    have = CachedGraph(lambda x, h: ours(x, h, w, b), [w, b])(x, h)

    assert_equal([t.asnumpy() for t in have], want)


@pytest.mark.parametrize("seed", range(4))
def test_one_capture_serves_all_trip_counts(seed):
    ours, _ = PROGRAMS["halving"]
    x, h, w, b = tensors(seed, *SHAPES)
    call = CachedGraph(lambda x, h: ours(x, h, w, b), [w, b])
    counts = set()

    for scale in (0, 1e-4, 0.1, 10):
        inputs = [x, Tensor(h.asnumpy() * scale)]
        have = values_and_gradients(call, inputs, [w, b])
        want = values_and_gradients(lambda x, h: ours(x, h, w, b), inputs, [w, b])
        counts.add(int(have[3]))
        assert_equal(have, want)

    assert call.captures == 1
    assert 0 in counts
    assert len(counts) > 2


def test_a_choice_is_made_at_each_run():
    ours, _ = PROGRAMS["chosen"]
    x, h, w, b = tensors(1, *SHAPES)
    call = CachedGraph(lambda x, h: ours(x, h, w, b), [w, b])

    for sign in (1, -1, 1):
        inputs = [x, Tensor(np.abs(h.asnumpy()) * sign)]
        assert_equal(
            values_and_gradients(call, inputs, [w, b]),
            values_and_gradients(lambda x, h: ours(x, h, w, b), inputs, [w, b]),
        )

    assert call.captures == 1


def test_only_the_branch_taken_is_run():
    """The other one would raise: its index is out of range."""
    table = Tensor(np.arange(3.0))

    def look(i):
        far = control.cond(i < 3, lambda: ops.take(table, i), lambda: i.astype("float64"))
        return far * 2

    call = CachedGraph(look, [table])

    assert [float(call(Tensor(np.array(i)))) for i in (2, 7)] == [4.0, 14.0]


def test_the_same_tensor_may_be_given_twice():
    (h,) = tensors(3, (4,))

    def function(h):
        y, (a, b) = control.foreach(
            lambda x, s: (s[0] * x, [s[1] + x, s[0] * s[1]]), ops.stack([h, h, h]), [h, h]
        )
        return ops.sum(y, 0) + h, a * b

    have = values_and_gradients(CachedGraph(function, []), [h], [])
    want = values_and_gradients(function, [h], [])
    for a, b in zip(have, want, strict=True):  # sums in another order
        np.testing.assert_allclose(a, b, 1e-13)
    check_gradients(CachedGraph(function, []), [h.asnumpy()])


def test_a_state_of_zeros_gets_the_gradient_of_what_flows_into_it():
    """At first no gradient flows through the state, after a step it does."""
    w, x = tensors(4, (3,), (6, 3))

    def function(x):
        y, s = control.foreach(
            lambda p, s: (s * p, ops.tanh(s + w * p)), x, Tensor(np.zeros(3))
        )
        return y, s

    assert_equal(
        values_and_gradients(CachedGraph(function, [w]), [x], [w]),
        values_and_gradients(function, [x], [w]),
    )


class Noisy(nn.HybridBlock):
    """Dropout, batch normalisation and a layer in the body of a loop, in MXNet's words."""

    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.5)
        self.norm = nn.BatchNorm(in_channels=3)
        self.layer = nn.Dense(3, in_units=3)

    def hybrid_forward(self, F, x, h):  # noqa: N803
        def body(part, state):
            new = F.tanh(self.layer(self.norm(self.drop(part + state[0]))))
            return [new, part], [new]

        outputs, states = F.contrib.foreach(body, x, [h])
        return outputs[0], states[0]


def test_state_that_the_body_assigns_is_carried_along():
    x, h = (Tensor(t.asnumpy().astype(np.float32)) for t in tensors(5, (4, 8, 3), (8, 3)))
    results = []
    for hybrid in (False, True):
        net = Noisy().initialize(seed=1)
        if hybrid:
            net.hybridize()
        parameters = [p.data() for p in net.collect_params().values()]
        trained = [p for p in parameters if p.grad_req != "null"]
        found = []
        for _ in range(3):
            with record():
                y, last = net(x, h)
            backward([y, last], [y * 2, last])
            found += [y.asnumpy(), *(p.grad.asnumpy().copy() for p in trained)]
        results.append(found + [p.asnumpy().copy() for p in parameters])

    assert_equal(results[1], results[0])
    assert not np.array_equal(results[0][0], results[0][1 + len(trained)])


def test_a_branch_may_assign_state():
    count = Tensor(np.zeros(2))

    def function(x):
        def yes():
            assign(count, count + x)
            return count * 1.0

        return control.cond(ops.sum(x) > 0, yes, lambda: x) + count

    call = CachedGraph(function, [count])
    have = [call(Tensor(np.full(2, v))).asnumpy()[0] for v in (1.0, -5.0, 2.0)]

    assert have == [2.0, -4.0, 6.0]
    assert count.asnumpy().tolist() == [3.0, 3.0]


def test_nd_has_them_too():
    y, s = nd.contrib.foreach(lambda x, s: (x * s, s + x), nd.array([1, 2, 3]), nd.array([1]))

    assert (y.asnumpy().ravel().tolist(), float(s)) == ([1.0, 4.0, 12.0], 7.0)


def test_python_control_flow_goes_on_in_eager_execution():
    def body(x, s):
        return (x, s + x) if float(x) > 0 else (-x, s)

    y, s = control.foreach(body, Tensor([1.0, -2.0, 3.0]), Tensor(0.0))

    assert (y.asnumpy().tolist(), float(s)) == ([1.0, 2.0, 3.0], 4.0)


@pytest.mark.parametrize("wrap", [lambda f: f, lambda f: CachedGraph(f, [])])
def test_what_does_not_fit_is_said(wrap):
    x = Tensor(np.ones((3, 2)))

    def run(function):
        with pytest.raises((ShapeError, ConfigError)) as found:
            wrap(function)(x)
        return found.value.args[0]

    assert "new states float64[1]" in run(
        lambda x: control.foreach(lambda p, s: (p, s[:1]), x, x[0])[0]
    )
    assert "same number of steps" in run(
        lambda x: control.foreach(lambda p, s: (p[0], s), [x, x[:2]], x[0])[0]
    )
    assert "max_iterations=None" in run(
        lambda x: control.while_loop(lambda s: s[0] > 1, lambda s: (s, s), x[0])[0]
    )
    assert "predicate float64[3,2]" in run(lambda x: control.cond(x, lambda: x, lambda: x))


def test_branches_that_differ_are_refused_in_a_graph():
    call = CachedGraph(lambda x: control.cond(x[0] > 0, lambda: x, lambda: x[:1]), [])

    with pytest.raises(ShapeError, match="needed outputs that are alike"):
        call(Tensor(np.ones(2)))


class Steps(nn.HybridBlock):
    """A loop with a layer in it, whose values need not be kept."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Dense(3, in_units=3)

    def forward(self, x, h):
        def body(part, state):
            new = ops.tanh(self.layer(part * state) + state)
            return new, new

        y, last = control.foreach(body, ops.exp(x), h)
        return ops.sum(y, 0) * last


@pytest.mark.parametrize("again", [False, True])
def test_a_loop_may_be_run_again_for_the_backward_part(again):
    x, h = (Tensor(t.asnumpy().astype(np.float32)) for t in tensors(6, (4, 8, 3), (8, 3)))
    found = []
    for hybrid in (False, True):
        net = nn.HybridSequential()
        inner = nn.recompute(Steps(), again)
        net.first, net.second = inner, Steps()
        net.forward = lambda x, h, net=net: net.second(x, net.first(x, h))
        net.initialize(seed=4)
        net.hybridize(hybrid)
        with record():
            y = net(x, h)
        y.backward()
        grads = [p.grad().asnumpy() for p in net.collect_params().values()]
        found.append([y.asnumpy(), *grads])

    assert_equal(found[1], found[0])
