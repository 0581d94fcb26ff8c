"""MXNet's file of arrays, in all its versions, whole and damaged."""

import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from hpctrain.errors import ConfigError, DataError
from hpctrain.symbol.paramfile import read_params, write_params

pytestmark = pytest.mark.serial

ORACLE = Path(__file__).parent / "oracle"
V1, V2, V3 = 0xF993FAC8, 0xF993FAC9, 0xF993FACA
PLACE = struct.pack("<ii", 2, 3)  # a GPU
VALUE = np.array([[1, 2, 3], [4, 5, 6]], "<f4")
TAIL = PLACE + struct.pack("<i", 0) + VALUE.tobytes()
RECORDS = {
    "before 0.11": struct.pack("<III", 2, 2, 3) + TAIL,
    "0.11": struct.pack("<Iiqq", V1, 2, 2, 3) + TAIL,
    "1.0": struct.pack("<Iiiqq", V2, 0, 2, 2, 3) + TAIL,
    "with np_shape": struct.pack("<Iiiqq", V3, 0, 2, 2, 3) + TAIL,
}


def whole(*records, names=(b"arg:w",)):
    text = b"".join(struct.pack("<Q", len(name)) + name for name in names)
    head = struct.pack("<QQQ", 0x112, 0, len(records))
    return head + b"".join(records) + struct.pack("<Q", len(names)) + text


@pytest.fixture
def read(tmp_path):
    def read(data):
        (tmp_path / "x.params").write_bytes(data)
        return read_params(tmp_path / "x.params")

    return read


def test_a_file_of_mxnet_is_read_and_written_alike(tmp_path):
    """Made by MXNet 1.9.1: oracle/make_networks.py."""
    found = read_params(ORACLE / "types.params")
    write_params(tmp_path / "x", found)

    assert {name: str(a.dtype) for name, a in found.items()} == {
        "arg:f4": "float32", "arg:f2": "float16", "arg:f8": "float64", "aux:u1": "uint8",
        "i4": "int32", "i1": "int8", "i8": "int64",
    }  # fmt: skip
    for array in found.values():
        assert array.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert (tmp_path / "x").read_bytes() == (ORACLE / "types.params").read_bytes()


@pytest.mark.parametrize("version", RECORDS)
def test_records_of_every_version_are_read(version, read):
    found = read(whole(RECORDS[version]))

    assert found.keys() == {"arg:w"}
    np.testing.assert_array_equal(found["arg:w"], VALUE)


def test_a_file_without_names_is_a_list(read):
    assert [a.shape for a in read(whole(*RECORDS.values(), names=()))] == [(2, 3)] * 4


def test_brain_floats_become_wider(read):
    bits = (VALUE.view("<u4") >> 16).astype("<u2").tobytes()
    record = struct.pack("<Iiiqq", V2, 0, 2, 2, 3) + PLACE + struct.pack("<i", 12) + bits

    np.testing.assert_array_equal(read(whole(record))["arg:w"], VALUE)


def test_arrays_that_mxnet_has_not_shaped_are_empty(read):
    records = [
        struct.pack("<I", 0),
        struct.pack("<Iii", V2, 0, 0),
        struct.pack("<Iii", V3, 0, -1),
    ]

    assert [a.shape for a in read(whole(*records, names=()))] == [(0,)] * 3


def test_arrays_without_axes_or_elements_survive(tmp_path):
    write_params(tmp_path / "x", [np.float32(3), np.zeros((0, 2))])

    scalar, empty = read_params(tmp_path / "x")

    assert (scalar.shape, scalar.item(), empty.shape) == ((), 3, (0, 2))


def test_strides_and_byte_order_do_not_matter(tmp_path):
    write_params(tmp_path / "x", {"a": VALUE.astype(">f8").T})

    np.testing.assert_array_equal(read_params(tmp_path / "x")["a"], VALUE.T)


def test_types_that_mxnet_has_not_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"complex64 for 'a'"):
        write_params(tmp_path / "x", {"a": np.zeros(2, np.complex64)})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("version", RECORDS)
def test_a_file_that_was_cut_is_refused(version, read):
    data = whole(RECORDS[version])

    for size in range(len(data)):
        with pytest.raises(DataError, match=r"x\.params"):
            read(data[:size])
    with pytest.raises(DataError, match="behind its end"):
        read(data + b"\0")


def test_a_changed_file_gives_arrays_or_a_sentence(read):
    rng = np.random.default_rng(3)
    data = whole(*RECORDS.values(), names=(b"a", b"b", b"c", b"d"))
    for _ in range(1000):
        changed = bytearray(data)
        changed[rng.integers(8, len(data))] ^= 1 << rng.integers(8)
        try:
            found = read(bytes(changed))
        except DataError:
            continue
        assert len(found) == 4


@pytest.mark.parametrize(
    "data",
    [
        struct.pack("<QQQ", 0x112, 0, 2**63),
        whole(struct.pack("<Iiiqq", V2, 0, 2, 2**40, 2**40) + TAIL),
        whole(struct.pack("<Iiiqq", V2, 0, 2, -1, 3) + TAIL),
        whole(struct.pack("<Iii", V2, 0, 2**30)),
        whole(struct.pack("<I", 2**31)),
        whole(names=())[:-8] + struct.pack("<QQ", 1, 2**62),
    ],
)  # fmt: skip
def test_counts_are_not_believed(data, read):
    tracemalloc.start()
    with pytest.raises(DataError):
        read(data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert peak < 10**6


def test_sparse_arrays_are_refused_by_kind(read):
    with pytest.raises(DataError, match=r"array 0 has storage row_sparse.*dense"):
        read(whole(struct.pack("<Ii", V2, 1) + TAIL))


@pytest.mark.parametrize("names", [(b"a",), (b"a", b"a"), (b"a", b"b", b"c"), (b"a", b"\xff")])
def test_names_fit_the_arrays(names, read):
    record = RECORDS["1.0"]

    with pytest.raises(DataError, match="name"):
        read(whole(record, record, names=names))
