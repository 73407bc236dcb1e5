"""What a panel draws: texts are escaped, sizes bounded, many ranks compact; where it shows."""

from __future__ import annotations

import contextlib
import io
import math
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from nbaccel.launch.output import screen
from nbaccel.launch.output.screen import Screen
from nbaccel.launch.progress.model import ENDED, FAILED, RUNNING, STOPPED, Picture, RankRow
from nbaccel.runtime.curves import Curve
from nbaccel.widgets import panel, panel_curves, panel_html, panel_text

ROW = RankRow(
    rank=0,
    state=RUNNING,
    doing="trains",
    since=12.0,
    steps=620,
    epoch=1,
    batch=120,
    length=1000,
    rate=34.4,
    memory=3 << 30,
    load=0.98,
)
NASTY = "<script>alert(1)</script>&\"'\x1b[31m\n"


def curve(name="loss", values=(3.0, 2.0, 1.0)):
    made = Curve(name)
    for step, value in enumerate(values):
        made.add(step, value)
    return made.data()


def picture(**facts):
    before = {
        "title": "2 processes on cpu",
        "state": RUNNING,
        "outcome": "",
        "elapsed": 65.0,
        "rows": (ROW, replace(ROW, rank=1)),
        "curves": (curve(),),
        "share": 0.44,
        "left": 90.0,
    }
    return Picture(**{**before, **facts})


class Reader(HTMLParser):
    """All that a browser would make of a text."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.texts, self.attributes, self.open = [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1] != "style":
            self.texts.append(data)


def cells(text):
    return [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in re.findall(r"<tr class.*?</tr>", text)]


# --- HTML -------------------------------------------------------------------------------------------


def test_a_panel_is_whole_html_that_needs_and_does_nothing():
    text = panel_html.document(picture())
    read = Reader(text)
    assert read.open == []
    assert not {"script", "link", "img", "iframe", "object"} & set(read.tags)
    assert not [name for name, _ in read.attributes if name.startswith("on") or name in {"href", "src"}]
    assert "url(" not in text
    assert "@import" not in text
    shown = " ".join(read.texts)
    for part in (
        "2 processes on cpu",
        "running for 1 min 5 s",
        "epoch 2, batch 120/1000, step 620",
        "34 batches/s",
    ):
        assert part in shown
    assert "1 min 30 s left of the epoch" in shown
    assert cells(text) == [
        [str(rank), "trains, 12 s", "2", "120/1000", "620", "3.0 GB", "1.0"] for rank in (0, 1)
    ]


def test_texts_of_the_user_are_shown_as_they_are_and_do_nothing():
    rows = (replace(ROW, state=FAILED, doing=f"raised KeyError: {NASTY}"),)
    text = panel_html.document(
        picture(title=NASTY, state=FAILED, outcome=NASTY, rows=rows, curves=(curve(NASTY), curve("a\x00b")))
    )
    read = Reader(text)
    assert "script" not in read.tags
    assert "".join(read.texts).count("<script>alert(1)</script>") == 4
    assert "\x1b" not in "".join(read.texts)


def test_a_large_panel_has_a_bounded_size():
    values = [math.sin(step / 9) for step in range(5000)]
    curves = tuple(curve(f"name {number}", values) for number in range(64))
    rows = tuple(replace(ROW, rank=rank) for rank in range(256))
    text = panel_html.document(picture(rows=rows, curves=curves, further_names=6))
    assert len(text) < 60_000
    assert text.count("<svg") == panel_html.MOST_CURVES
    assert f"and {64 + 6 - panel_html.MOST_CURVES} more" in text


def test_many_ranks_that_do_the_same_are_one_row():
    rows = [replace(ROW, rank=rank, batch=120 + rank % 3, memory=(3 + rank % 2) << 30) for rank in range(15)]
    waits = replace(ROW, rank=15, doing="waits in gather (Cell In[5], line 12)", since=95.0)
    told = cells(panel_html.document(picture(rows=(*rows, waits))))
    assert [row[:4] for row in told] == [
        ["0-14", "trains, 12 s", "2", "120 to 122/1000"],
        ["15", "waits in gather (Cell In[5], line 12), 1 min 35 s", "2", "120/1000"],
    ]
    assert told[0][5] == "3.0 GB to 4.0 GB"


def test_accelerators_have_columns_where_there_are_any():
    plain = panel_html.document(picture())
    assert "device" not in "".join(Reader(plain).texts)
    row = replace(ROW, device_memory=(12 << 30, 80 << 30), device_load=0.934)
    assert cells(panel_html.document(picture(rows=(row,))))[0][-2:] == ["12.0 GB of 80.0 GB", "93 %"]


@pytest.mark.parametrize(
    ("state", "outcome", "mark"),
    [
        (ENDED, "finished", "✓ finished after 1 min 5 s"),
        (FAILED, "rank 1 raised KeyError: 'x'", "✗ rank 1 raised KeyError: &#x27;x&#x27; after 1 min 5 s"),
        (STOPPED, "interrupted", "■ interrupted after 1 min 5 s"),
    ],
)
def test_the_last_picture_says_how_it_ended(state, outcome, mark):
    text = panel_html.document(picture(state=state, outcome=outcome, left=None))
    assert mark in text
    assert "left" not in "".join(Reader(text).texts)
    assert ('<span class="nbp-failed">' in text) == (state == FAILED)


def test_nothing_known_is_no_row_of_dashes():
    row = RankRow(0, RUNNING, "starts", 0.2)
    text = panel_html.document(picture(rows=(row,), curves=(), share=None, left=None, elapsed=0.24))
    assert cells(text) == [["0", "starts"]]
    assert "running for 0.2 s" in text
    assert 'nbp-bar"' not in text
    assert "<svg" not in text
    assert "2 processes" in panel_text.block(picture(rows=(), curves=()))


# --- curves -----------------------------------------------------------------------------------------


def coordinates(drawing):
    (line,) = re.findall(r'<polyline points="([^"]*)"', drawing)
    return [tuple(map(float, pair.split(","))) for pair in line.split()]


def test_a_curve_runs_from_left_to_right_and_falls_when_values_fall():
    placed = coordinates(panel_curves.figure(curve(values=(3.0, 2.0, 1.0))))
    assert len(placed) == 3
    assert [x for x, _ in placed] == sorted(x for x, _ in placed)
    assert [y for _, y in placed] == sorted(y for _, y in placed)  # y counts downwards
    assert all(0 <= x <= panel_curves.WIDTH and 0 <= y <= panel_curves.HEIGHT for x, y in placed)


@pytest.mark.parametrize(
    "values", [(1.0,) * 9, (1e308, -1e308, 1e308), (0.0, 5e-324), tuple(range(7000)), (1e-30, 2e-30)]
)
def test_any_values_can_be_drawn(values):
    placed = coordinates(panel_curves.figure(curve(values=values)))
    assert 1 < len(placed) <= panel_curves.MOST_POINTS + 1
    assert all(math.isfinite(number) for pair in placed for number in pair)


def test_one_value_is_a_dot_and_none_is_no_line():
    assert "<circle" in panel_curves.figure(curve(values=(1.0,)))
    empty = panel_curves.figure(curve(values=(math.nan, math.inf)))
    assert "<polyline" not in empty
    assert "2 not finite" in empty


def test_a_spike_shows_as_a_band():
    values = [0.0] * 5000
    values[2345] = 9.0
    text = panel_curves.figure(curve(values=values))
    assert "<polygon" in text
    assert "0 to 9" in text


# --- text -------------------------------------------------------------------------------------------


def test_a_line_says_the_most_important():
    waits = replace(ROW, rank=1, doing="waits in gather (train.py, line 12)", since=30.0)
    told = panel_text.line(picture(rows=(ROW, waits), epochs=3))
    assert told == (
        "running for 1 min 5 s; epoch 2/3, batch 120/1000, step 620, 34 batches/s, 1 min 30 s left; loss 1; "
        "rank 1 waits in gather (train.py, line 12) for 30 s"
    )


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        ({"left": 0.3}, False),
        ({"left": 4.0}, False),
        ({"left": 6.0}, True),
        ({"left": 4.0, "epochs": 3}, True),
        ({"left": 0.3, "total_steps": 900}, False),
    ],
)
def test_time_left_is_told_where_it_is_long_enough_to_be_read(facts, told):
    assert ("left" in panel_text.how_far(picture(**facts))) == told


def test_plain_text_can_t_move_a_cursor():
    told = panel_text.line(picture(curves=(curve("\x1b[2Jloss\r\n"),)))
    assert all(sign.isprintable() for sign in told)


# --- where it shows ---------------------------------------------------------------------------------


class Tty(io.StringIO):
    def isatty(self):
        return True


def on_terminal(text):
    """What a terminal shows of a text in the end."""
    lines = [""]
    for part in re.split(r"(\r\x1b\[K|\n)", text):
        if part == "\n":
            lines.append("")
        elif part == "\r\x1b[K":
            lines[-1] = ""
        else:
            lines[-1] += part
    return lines


@contextlib.contextmanager
def terminal(monkeypatch):
    """A terminal of 60 columns, and a view on it."""
    monkeypatch.setenv("COLUMNS", "60")
    out = Tty()
    with contextlib.redirect_stdout(out):
        where = Screen()
        view = panel.make_view(screen.surface(), where, asked=False)
        yield out, where, view


def test_in_a_terminal_the_last_line_is_the_panel(monkeypatch):
    with terminal(monkeypatch) as (out, where, view):
        view.update(picture())
        assert on_terminal(out.getvalue())[-1].startswith("nbaccel: running for 1 min 5 s; epoch 2")
        assert len(on_terminal(out.getvalue())[-1]) <= 59
        where.lines(False, 0, "[rank 0] ", ["one", "two"])
        where.write()
        lines = on_terminal(out.getvalue())
        assert lines[:2] == ["[rank 0] one", "[rank 0] two"]
        assert lines[2].startswith("nbaccel: running")
        view.end(picture(state=ENDED, outcome="finished", left=None))
    lines = on_terminal(out.getvalue())
    assert lines[2].startswith("nbaccel: finished after 1 min 5 s; epoch 2, batch 120/1000")
    assert lines[3:] == [""]


def test_an_open_line_of_a_progress_bar_is_left_alone(monkeypatch):
    with terminal(monkeypatch) as (out, where, view):
        where.state(False, 0, "30%|###")
        where.write()
        view.update(picture())
        assert out.getvalue() == "\r30%|###"
        where.lines(False, 0, "", ["100%|####"])
        where.write()
        assert on_terminal(out.getvalue())[-1].startswith("nbaccel: running")
        view.end(picture(state=ENDED, outcome="finished"))


def test_one_launch_has_the_terminal_s_last_line_and_others_have_lines(monkeypatch):
    with terminal(monkeypatch) as (out, where, view):
        other = panel.make_view(screen.surface(), where, asked=False)
        other.update(picture())
        other.end(picture(state=ENDED, outcome="finished"))
        assert out.getvalue() == ""
        view.end(picture(state=ENDED, outcome="finished"))
        abandoned = panel.make_view(screen.surface(), where, asked=False)
        del abandoned
        again = panel.make_view(screen.surface(), where, asked=False)
        again.update(picture())
        assert "running" in out.getvalue()
        again.end(picture(state=ENDED, outcome="finished"))


def test_in_a_batch_run_lines_come_ever_more_rarely_and_short_runs_say_nothing(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(panel.time, "monotonic", lambda: now[0])
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert screen.surface() == screen.BATCH
        short = panel.make_view(screen.BATCH, Screen(), asked=False)
        short.update(picture())
        short.end(picture(state=ENDED, outcome="finished"))
        assert out.getvalue() == ""
        view = panel.make_view(screen.BATCH, Screen(), asked=False)
        for second in range(601):
            now[0] = float(second)
            view.update(picture())
        view.end(picture(state=ENDED, outcome="finished"))
    lines = out.getvalue().splitlines()
    assert 10 < len(lines) < 20
    assert lines[-1].startswith("nbaccel: finished after")
    with contextlib.redirect_stdout(io.StringIO()) as out:
        panel.make_view(screen.BATCH, Screen(), asked=True).end(picture(state=ENDED, outcome="finished"))
    assert out.getvalue().startswith("nbaccel: finished after")
