"""Lines, progress bars and cursor codes, as a terminal would show them."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbaccel.launch.output import lines
from nbaccel.launch.output.lines import LineReader


def read(*pieces):
    reader = LineReader()
    done = []
    for piece in pieces:
        done += reader.feed(piece)
    return done + reader.end()


def test_a_line_comes_when_it_is_whole():
    reader = LineReader()
    assert reader.feed("one\ntw") == ["one"]
    assert reader.partial == "tw"
    assert reader.feed("o\n") == ["two"]
    assert not reader.has_partial


def test_empty_lines_stay():
    assert read("a\n\n\nb\n") == ["a", "", "", "b"]


def test_windows_line_ends_are_line_ends():
    assert read("a\r\n\r\nb\r", "\nc\n") == ["a", "", "b", "c"]


def test_a_bar_leaves_its_last_state():
    reader = LineReader()
    assert reader.feed("\r 10%") == []
    assert reader.progress == " 10%"
    assert reader.feed("\r100%\n") == ["100%"]
    assert reader.progress is None


def test_a_shorter_state_covers_only_its_own_width():
    assert read("abcdef\rXY\n") == ["XYcdef"]


def test_coloured_states_replace_each_other_whole():
    assert read("\x1b[31mlong state\x1b[0m\r\x1b[32mok\x1b[0m\n") == ["\x1b[32mok\x1b[0m"]


def test_a_bar_that_wipes_itself_out_leaves_nothing():
    assert read("\r50%", "\r   \r", "next\n") == ["next"]
    assert read("\r50%", "\r   \r") == []


def test_erase_to_the_end_of_the_line():
    assert read("\rlong text\rab\x1b[K\n") == ["ab"]


def test_what_rich_writes_to_a_terminal():
    reader = LineReader()
    done = reader.feed("\x1b[?25l\r\x1b[2Kwork \x1b[31m 10%\x1b[0m")
    assert reader.progress == "work \x1b[31m 10%\x1b[0m"
    done += reader.feed("\r\x1b[2Kwork \x1b[31m100%\x1b[0m\n\x1b[?25h")
    assert done + reader.end() == ["work \x1b[31m100%\x1b[0m"]
    # Two rows that are drawn anew.
    rows = "\x1b[2Kone 1\n\x1b[2Ktwo 1\r\x1b[1A\x1b[2Kone 2\n\x1b[2Ktwo 2\n"
    assert read(rows)[-2:] == ["one 2", "two 2"]


def test_erase_before_the_cursor_and_all():
    assert read("abc\x1b[1Kd\n") == ["   d"]
    assert read("abc\r\x1b[2Kd\n") == ["d"]


def test_nested_bars_leave_one_line_each():
    """What tqdm writes for an outer bar at row 0 and an inner one at row 1."""
    reader = LineReader()
    done = reader.feed("\router 0/2")
    done += reader.feed("\n")
    done += reader.feed("\rinner 0/9") + reader.feed("\x1b[A")
    for step in range(1, 10):
        done += reader.feed("\n") + reader.feed(f"\rinner {step}/9") + reader.feed("\x1b[A")
        assert reader.progress == f"inner {step}/9"
    done += reader.feed("\router 2/2") + reader.feed("\n")
    done += reader.settle() + reader.feed("\rinner 9/9\n") + reader.end()
    # The first "\n" can't be told from the end of the outer bar.
    assert done == ["outer 0/2", "outer 2/2", "inner 9/9"]


@pytest.mark.parametrize("cut", range(1, 12))
def test_an_escape_code_may_be_cut_anywhere(cut):
    text = "ab\r\x1b[Kcd\x1b[1mx\n"
    assert read(text[:cut], text[cut:]) == read(text)


def test_plain_lines_after_bars_are_plain_again():
    reader = LineReader()
    reader.feed("\r100%\n")
    assert reader.feed("text\n") == ["text"]
    assert not reader.has_partial


@given(st.text(alphabet="ab\n", max_size=40), st.lists(st.integers(0, 40), max_size=6))
def test_how_text_is_cut_makes_no_difference(text, cuts):
    cuts = sorted({min(cut, len(text)) for cut in cuts})
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    expected = text.split("\n")
    assert read(*pieces) == (expected if expected[-1] else expected[:-1])


@given(st.lists(st.text(alphabet="ab \r\n\x1b[AK1", max_size=10), max_size=12))
def test_any_text_is_taken_and_every_letter_of_plain_text_comes_out(pieces):
    out = "".join(read(*pieces))
    text = "".join(pieces)
    if "\r" not in text and "\x1b" not in text:
        assert out == text.replace("\n", "")


@pytest.mark.parametrize("start", ["", "\r"], ids=["plain", "after a return"])
def test_a_long_line_takes_time_in_proportion(start):
    def seconds(pieces):
        reader = LineReader()
        reader.feed(start)
        began = time.process_time()
        for _ in range(pieces):
            reader.feed("x" * 10_000)
        (line,) = reader.feed("\n")
        assert len(line) == pieces * 10_000
        return time.process_time() - began

    seconds(10)
    # Quadratic: 64 times as much for 8 times the length.
    assert seconds(4000) < 30 * seconds(500) + 0.2


def test_a_line_without_end_is_ended_before_memory_is(monkeypatch):
    monkeypatch.setattr(lines, "MAX_LINE", 100)
    reader = LineReader()
    assert reader.feed("x" * 60) == []
    assert reader.feed("x" * 60) == ["x" * 120]
