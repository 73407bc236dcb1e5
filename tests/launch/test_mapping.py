"""Files as private memory."""

from __future__ import annotations

import gc
import os

import numpy as np
import pytest
import torch

from nbaccel import notebook_launcher
from nbaccel.launch.payload import mapping

SIZES = [10, mapping._READ_UP_TO, mapping._READ_UP_TO + 1, 5 << 20]


def _file(content: bytes) -> int:
    fd = os.memfd_create("nbaccel-test")
    os.write(fd, content)
    return fd


@pytest.mark.parametrize("size", SIZES)
def test_what_is_written_stays_here(size):
    fd = _file(b"x" * size)
    try:
        view = mapping.privately(fd, size)
        assert view.nbytes == size
        assert not view.readonly
        view[:2] = b"ab"
        assert bytes(view[:4]) == b"abxx"
        assert os.pread(fd, 4, 0) == b"xxxx"
    finally:
        os.close(fd)


@pytest.mark.parametrize("size", SIZES)
def test_the_memory_outlives_the_descriptor_and_goes_with_the_last_slice(size):
    fd = _file(b"x" * size)
    view = mapping.privately(fd, size)
    os.close(fd)
    piece = np.frombuffer(view[1:9], dtype=np.uint8)
    del view
    gc.collect()
    assert piece.tolist() == [ord("x")] * 8


def test_a_mapping_is_given_back():
    fd = _file(b"x" * (64 << 20))
    try:
        for _ in range(200):  # 12 GiB of address space, were they kept
            view = mapping.privately(fd, 64 << 20)
            assert view[0] == ord("x")
        with open("/proc/self/maps") as maps:
            assert sum("nbaccel-test" in line for line in maps) <= 1
    finally:
        os.close(fd)


def test_a_file_that_is_too_short():
    fd = _file(b"x")
    try:
        with pytest.raises(EOFError):
            mapping.privately(fd, 10)
    finally:
        os.close(fd)


def test_results_that_are_kept_cost_no_descriptors():
    notebook_launcher(torch.ones, (1,), output="none")  # the zygote's descriptors
    before = len(os.listdir("/proc/self/fd"))
    kept = [notebook_launcher(torch.ones, (n,), output="none") for n in (10, 1 << 20, 1 << 20, 10)]
    assert len(os.listdir("/proc/self/fd")) <= before
    assert [len(tensor) for tensor in kept] == [10, 1 << 20, 1 << 20, 10]
