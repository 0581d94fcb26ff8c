"""Cases of conv. PyTorch has channels first, so arrays are turned on the way in and out."""

from op_cases import Case


def first(x):
    """Turn (N, *space, C) into (N, C, *space)."""
    return x.movedim(-1, 1)


def last(x):
    """Turn it back."""
    return x.movedim(1, -1)


def conv(name, x, weight, bias=True, order=2, **options):
    """Make a case of a convolution; options are those that both sides have."""
    space = len(x) - 2

    def ours(ops, *arrays):
        return ops.conv(*arrays, **options)

    def torch(t, x, w, *b):
        function = getattr(t.nn.functional, f"conv{space}d")
        return last(function(first(x), first(w), *b, **options))

    return Case(name, [x, weight, *[weight[:1]] * bias], ours, torch, order, loose=5)


def transpose(name, x, weight, groups=1, **options):
    """Make a case of a transposed convolution."""
    space = len(x) - 2

    def ours(ops, *arrays):
        return ops.conv_transpose(*arrays, groups=groups, **options)

    def torch(t, x, w, b):
        function = getattr(t.nn.functional, f"conv_transpose{space}d")
        return last(function(first(x), first(w), b, groups=groups, **options))

    return Case(name, [x, weight, (weight[-1] * groups,)], ours, torch, loose=5)


def asymmetric(t, x, w):
    """Pad each side by itself, then convolve."""
    return last(t.nn.functional.conv2d(t.nn.functional.pad(first(x), (0, 1, 2, 0)), first(w)))


CASES = [
    conv("conv_1d", (2, 9, 3), (4, 3, 3), padding=1),
    conv("conv_1d_one_channel", (2, 20, 1), (3, 5, 1), padding=2),
    conv("conv_2d", (2, 6, 5, 3), (4, 3, 3, 3), padding=1),
    conv("conv_2d_no_bias", (2, 6, 5, 3), (4, 3, 3, 3), bias=False),
    conv("conv_1x1", (2, 6, 5, 3), (4, 1, 1, 3)),
    conv("conv_1x1_stride", (2, 6, 5, 3), (4, 1, 1, 3), stride=2),
    conv("conv_stride", (2, 7, 6, 3), (4, 3, 3, 3), stride=2, padding=1),
    conv("conv_strides", (1, 9, 8, 2), (3, 4, 2, 2), stride=(3, 1), padding=(2, 1)),
    conv("conv_dilation", (2, 9, 8, 2), (3, 3, 2, 2), dilation=(2, 3), padding=(2, 0)),
    conv("conv_groups", (2, 5, 6, 6), (4, 3, 3, 3), groups=2, padding=1),
    conv("conv_groups_stride", (2, 5, 6, 6), (9, 3, 3, 2), groups=3, padding=1, stride=2),
    conv("conv_depthwise", (2, 5, 6, 4), (4, 3, 3, 1), groups=4, padding=1),
    conv("conv_depthwise_stride", (2, 6, 7, 4), (4, 3, 2, 1), groups=4, padding=1, stride=2),
    conv("conv_depthwise_more", (2, 5, 6, 2), (4, 3, 3, 1), groups=2, padding=1),
    conv("conv_3d", (2, 4, 5, 3, 2), (3, 3, 3, 3, 2), padding=1),
    conv("conv_3d_stride", (1, 5, 4, 6, 2), (3, 2, 3, 2, 2), stride=2, padding=1),
    Case(
        "conv_pairs", [(2, 6, 5, 3), (4, 3, 3, 3)],
        lambda ops, x, w: ops.conv(x, w, padding=((2, 0), (0, 1))), asymmetric, loose=5,
    ),
    transpose("conv_transpose_1d", (2, 5, 3), (3, 4, 2), stride=2, padding=1),
    transpose("conv_transpose_2d", (2, 4, 3, 3), (3, 3, 3, 2), stride=1, padding=1),
    transpose(
        "conv_transpose_options", (2, 4, 3, 4), (4, 3, 3, 2), groups=2,
        stride=(2, 3), padding=(1, 2), output_padding=1, dilation=(1, 2),
    ),
    transpose("conv_transpose_3d", (1, 3, 2, 3, 2), (2, 2, 2, 2, 3), stride=2),
]  # fmt: skip
