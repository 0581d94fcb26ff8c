"""How long the operations of a graph take here: each is run on made-up arrays of its shapes."""

from time import perf_counter
from typing import Any

import numpy as np

from hpctrain import backend
from hpctrain.autograd import Spec
from hpctrain.backend import CPU, Device
from hpctrain.graph.cuts import node_seconds
from hpctrain.graph.ir import Graph, Node

__all__ = ["made_up_array", "measured_seconds"]

REPEATS = 3  # of which the fastest counts; the first one warms up kernels and caches


def measured_seconds(graph: Graph, device: Device = CPU) -> list[float]:
    """Return the time of each node of a graph.

    Parameters
    ----------
    graph : Graph
        A forward part. Its leaves need no arrays.
    device : Device

    Returns
    -------
    list of float, s
        0 for views. Nodes that are alike are measured once. Nodes with inner plans, whose time
        depends on the data, are estimated.

    Notes
    -----
    Needs memory for the inputs and outputs of one node at a time.
    """
    known: dict[Any, float] = {}
    found = []
    for node in graph.nodes:
        specs = tuple(graph.specs[v] for v in node.inputs)
        key = node.row.name, specs, node.attrs
        if key not in known:
            known[key] = _seconds(graph, node, specs, device)
        found.append(known[key])
    return found


def _seconds(graph: Graph, node: Node, specs: tuple[Spec, ...], device: Device) -> float:
    if node.row.view is not None:
        return 0.0
    if node.row.kind == "call" or not node.row.pure:
        return node_seconds(graph, node)
    attrs = dict(node.attrs)
    ins = [made_up_array(spec, device) for spec in specs]
    outs = [backend.empty(s.shape, s.dtype, device) for s in _specs(graph, node)]
    wanted = node.row.scratch(specs, **attrs) if node.row.scratch is not None else ()
    scratch = [backend.empty(s.shape, s.dtype, device) for s in wanted]
    times = []
    for _ in range(REPEATS + 1):
        began = perf_counter()
        node.row.kernel(device.module, ins, outs, scratch, **attrs)
        backend.to_host(outs[0].reshape(-1)[:1])  # a device must have come to its end
        times.append(perf_counter() - began)
    return min(times[1:])


def _specs(graph: Graph, node: Node) -> list[Spec]:
    return [graph.specs[v] for v in node.outputs]


def made_up_array(spec: Spec, device: Device) -> Any:
    """Return small numbers; whole ones are zeros, which are right as labels and places."""
    if spec.dtype.kind == "f":
        rng = np.random.default_rng(0)
        array = rng.uniform(0.1, 1.0, spec.shape).astype(spec.dtype)
    else:
        array = np.zeros(spec.shape, spec.dtype)
    return backend.to_device(array, device)
