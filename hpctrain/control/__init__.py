"""Control flow that depends on the data: `foreach`, `while_loop`, `cond`, in MXNet's words.

Python's own ``for``, ``while`` and ``if`` are free in eager execution, but a captured graph
holds them as they went at capture. These three stay what they are: a loop is one node of the
graph, with a graph of its own for its body, captured once and run for each step.

Eagerly they are Python loops over ordinary operations, recorded on the tape one by one
(`eager`). While a graph is captured, `step` captures body or branch together with its
gradient: tensors from outside that it reads become inputs of the node, and state that it
assigns (running means, random streams) is carried from step to step. `loop` and `branch` make
rows of these: their kernels are small interpreters that run the inner plans, in working memory
that the outer plan gives them. What a step's gradient needs is kept in arrays with one row
for each step; the backward row goes through them in reverse. Sums over the steps go on from
what is known already, one term after the other, as the tape would add them. So the results
are those of eager execution, bit for bit, but for the sign of zeros that stand for gradients
nobody has asked for, and for a tensor that a loop is given twice, whose gradients it adds up
apart.
"""

from collections.abc import Callable, Sequence
from typing import Any

from hpctrain.autograd import Tensor
from hpctrain.autograd.mode import current
from hpctrain.control import branch, eager, loop
from hpctrain.control.nested import pack, unpack
from hpctrain.errors import ConfigError, ShapeError
from hpctrain.graph.capture import Capture

__all__ = ["cond", "foreach", "while_loop"]


def foreach(body: Callable[..., Any], data: Any, init_states: Any) -> tuple[Any, Any]:
    """Run ``body`` over the first axis of ``data`` and carry states along.

    Parameters
    ----------
    body : callable ``(slices, states) -> (outputs, new_states)``
        Slices and outputs are tensors or lists of tensors, like ``data`` and as it likes;
        states have the form, shapes and dtypes of ``init_states``. It may read any tensor
        from outside, such as parameters.
    data : Tensor or nested list of Tensor, shape (T, ...)
    init_states : Tensor or nested list of Tensor

    Returns
    -------
    outputs : like those of ``body``, shape (T, ...)
        Of all steps.
    states : like ``init_states``
        After the last step.

    Raises
    ------
    ShapeError
        If lengths differ or are 0, or states change their form.

    Examples
    --------
    >>> sums, total = foreach(lambda x, s: (x + s, x + s), Tensor([1.0, 2.0, 3.0]), Tensor(0.0))
    >>> sums.asnumpy().tolist()
    [1.0, 3.0, 6.0]
    """
    slices: list[Any] = []
    states: list[Any] = []
    data_form, state_form = pack(data, slices), pack(init_states, states)
    lengths = {t.shape[:1] for t in slices}
    if len(lengths) != 1 or lengths & {(), (0,)}:
        raise ShapeError(
            f"foreach: got data of {[str(t.spec) for t in slices]}, needed one or more with "
            "the same number of steps in front"
        )
    forms: list[Any] = []

    def step(parts: Sequence[Any], carried: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        given = unpack(state_form, iter(carried))
        outputs, new = body(unpack(data_form, iter(parts)), given)
        return _flat("foreach", outputs, new, forms)

    run = loop.foreach if _captured() else eager.foreach
    stacks, final = run(step, slices, states)
    return unpack(forms[0], iter(stacks)), unpack(state_form, iter(final))


def while_loop(
    cond: Callable[..., Any],
    func: Callable[..., Any],
    loop_vars: Any,
    max_iterations: int | None = None,
) -> tuple[Any, Any]:
    """Run ``func`` as long as ``cond`` holds, but at most ``max_iterations`` times.

    Parameters
    ----------
    cond : callable ``(*loop_vars) -> Tensor`` of one element
    func : callable ``(*loop_vars) -> (outputs, new_loop_vars)``
        The new variables have the shapes and dtypes of the old ones.
    loop_vars : Tensor or nested list of Tensor
    max_iterations : int
        Also the length of the outputs, so that shapes do not depend on the data.

    Returns
    -------
    outputs : like those of ``func``, shape (max_iterations, ...)
        Zeros in the rows of steps that did not happen.
    loop_vars : like ``loop_vars``
        At the end.
    """
    if max_iterations is None or max_iterations < 1:
        raise ConfigError(f"while_loop: got max_iterations={max_iterations}, needed 1 or more")
    states: list[Any] = []
    form = pack(loop_vars, states)
    if not states:
        raise ShapeError("while_loop: got no loop variables, needed one or more tensors")
    forms: list[Any] = []

    def spread(carried: Sequence[Any]) -> Sequence[Any]:
        given = unpack(form, iter(carried))
        return given if isinstance(given, list | tuple) else (given,)

    def step(_: Sequence[Any], carried: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        outputs, new = func(*spread(carried))
        return _flat("while_loop", outputs, new, forms)

    run = loop.while_loop if _captured() else eager.while_loop
    stacks, final = run(lambda carried: cond(*spread(carried)), step, states, max_iterations)
    return unpack(forms[0], iter(stacks)), unpack(form, iter(final))


def cond(
    pred: Any,
    then_func: Callable[..., Any],
    else_func: Callable[..., Any],
    inputs: Any = (),
) -> Any:
    """Return what one of two functions gives; only that one is run.

    Parameters
    ----------
    pred : Tensor of one element, or callable ``(*inputs) -> Tensor``
    then_func, else_func : callable ``(*inputs) -> Tensor or nested list of Tensor``
        Both give the same form, shapes and dtypes.
    inputs : Tensor or sequence of Tensor
        For functions with arguments; others read tensors from outside.

    Notes
    -----
    A parameter that only the function not taken reads gets a gradient of zeros in a graph,
    and eagerly none at all: ``grad`` stays as it was.
    """
    given = (inputs,) if isinstance(inputs, Tensor) else tuple(inputs)
    flag = pred(*given) if callable(pred) else pred
    if not isinstance(flag, Tensor) or flag.size != 1:
        what = flag.spec if isinstance(flag, Tensor) else repr(flag)
        raise ShapeError(f"cond: got the predicate {what}, needed a tensor of one element")
    if not _captured():
        return (then_func if flag else else_func)(*given)
    forms: list[Any] = []

    def flat(function: Callable[..., Any]) -> list[Any]:
        outputs: list[Any] = []
        forms.append(pack(function(*given), outputs))
        return outputs

    outputs = branch.cond(flag, lambda: flat(then_func), lambda: flat(else_func))
    return unpack(forms[0], iter(outputs))


def _captured() -> bool:
    return isinstance(current().interpreter, Capture)


def _flat(where: str, outputs: Any, new: Any, forms: list[Any]) -> tuple[list[Any], list[Any]]:
    """Return outputs and new states as lists; put the form of the outputs into ``forms``."""
    tensors: list[Any] = []
    states: list[Any] = []
    forms[:] = [pack([] if outputs is None else outputs, tensors)]
    pack(new, states)
    return tensors, states
