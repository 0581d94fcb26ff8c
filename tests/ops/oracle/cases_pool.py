"""Cases of pool."""

from op_cases import Case


def first(x):
    """Turn (N, *space, C) into (N, C, *space)."""
    return x.movedim(-1, 1)


def last(x):
    """Turn it back."""
    return x.movedim(1, -1)


def shuffled(*shape):
    """Numbers far apart, so that finite differences do not move a maximum."""

    def make(rng):
        size = 1
        for n in shape:
            size *= n
        return rng.permutation(size).reshape(shape) / 8.0

    return make


def largest(name, x, *args, order=2):
    """Make a case of max pooling."""
    space = len(x) - 2

    def torch(t, a):
        return last(getattr(t.nn.functional, f"max_pool{space}d")(first(a), *args))

    return Case(name, [shuffled(*x)], lambda ops, a: ops.max_pool(a, *args)[0], torch, order)


def average(name, x, *args, include=True):
    """Make a case of average pooling."""
    space = len(x) - 2

    def torch(t, a):
        function = getattr(t.nn.functional, f"avg_pool{space}d")
        return last(function(first(a), *args, count_include_pad=include))

    return Case(
        name, [x], lambda ops, a: ops.avg_pool(a, *args, count_include_pad=include), torch
    )


def taken(ops, x, index):
    """Take the element of each window that the index names."""
    attrs = {"kernel": (3, 3), "stride": (2, 2), "padding": ((1, 1), (1, 1))}
    return ops.pool.apply("max_pool_take", x, index, **attrs)


def places(rng):
    """Taps inside the image: the middle ones."""
    return rng.randint(4, 5, (2, 3, 3, 2)).astype("uint8")


def ties(rng):
    """Whole numbers, many of them equal, as after a ReLU."""
    return rng.randint(-1, 1, (3, 6, 6, 4)).astype(float)


CASES = [
    largest("max_pool_1d", (2, 9, 3), 2),
    largest("max_pool_2d", (2, 6, 8, 3), 2),
    largest("max_pool_overlap", (2, 7, 8, 3), 3, 2, 1),
    largest("max_pool_sides", (2, 7, 8, 3), (2, 3), (2, 1), (0, 1)),
    largest("max_pool_3d", (2, 4, 6, 4, 2), 2),
    largest("max_pool_3d_overlap", (1, 5, 4, 6, 2), 3, 2, 1),
    Case(
        "max_pool_ties", [ties], lambda ops, a: ops.max_pool(a, 3, 2, 1)[0],
        lambda t, a: last(t.nn.functional.max_pool2d(first(a), 3, 2, 1)), order=0,
    ),
    Case(
        "max_pool_squared", [shuffled(2, 5, 6, 2)],
        lambda ops, a: ops.square(ops.max_pool(a, 3, 2, 1)[0]),
        lambda t, a: last(t.nn.functional.max_pool2d(first(a), 3, 2, 1)) ** 2,
        order=3, loose=10,
    ),
    Case(
        "max_pool_take", [(2, 5, 6, 2), places], taken, lambda t, x, i: x[:, ::2, ::2],
    ),
    Case(
        "avg_pool_squared", [(2, 5, 6, 2)],
        lambda ops, a: ops.square(ops.avg_pool(a, 3, 2, 1)),
        lambda t, a: last(t.nn.functional.avg_pool2d(first(a), 3, 2, 1)) ** 2,
    ),
    average("avg_pool_1d", (2, 9, 3), 2),
    average("avg_pool_2d", (2, 6, 8, 3), 2),
    average("avg_pool_overlap", (2, 7, 8, 3), 3, 2, 1),
    average("avg_pool_inside", (2, 7, 8, 3), 3, 2, 1, include=False),
    average("avg_pool_3d", (1, 4, 5, 6, 2), 3, 2, 1, include=False),
    Case(
        "global_mean", [(2, 3, 4, 5)],
        lambda ops, a: ops.global_mean(a), lambda t, a: a.mean((1, 2)),
    ),
]  # fmt: skip
