import itertools

import pytest

from hpctrain.comm.mesh import Mesh, Shape, coordinates, shape_of
from hpctrain.errors import ConfigError


@pytest.mark.serial
def test_tensor_varies_fastest_and_data_slowest():
    shape = Shape(2, 3, 4)

    places = [coordinates(rank, shape) for rank in range(24)]

    assert places == [
        Shape(*place) for place in itertools.product(range(2), range(3), range(4))
    ]
    with pytest.raises(ConfigError, match="rank 24 is outside a grid of 24 ranks"):
        coordinates(24, shape)


@pytest.mark.serial
@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        (
            (8, 2, 3, 1),
            "mesh: data (2) x pipeline (3) x tensor (1) = 6 does not match 8 ranks; "
            "start mpirun -n 6 or change [parallel]",
        ),
        (
            (8, None, 3, 1),
            "mesh: pipeline (3) x tensor (1) = 3 does not divide 8 ranks; "
            "start mpirun -n 6 or 9 or change [parallel]",
        ),
        (
            (2, None, 2, 2),
            "mesh: pipeline (2) x tensor (2) = 4 does not divide 2 ranks; "
            "start mpirun -n 4 or change [parallel]",
        ),
        ((8, None, 0, 1), "mesh: pipeline is 0, needed at least 1"),
    ],
)
def test_numbers_that_do_not_fit_are_refused(numbers, message):
    with pytest.raises(ConfigError) as caught:
        shape_of(*numbers)

    assert str(caught.value) == message


def test_each_group_holds_the_ranks_that_differ_along_its_axis_only(world):
    half = 2 if world.size % 2 == 0 else 1
    for pipeline, tensor in [(1, 1), (half, 1), (1, half), (world.size, 1), (1, world.size)]:
        with Mesh(world, pipeline=pipeline, tensor=tensor) as mesh:
            for axis, group in enumerate([mesh.data, mesh.pipeline, mesh.tensor]):
                members = [Shape(*place) for place in group.allgather_obj(mesh.place)]

                assert members == [
                    mesh.place._replace(**{Shape._fields[axis]: k})
                    for k in range(mesh.shape[axis])
                ]
                assert group.rank == mesh.place[axis]
            assert world.allgather_obj(mesh.place) == [
                list(coordinates(rank, mesh.shape)) for rank in range(world.size)
            ]
