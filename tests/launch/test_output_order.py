"""Marks among a worker's output, and the order that they restore."""

import itertools
import os
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbaccel.launch.output import marks
from nbaccel.launch.output.marks import SHOW, TURN, Mark, MarkFinder
from nbaccel.launch.output.rank_feed import RankFeed
from nbaccel.launch.transport.messages import Display
from nbaccel.launch.worker.streams import Turns, _Flusher, _Pipe, _Text

SECRET = marks.new_secret()


def mark(kind, number):
    return marks.encode(SECRET, kind, number)


@given(
    st.lists(st.one_of(st.binary(max_size=20), st.integers(0, 2**32 - 1), st.just(SECRET[:5])), max_size=8),
    st.lists(st.integers(0, 300), max_size=8),
)
def test_marks_are_found_however_reads_cut_them(items, cuts):
    data = b"".join(mark(TURN, item) if isinstance(item, int) else item for item in items)
    cuts = sorted({min(cut, len(data)) for cut in cuts})
    finder = MarkFinder(SECRET)
    found = []
    for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
        found += finder.feed(data[start:end])
    found.append(finder.end())
    assert [f.number for f in found if isinstance(f, Mark)] == [i for i in items if isinstance(i, int)]
    text = b"".join(f for f in found if isinstance(f, bytes))
    assert text == b"".join(i for i in items if isinstance(i, bytes))


def test_text_is_not_held_back():
    finder = MarkFinder(SECRET)
    assert finder.feed(b"question? ") == [b"question? "]


class Heard:
    def __init__(self):
        self.items = []
        self.feed = RankFeed(SECRET, lambda e, data: self.items.append((e, data)), self.items.append)

    @property
    def text(self):
        return b"".join(item[1] for item in self.items if isinstance(item, tuple))


def written(script):
    """What a worker that writes this to its streams leaves in its two pipes."""
    pipes = {False: b"", True: b""}
    last, turn = False, 0
    for is_err, text in script:
        if is_err != last:
            turn += 1
            pipes[last] += mark(TURN, turn)
            pipes[is_err] += mark(TURN, turn)
            last = is_err
        pipes[is_err] += text
    return pipes


@given(
    st.lists(st.tuples(st.booleans(), st.binary(min_size=1, max_size=5)), max_size=12),
    st.lists(st.tuples(st.booleans(), st.integers(1, 60)), max_size=40),
)
def test_what_was_written_comes_out_in_its_order_whatever_is_read_first(script, reads):
    pipes = written(script)
    heard = Heard()
    everything = [(e, 10_000) for e in (False, True)]
    for is_err, size in [*reads, *everything]:
        heard.feed.feed(is_err, pipes[is_err][:size])
        pipes[is_err] = pipes[is_err][size:]
    heard.feed.end(False)
    heard.feed.end(True)
    assert heard.text == b"".join(text for _, text in script)


@pytest.mark.parametrize("first", [False, True])
def test_a_worker_that_died_between_two_marks_loses_nothing(first):
    heard = Heard()
    heard.feed.feed(False, b"a" + mark(TURN, 1) + b"late")
    heard.feed.end(first)
    heard.feed.end(not first)
    assert heard.text == b"alate"


def test_a_display_stands_where_it_was_shown():
    heard = Heard()
    display = Display(1, "show", {"text/plain": "x"})
    heard.feed.feed(False, b"before" + mark(SHOW, 1) + b"behind")
    assert heard.text == b"before"
    heard.feed.take(display)
    assert heard.items == [(False, b"before"), display, (False, b"behind")]


def test_a_display_without_its_mark_is_shown_at_the_end():
    heard = Heard()
    heard.feed.take(Display(1, "show"))
    heard.feed.feed(False, b"text" + mark(SHOW, 2) + b"more")
    assert heard.text == b"text"
    heard.feed.give_up()
    assert heard.text == b"textmore"
    assert Display(1, "show") in heard.items


# --- the worker's side ------------------------------------------------------------------------------


class Streams:
    """A worker's two streams on pipes, without a worker."""

    def __init__(self):
        self.readers = {}
        writers = {}
        for is_err in (False, True):
            self.readers[is_err], writers[is_err] = os.pipe()
        self.writers = writers
        self.turns = Turns(writers[False], writers[True])
        self.turns.start(SECRET)
        self.flusher = _Flusher()
        self.flusher.release_in_child()  # as in a fork of a worker: it starts no thread
        self.out, self.err = (_Text(_Pipe(writers[e], self.turns, is_err=e), self.flusher) for e in writers)
        self.flusher.add(self.out)
        self.flusher.add(self.err)

    def close(self):
        for fd in itertools.chain(self.readers.values(), self.writers.values()):
            os.close(fd)


@pytest.fixture
def streams():
    made = Streams()
    yield made
    made.out.detach().detach()
    made.err.detach().detach()
    made.close()


def test_python_streams_mark_their_turns(streams):
    print("one", file=streams.out)
    print("two", file=streams.err)
    print("three", file=streams.out)
    heard = Heard()
    for is_err in (True, False):
        heard.feed.feed(is_err, os.read(streams.readers[is_err], 1000))
    assert heard.items == [(False, b"one\n"), (True, b"two\n"), (False, b"three\n")]


def test_without_a_secret_there_are_no_marks(streams):
    streams.turns.start(b"")
    print("one", file=streams.out)
    print("two", file=streams.err)
    assert os.read(streams.readers[False], 100) == b"one\n"
    assert os.read(streams.readers[True], 100) == b"two\n"


def test_a_full_pipe_that_does_not_block_loses_nothing(streams):
    os.set_blocking(streams.writers[False], False)
    size = 1_000_000
    got = bytearray()

    def read():
        while len(got) < size + 1:
            got.extend(os.read(streams.readers[False], 1 << 16))

    reader = threading.Thread(target=read)
    reader.start()
    print("x" * size, file=streams.out)
    reader.join(30)
    assert got == b"x" * size + b"\n"
