"""Arrays, frames and large plain objects arrive as they were."""

from __future__ import annotations

import ctypes
import tracemalloc

import numpy as np
import pytest

from nbaccel.launch.payload import payload


def there(obj):
    with payload.dump_call((len, (obj,), {})) as packed:
        _, (arrived,), _ = packed.load()
        return arrived, packed.contents.written


def memory_of(obj):
    """The object at the bottom of a chain of views."""
    while True:
        base = obj.obj if isinstance(obj, memoryview) else getattr(obj, "base", None)
        if base is None:
            return obj
        obj = base


ARRAYS = {
    "plain": np.arange(5000.0),
    "fortran": np.asfortranarray(np.arange(6000).reshape(60, 100)),
    "strided": np.arange(10_000)[::3],
    "backwards": np.arange(5000)[::-1],
    "permuted": np.arange(8000).reshape(20, 20, 20).transpose(1, 0, 2),
    "scalar": np.array(3.5),
    "empty": np.empty((0, 5)),
    "structured": np.zeros(1000, dtype=[("a", "i4"), ("b", "f8", (2,))]),
    "text": np.array(["abc", "de"] * 1000),
    "dates": np.arange("2020-01-01", "2024-01-01", dtype="datetime64[D]"),
    "bool": np.arange(5000) % 2 == 0,
    "half": np.arange(2000, dtype=np.float16),
    "big endian": np.arange(2000, dtype=">i4"),
    "record": np.rec.array([(1, 2.0)] * 1000, dtype=[("x", "i4"), ("y", "f8")]),
    "masked": np.ma.masked_greater(np.arange(5000), 7),
    "broadcast": np.broadcast_to(np.arange(10), (50, 10)),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_keep_class_dtype_and_values(name):
    array = ARRAYS[name]
    arrived, _ = there(array)
    assert type(arrived) is type(array)
    assert arrived.dtype == array.dtype
    assert arrived.shape == array.shape
    assert np.array_equal(arrived, array)
    assert arrived.flags.writeable == array.flags.writeable


PAYLOAD_MEMORY = (bytearray, ctypes.Array)
"""What a payload was read or mapped to, as the module mapping does it; a copy would be numpy's own."""


@pytest.mark.parametrize("name", ["plain", "fortran", "strided", "permuted", "structured", "record", "bool"])
def test_their_memory_is_mapped_not_copied(name):
    if name == "permuted" and np.__version__.startswith("1."):
        pytest.skip("numpy 1 has only arrays in C's or Fortran's order travel out of band")
    arrived, _ = there(ARRAYS[name])
    assert isinstance(memory_of(arrived), PAYLOAD_MEMORY)
    arrived[...] = arrived[..., -1:] if arrived.ndim else arrived  # writable, without a fault


def test_order_in_memory_is_kept():
    arrived, _ = there(ARRAYS["fortran"])
    assert arrived.flags.f_contiguous
    assert not arrived.flags.c_contiguous


def test_read_only_arrays_stay_read_only():
    array = np.arange(5000)
    array.flags.writeable = False
    arrived, _ = there([array, array[::2]])
    assert not arrived[0].flags.writeable
    assert not arrived[1].flags.writeable


def test_object_arrays():
    shared = [1]
    array = np.array([shared, {"k": shared}, None], dtype=object)
    arrived, _ = there(array)
    assert arrived[1]["k"] is arrived[0]


def test_one_array_twice_is_one_array_there():
    array = np.zeros(10)
    (one, two), _ = there([array, array])
    assert one is two


@pytest.mark.parametrize("mode", ["r", "r+"])
def test_maps_of_files_are_mapped_again(tmp_path, mode):
    path = tmp_path / "table.bin"
    np.arange(100_000, dtype=np.float32).tofile(path)
    table = np.memmap(path, dtype=np.float32, mode=mode, offset=40, shape=(990, 100))
    views = [table, table[3:7], table[5:, ::9], table.T, table[2, 3:4]]
    arrived, size = there(views)
    assert size < 10_000
    for there_, here in zip(arrived, views, strict=True):
        assert isinstance(there_, np.memmap)
        assert np.array_equal(there_, here)
        assert there_.flags.writeable == (mode == "r+")
    if mode == "r+":
        arrived[0][0, 0] = -1  # the file is what the user shares
        arrived[0].flush()
        assert table[0, 0] == -1


def test_what_was_computed_from_a_file_map_is_sent(tmp_path):
    path = tmp_path / "table.bin"
    np.arange(5000).tofile(path)
    private = np.memmap(path, dtype=np.int64, mode="c")
    private[0] = 99
    computed, copied = there([np.memmap(path, dtype=np.int64, mode="r") + 1, private])[0]
    path.unlink()
    assert computed[4] == 5
    assert copied[0] == 99


def test_a_map_of_a_file_that_is_gone_is_sent(tmp_path):
    path = tmp_path / "table.bin"
    np.arange(5000).tofile(path)
    table = np.memmap(path, dtype=np.int64, mode="r")
    path.unlink()
    arrived, _ = there(table)
    assert arrived[4999] == 4999


def test_frames():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(
        {
            "number": np.arange(20_000.0),
            "whole": np.arange(20_000),
            "word": ["a", "b"] * 10_000,
            "kind": pandas.Categorical(["x", "y"] * 10_000),
            "when": pandas.date_range("2020-01-01", periods=20_000, freq="h"),
            "maybe": pandas.array([1, None] * 10_000, dtype="Int64"),
        }
    )
    (arrived, part), _ = there([frame, frame.iloc[5:10]])
    pandas.testing.assert_frame_equal(arrived, frame)
    pandas.testing.assert_frame_equal(part, frame.iloc[5:10])
    assert isinstance(memory_of(arrived["number"].to_numpy()), PAYLOAD_MEMORY)
    arrived.loc[0, "number"] = 5.0
    assert frame.loc[0, "number"] == 0.0


def test_arrow_tables():
    arrow = pytest.importorskip("pyarrow")
    table = arrow.table({"a": list(range(10_000)), "b": [str(i) for i in range(10_000)]})
    arrived, _ = there(table)
    assert arrived.equals(table)


@pytest.mark.parametrize("make", [bytes, bytearray, lambda n: "x" * n], ids=["bytes", "bytearray", "str"])
def test_large_plain_objects_are_copied_once_on_each_side(make):
    size = 32 << 20
    obj = make(size)
    tracemalloc.start()
    try:
        with payload.dump_call((len, (obj,), {})) as packed:
            assert size <= packed.contents.written < size + 10_000
            # Written from where it lies; of a text the interpreter makes its encoded form first.
            copies = 1 if isinstance(obj, str) else 0
            assert tracemalloc.get_traced_memory()[1] < copies * size + (4 << 20)
            tracemalloc.reset_peak()
            arrived = packed.load()[1][0]
            assert tracemalloc.get_traced_memory()[1] < size + (4 << 20)
    finally:
        tracemalloc.stop()
    assert arrived == obj
