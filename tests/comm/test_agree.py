import numpy as np
import pytest

from hpctrain.comm.agree import agree, difference, digest
from hpctrain.errors import CommError, ConfigError


def test_equal_facts_pass(world):
    agree(world, {"optim.lr": "0.1", "model": "mlp"})
    agree(world, {})


@pytest.mark.mpi(min_size=2)
def test_the_first_fact_that_differs_is_named_on_all_ranks(world):
    facts = {"seed": "1", "optim.lr": "0.2" if world.rank == 1 else "0.1"}
    facts["late"] = str(world.rank)
    others = {2: "rank 0", 3: "ranks 0, 2", 4: "ranks 0, 2, 3"}[world.size]

    with pytest.raises(ConfigError) as caught:
        agree(world, facts)

    assert str(caught.value) == (
        f"agree: optim.lr is 0.1 on {others} but 0.2 on rank 1; "
        "start all ranks with the same command and files"
    )
    with pytest.raises(CommError):
        agree(world, facts, CommError)
    agree(world, {"after": "an error the group is still in step"})


@pytest.mark.serial
@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ([{"a": "1"}, {"a": "2"}, {"a": "3"}], "a is 1 on rank 0 but 2 on rank 1, 3 on rank 2"),
        ([{"a": "1"}, {"a": "1", "b": "2"}], "b is known on rank 1 but not on rank 0"),
        ([{"a": ""}, {"a": "1"}], "a is empty on rank 0 but 1 on rank 1"),
        ([{"a": "1", "b": "2"}, {"b": "2", "a": "1"}], "fact 1 is a on rank 0 but b on rank 1"),
        (
            [{"a": "x" * 500 + "1" + "y" * 500}, {"a": "x" * 500 + "2" + "y" * 500}],
            f"a is …{'x' * 20}1{'y' * 59}… on rank 0 but …{'x' * 20}2{'y' * 59}… on rank 1",
        ),
        (
            [{"a": "x" * 100}, {"a": "x" * 101}],
            f"a is …{'x' * 20} on rank 0 but …{'x' * 21} on rank 1",
        ),
        ([{"a": "1"}] * 5 + [{"a": "2"}] * 2, "a is 1 on ranks 0-4 but 2 on ranks 5, 6"),
    ],
    ids=["three", "lacking", "empty", "order", "long", "longer", "runs"],
)
def test_a_difference_is_told_in_a_sentence(rows, sentence):
    assert difference([list(row.items()) for row in rows]) == sentence


@pytest.mark.serial
def test_a_digest_sees_every_byte_and_takes_arrays():
    array = np.arange(12, dtype="f4").reshape(3, 4)

    assert digest([array]) == digest([array.tobytes()]) == digest([b"", array[:1], array[1:]])
    array[2, 3] = np.nextafter(array[2, 3], 99)
    assert digest([array]) != digest([np.arange(12, dtype="f4")])
    assert digest([np.empty((0, 3)), np.float16([1]), np.array([True])]) == digest(
        [np.float16([1]).tobytes() + b"\x01"]
    )
    assert len(digest([])) == 64
