"""Random networks of layers: chains with skips and shared parameters."""

from hypothesis import strategies as st

from hpctrain.parallel.stages import Layer, Network

SMALL = st.integers(0, 6)


@st.composite
def networks(draw, most=7):
    """Layers that read any earlier values, with whole numbers as times and bytes."""
    count = draw(st.integers(1, most))
    layers, nbytes = [], {"p": 1, "q": 3, "r": 5, "x": 2}
    for place in range(count):
        before = [f"v{i}" for i in range(place)] + ["x"]
        nbytes[f"v{place}"] = draw(SMALL)
        layers.append(
            Layer(
                f"layer {place}",
                tuple(draw(st.lists(st.sampled_from(before), max_size=3, unique=True))),
                (f"v{place}",),
                tuple(draw(st.lists(st.sampled_from("pqr"), max_size=2, unique=True))),
                draw(SMALL),
                draw(SMALL),
            )
        )
    return Network(tuple(layers), nbytes)
