"""Graphs as text for Graphviz."""

import re

import numpy as np
import pytest

from hpctrain import ops
from hpctrain.autograd import Spec, Tensor, assign
from hpctrain.graph.capture import capture
from hpctrain.graph.dot import dot
from hpctrain.graph.marks import marked

pytestmark = pytest.mark.serial
F4 = np.dtype(np.float32)


def small():
    weight = Tensor(np.ones((3, 2), F4))

    def function(x):
        with marked(ctx_group='a "quoted" \\ name'):
            y = ops.transpose(x @ weight, (1, 0))
        assign(weight, weight * 2.0)
        return y

    return capture(function, [Spec((4, 3), F4)], [weight])


def test_every_operation_and_every_value_that_is_read_is_there():
    graph = small()

    text = dot(graph, "small")

    assert text.startswith('digraph "small" {') and text.endswith("}\n")
    boxes = re.findall(r'^  n\d+ \[label="(\w+)', text, re.MULTILINE)
    assert boxes == [node.row.name for node in graph.nodes]
    edges = sum(len(node.inputs) for node in graph.nodes) + len(graph.outputs)
    assert text.count("->") == edges + len(graph.assigns)
    assert 'label="float32[4,3]"' in text


def test_labels_are_escaped():
    text = dot(small(), 'a "title"\nof two lines')

    assert r'digraph "a \"title\"\nof two lines" {' in text
    assert r"ctx_group a \"quoted\" \\ name" in text
    for line in text.splitlines():
        assert len(re.findall(r'(?<!\\)(?:\\\\)*"', line)) % 2 == 0, line
