"""A graph as text for Graphviz."""

from hpctrain.graph.ir import Graph, describe_attrs

__all__ = ["dot"]

_COLOURS = {
    "elementwise": "#dbe9f6", "movement": "#f2f2f2", "reduce": "#fde6ce", "contract": "#d5ead3",
    "window": "#d5ead3", "normalize": "#fff2cc", "gather": "#e6dcf0", "random": "#f6d9e0",
    "recurrent": "#d5ead3", "call": "#ffffff",
}  # fmt: skip


def dot(graph: Graph, title: str = "graph") -> str:
    """Return ``graph`` in the language of Graphviz: ``dot -Tsvg`` draws it.

    Parameters
    ----------
    graph : Graph
    title : str

    Returns
    -------
    str
        Boxes are operations, ellipses inputs and leaves; edges show shapes.
    """
    lines = [f"digraph {_quoted(title)} {{", "  node [fontname=Helvetica fontsize=10]"]
    lines.append("  edge [fontname=Helvetica fontsize=8]")
    source: dict[int, str] = {}
    kinds = (("input", graph.inputs), ("leaf", graph.leaves), ("constant", graph.constants))
    used = {v for node in graph.nodes for v in node.inputs}.union(graph.kept())
    for kind, values in kinds:
        for value in values:
            source[value] = f"v{value}"
            if value in used:
                text = f"{kind} {graph.names.get(value) or f'%{value}'}\n{graph.specs[value]}"
                lines.append(f"  v{value} [label={_quoted(text)}]")
    for place, node in enumerate(graph.nodes):
        source.update(dict.fromkeys(node.outputs, f"n{place}"))
        marks = "".join(f"\n{name} {value}" for name, value in node.marks)
        text = f"{node.row.name}{describe_attrs(node.attrs)}{marks}"
        colour = _COLOURS.get(node.row.kind, "#ffffff")
        style = f'shape=box style=filled fillcolor="{colour}"'
        lines.append(f"  n{place} [label={_quoted(text)} {style}]")
        for value in node.inputs:
            shape = _quoted(str(graph.specs[value]))
            lines.append(f"  {source[value]} -> n{place} [label={shape}]")
    for place, value in enumerate(graph.outputs):
        lines.append(f"  o{place} [label={_quoted(f'output {place}')} shape=plaintext]")
        lines.append(
            f"  {source[value]} -> o{place} [label={_quoted(str(graph.specs[value]))}]"
        )
    for leaf, value in graph.assigns:
        lines.append(f"  {source[value]} -> {source[leaf]} [style=dashed]")
    return "\n".join([*lines, "}", ""])


def _quoted(text: str) -> str:
    """Return a quoted string of the language, with line breaks as it writes them."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
