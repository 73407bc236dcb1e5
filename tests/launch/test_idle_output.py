"""Pipes are read while no task runs, by a thread that keeps out of the way of tasks."""

import os
import threading
import time

import pytest

from nbaccel.launch.output.byte_sources import PipeSource
from nbaccel.launch.output.idle import IdleOutput


def wait_until(condition, seconds):
    latest = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < latest, "it did not happen"
        time.sleep(0.01)


MORE_THAN_A_PIPE_HOLDS = b"x" * (1 << 18)


class Told:
    """In place of the router."""

    def __init__(self):
        self.got = []

    def feed(self, rank, is_err, data):
        self.got.append((rank, is_err, data))

    @property
    def text(self):
        return b"".join(data for _, _, data in self.got)


@pytest.fixture
def pipe():
    ours, theirs = os.pipe()
    os.set_blocking(ours, False)
    yield ours, theirs
    os.close(ours)
    os.close(theirs)


@pytest.fixture
def idle():
    reader = IdleOutput()
    yield reader
    reader.close()


def _write_in_a_thread(fd, data):
    thread = threading.Thread(target=os.write, args=(fd, data))
    thread.start()
    return thread


def test_a_writer_is_never_blocked_between_tasks(pipe, idle):
    ours, theirs = pipe
    for _ in range(3):
        idle.resume([(1, True, PipeSource(ours))])
        writer = _write_in_a_thread(theirs, MORE_THAN_A_PIPE_HOLDS)
        writer.join(30)
        assert not writer.is_alive()
        told = Told()
        idle.pause(told)
        assert {(rank, is_err) for rank, is_err, _ in told.got} == {(1, True)}
        left = _rest(ours)
        assert told.text + left == MORE_THAN_A_PIPE_HOLDS


def _rest(fd):
    found = b""
    while True:
        try:
            found += os.read(fd, 1 << 16)
        except BlockingIOError:
            return found


def test_while_paused_the_pipe_is_left_to_the_task(pipe, idle):
    ours, theirs = pipe
    idle.resume([(0, False, PipeSource(ours))])
    os.write(theirs, b"before")
    told = Told()
    wait_until(
        lambda: idle.pause(told) or idle.resume([(0, False, PipeSource(ours))]) or told.text == b"before", 10
    )
    idle.pause(told)
    os.write(theirs, b"during")
    assert os.read(ours, 100) == b"during"
    for _ in range(20):  # it was asleep in the system when it was paused: nothing may wake it to this
        os.write(theirs, b"a")
        assert os.read(ours, 100) == b"a"
    idle.pause(told)
    assert told.text == b"before"


def test_a_paused_thread_does_not_spin(pipe, idle):
    ours, theirs = pipe
    idle.resume([(0, False, PipeSource(ours))])
    idle.pause(None)
    os.write(theirs, b"unread")
    used = time.process_time()
    threading.Event().wait(0.5)
    assert time.process_time() - used < 0.25


def test_of_much_output_the_end_is_kept(pipe, idle):
    ours, theirs = pipe
    idle.resume([(0, False, PipeSource(ours))])
    for _ in range(24):
        _write_in_a_thread(theirs, MORE_THAN_A_PIPE_HOLDS).join(30)
    _write_in_a_thread(theirs, b"the end").join(30)
    told = Told()
    wait_until(lambda: idle._read and idle._read[-1][2].endswith(b"the end"), 10)
    idle.pause(told)
    assert len(told.text) <= 1 << 22


def test_an_ended_worker_is_no_reason_to_spin(idle):
    ours, theirs = os.pipe()
    os.set_blocking(ours, False)
    idle.resume([(0, False, PipeSource(ours))])
    os.close(theirs)
    wait_until(lambda: not idle._streams, 10)
    used = time.process_time()
    threading.Event().wait(0.5)
    assert time.process_time() - used < 0.25
    os.close(ours)
