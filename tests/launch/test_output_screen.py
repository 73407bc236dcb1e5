"""What is written to the user's streams, and when."""

import io
import sys
from types import SimpleNamespace

import pytest

from nbaccel.launch.output import screen as screen_module
from nbaccel.launch.output.screen import Screen
from nbaccel.launch.transport.messages import Display


class Recorder(io.StringIO):
    """A stream that notes writes and flushes of all recorders in one list."""

    def __init__(self, name, events):
        super().__init__()
        self.called = name
        self.events = events

    def write(self, text):
        self.events.append((self.called, text))
        return super().write(text)

    def flush(self):
        self.events.append((self.called, "<flush>"))


@pytest.fixture
def events(monkeypatch):
    # Not sys itself: between this fixture and the test pytest puts streams of its own there.
    events = []
    streams = SimpleNamespace(
        stdout=Recorder("out", events), stderr=Recorder("err", events), modules=sys.modules
    )
    monkeypatch.setattr(screen_module, "sys", streams)
    return events


def texts(events):
    return [event for event in events if event[1] != "<flush>"]


def test_a_batch_is_one_write(events):
    screen = Screen()
    screen.lines(False, 0, "[rank 0] ", ["a", "b"])
    screen.lines(False, 1, "[rank 1] ", ["c"])
    assert events == []
    screen.write()
    assert events == [("out", "[rank 0] a\n[rank 0] b\n[rank 1] c\n"), ("out", "<flush>")]


def test_what_came_first_is_sent_on_before_the_other_stream_is_written(events):
    screen = Screen()
    screen.lines(False, 0, "", ["a"])
    screen.lines(True, 0, "", ["b"])
    screen.write()
    assert events[:3] == [("out", "a\n"), ("out", "<flush>"), ("err", "b\n")]


def test_many_changes_between_streams_are_bounded_and_lose_nothing(events):
    screen = Screen()
    for number in range(1000):
        screen.lines(number % 2 == 1, 0, "", [str(number)])
    screen.write()
    assert len(texts(events)) < 30
    out = "".join(text for name, text in texts(events) if name == "out")
    assert out.split() == [str(number) for number in range(0, 1000, 2)]
    first = [text for _, text in texts(events)[:10]]
    assert first == [f"{number}\n" for number in range(10)]


def test_states_that_nobody_saw_are_not_written(events):
    screen = Screen()
    for percent in range(100):
        screen.state(True, 0, f"{percent}%")
    screen.write()
    assert texts(events) == [("err", "\r99%")]


def test_a_bar_is_overwritten_and_then_finished(events):
    screen = Screen()
    screen.state(True, 0, "long 10%")
    screen.write()
    screen.state(True, 0, "20%")
    screen.write()
    screen.lines(True, 0, "", ["done", "next"])
    screen.write()
    assert texts(events) == [("err", "\rlong 10%"), ("err", "\r20%     "), ("err", "\rdone\nnext\n")]


def test_a_line_on_the_other_stream_ends_an_open_line_first(events):
    screen = Screen()
    screen.state(True, 0, "50%")
    screen.write()
    screen.lines(False, 1, "[rank 1] ", ["text"])
    screen.write()
    assert "".join(text for _, text in texts(events)) == "\r50%\n[rank 1] text\n"


def test_another_rank_s_lines_go_above_a_bar(events):
    screen = Screen()
    screen.state(True, 0, "steps: 50%")
    screen.write()
    screen.lines(True, 1, "", ["short", "a line that is longer"])
    screen.write()
    screen.state(True, 0, "steps: 60%")
    screen.lines(True, 0, "", ["steps: 100%"])
    screen.write()
    assert _as_seen("".join(text for _, text in texts(events))) == [
        "short",
        "a line that is longer",
        "steps: 100%",
    ]


def _as_seen(text):
    """The lines on a screen where each carriage return goes on at the line's start, over what is there."""
    lines = []
    for line in text.removesuffix("\n").split("\n"):
        shown = ""
        for piece in line.split("\r"):
            shown = piece + shown[len(piece) :]
        lines.append(shown.rstrip())
    return lines


def test_a_question_is_completed_in_place(events):
    screen = Screen()
    screen.partial(False, 0, "Name? ")
    screen.write()
    screen.lines(False, 0, "", ["Name? Ada"])
    screen.write()
    assert texts(events) == [("out", "Name? "), ("out", "Ada\n")]


def test_an_interrupted_question_is_said_again(events):
    screen = Screen()
    screen.partial(False, 0, "Name? ")
    screen.lines(False, 1, "", ["other"])
    screen.lines(False, 0, "", ["Name? Ada"])
    screen.write()
    assert "".join(text for _, text in texts(events)) == "Name? \nother\nName? Ada\n"


def test_a_display_stands_between_the_texts_around_it(events, monkeypatch):
    screen = Screen()
    monkeypatch.setattr(screen_module, "_shell", lambda: None)
    screen.lines(False, 0, "", ["before"])
    screen.display(Display(1, "show", {"text/plain": "<table>"}))
    screen.lines(False, 0, "", ["behind"])
    screen.write()
    assert "".join(text for _, text in texts(events)) == "before\n<table>\nbehind\n"


class Refusing(io.StringIO):
    writes = 0

    def write(self, text):
        self.writes += 1
        raise BrokenPipeError(32, "Broken pipe")


def test_a_stream_that_refuses_is_left_alone_and_the_error_is_kept(events, monkeypatch):
    refusing = Refusing()
    monkeypatch.setattr(screen_module.sys, "stdout", refusing)
    screen = Screen()
    for _ in range(3):
        screen.lines(False, 0, "", ["lost"])
        screen.lines(True, 0, "", ["shown"])
        screen.write()
    assert refusing.writes == 1
    assert isinstance(screen.trouble, BrokenPipeError)
    assert [text for name, text in texts(events) if name == "err"] == ["shown\n"] * 3


def test_without_streams_nothing_happens(monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    screen = Screen()
    screen.lines(False, 0, "", ["text"])
    screen.write()
    assert screen.trouble is None
