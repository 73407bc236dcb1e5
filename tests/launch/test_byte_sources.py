"""Reading a worker's pipe where that takes a thread: nothing is lost, and it is known when all is there."""

from __future__ import annotations

import os
import select
import threading
import time

import pytest

from nbaccel.launch.output.byte_sources import PipeSource, RelayedSource


@pytest.fixture(params=[PipeSource, RelayedSource])
def pipe(request):
    """A source, and a descriptor to write to as the worker does."""
    read_fd, write_fd = os.pipe()
    worker_fd = os.dup(write_fd)
    if request.param is PipeSource:
        os.close(write_fd)
        source = PipeSource(read_fd)
    else:
        source = RelayedSource(read_fd, write_fd)
    yield source, worker_fd
    source.close()


def _read_all(source) -> bytes:
    """What can be had without waiting."""
    data = b""
    while True:
        try:
            piece = source.read()
        except BlockingIOError:
            return data
        if not piece:
            return data
        data += piece


def test_what_was_written_can_be_read_after_settling(pipe):
    source, fd = pipe
    for number in range(200):
        os.write(fd, b"line %d\n" % number)
        source.settle()
        assert _read_all(source) == b"line %d\n" % number
    os.close(fd)


def test_nothing_for_now_is_no_end(pipe):
    source, fd = pipe
    with pytest.raises(BlockingIOError):
        source.read()
    os.close(fd)
    source.writer_has_ended()
    source.settle()
    assert source.read() == b""


def test_a_worker_that_writes_much_waits_until_it_is_read(pipe):
    source, fd = pipe
    size = 5 << 20

    def write():
        left = memoryview(b"x" * size)
        while left:
            left = left[os.write(fd, left) :]
        os.close(fd)

    thread = threading.Thread(target=write)
    thread.start()
    received = 0

    def take() -> bool:
        nonlocal received
        received += len(_read_all(source))
        return received >= size

    deadline = time.monotonic() + 60
    while not take():
        assert time.monotonic() < deadline
        select.select([source], [], [], 1)
    thread.join()
    source.writer_has_ended()
    source.settle()
    assert received + len(_read_all(source)) == size


def test_settling_takes_in_more_than_may_wait_otherwise():
    read_fd, write_fd = os.pipe()
    worker_fd = os.dup(write_fd)
    source = RelayedSource(read_fd, write_fd)
    size = 3 << 20
    thread = threading.Thread(target=lambda: (_write_all(worker_fd, b"x" * size), os.close(worker_fd)))
    thread.start()
    received = 0
    while thread.is_alive() or not received:
        source.settle()
        received += len(_read_all(source))
    source.writer_has_ended()
    source.settle()
    assert received + len(_read_all(source)) == size
    source.close()


def _write_all(fd: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(fd, left) :]


def test_text_that_looks_like_the_start_of_a_mark_arrives(pipe):
    source, fd = pipe
    os.write(fd, b"a\0b\0")
    os.close(fd)
    source.writer_has_ended()
    source.settle()
    assert _read_all(source) == b"a\0b\0"


def test_settling_with_a_full_pipe_and_a_full_queue_finds_room(pipe):
    source, fd = pipe
    os.set_blocking(fd, False)
    written = 0
    while select.select([], [fd], [], 0.5)[1]:  # until nobody takes any more
        written += os.write(fd, b"x" * 4096)
    os.set_blocking(fd, True)  # of the description that the source shares
    source.settle()
    found = len(_read_all(source))
    if isinstance(source, PipeSource):
        while piece := len(_read_all(source)):
            found += piece
    assert found == written
    os.close(fd)
