"""Labels, choices of ``output``, progress where nobody watches, unfinished lines: without workers."""

import io
import sys
import time
from types import SimpleNamespace

import pytest

from nbaccel.launch.output import router as output
from nbaccel.launch.output import screen
from nbaccel.launch.output.router import Router
from nbaccel.launch.transport.messages import Display


@pytest.fixture
def shown(monkeypatch):
    """Both streams as one text."""
    # Not sys itself: between this fixture and the test pytest puts streams of its own there.
    target = io.StringIO()
    streams = SimpleNamespace(stdout=target, stderr=target, modules={})
    monkeypatch.setattr(screen, "sys", streams)
    return target


@pytest.fixture
def watched(monkeypatch):
    """Somebody looks at a front end."""
    monkeypatch.setattr(output, "is_interactive", lambda: True)


@pytest.fixture
def clock(monkeypatch):
    """A time that passes when the test says so."""

    class Clock:
        now = 1000.0

        def monotonic(self):
            return self.now

    clock = Clock()
    monkeypatch.setattr(time, "monotonic", clock.monotonic)
    return clock


def end(router, ranks):
    for rank in ranks:
        router.end(rank, False)
        router.end(rank, True)
    router.close()


def test_gloos_report_that_all_is_well_is_left_out(shown):
    router = Router("all", range(2))
    report = "[Gloo] Rank {} is connected to {} peer ranks. Expected number of connected peer ranks is : 1\n"
    router.feed(0, False, b"one\n" + report.format(0, 1).encode() + b"two\n")
    router.feed(1, False, report.format(1, 0).encode())
    start, rest = report.format(0, 1)[:20], report.format(0, 1)[20:]
    router.feed(0, False, start.encode())
    router.feed(0, False, rest.encode() + b"three\n")
    end(router, range(2))
    others = report.format(1, 0)
    assert shown.getvalue() == f"[rank 0] one\n[rank 0] two\n[rank 1] {others}[rank 0] three\n"


def test_lines_carry_their_rank_and_come_whole(shown):
    router = Router("all", range(2))
    router.feed(0, False, b"one\nha")
    router.feed(1, False, b"two\n")
    router.feed(0, False, b"lf\n")
    end(router, range(2))
    assert shown.getvalue() == "[rank 0] one\n[rank 1] two\n[rank 0] half\n"


def test_labels_of_the_user_s_own(shown):
    router = Router("all", range(1), labels={0: "worker0: "})
    router.feed(0, False, b"one\n")
    end(router, range(1))
    assert shown.getvalue() == "worker0: one\n"


def test_an_unfinished_last_line_is_shown_at_the_end(shown):
    router = Router("all", range(2))
    router.feed(1, True, b"no end")
    end(router, range(2))
    assert shown.getvalue() == "[rank 1] no end\n"


def test_utf8_that_reads_have_split(shown):
    data = "größe ∑ 🎉\n".encode()
    router = Router("all", range(2))
    for byte in data:
        router.feed(0, False, bytes([byte]))
    end(router, range(2))
    assert shown.getvalue() == "[rank 0] größe ∑ 🎉\n"


def test_binary_garbage_is_shown_and_nothing_breaks(shown):
    router = Router("all", range(2))
    router.feed(0, False, bytes(range(256)) * 3 + b"\n")
    router.feed(0, False, b"fine\n")
    end(router, range(2))
    assert "\\xff" in shown.getvalue()
    assert shown.getvalue().endswith("[rank 0] fine\n")


def test_main_shows_one_rank_and_keeps_the_others_for_a_failure(shown):
    router = Router("main", range(2))
    router.feed(0, False, b"shown\n")
    router.feed(1, False, b"kept\n")
    router.take_display(1, Display(1, "show", {"text/plain": "figure"}))
    router.flush()
    assert shown.getvalue() == "shown\n"
    end(router, range(2))
    router.show_kept(1)
    assert shown.getvalue().splitlines()[1:] == [
        "[rank 1] its output, which was not shown:",
        "[rank 1] kept",
        "[rank 1] figure",
    ]


def test_what_is_kept_is_bounded(shown):
    router = Router("none", range(1))
    for number in range(5000):
        router.feed(0, False, b"%d\n" % number)
    router.feed(0, False, b"y" * (5 << 20) + b"\n")
    end(router, range(1))
    router.show_kept(0)
    assert len(shown.getvalue()) < 2 << 20


def test_the_tail_of_stderr_is_bounded():
    router = Router("none", range(1))
    for number in range(100):
        router.feed(0, True, b"%d\n" % number)
    router.feed(0, True, b"z" * (1 << 20) + b"\n")
    end(router, range(1))
    tail = router.stderr_tail(0).splitlines()
    assert tail[0] == "81"
    assert len(tail[-1]) < 10_000


def test_bars_of_the_main_rank_are_live_and_the_others_wait_for_their_end(shown, watched):
    router = Router("all", range(2))
    router.feed(0, True, b"\r50%")
    router.feed(1, True, b"\r40%")
    router.flush()
    assert shown.getvalue() == "\r[rank 0] 50%"
    router.feed(1, True, b"\r100%\n")
    end(router, range(2))
    above, below = "[rank 1] 100%\n", "\r[rank 0] 50%"
    assert shown.getvalue() == f"{below}\r{above}{below}{below}\n"


def test_one_process_in_front_of_somebody_passes_as_it_comes(shown, watched):
    router = Router("all", range(1))
    router.feed(0, False, b"\r10%\r20%")
    router.flush()
    assert shown.getvalue() == "\r10%\r20%"


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("seconds", [1, 1000], ids=["fast", "slow"])
def test_B052_where_nobody_watches_a_bar_gives_few_lines(shown, clock, count, seconds):
    router = Router("all", range(count))
    for step in range(1000):
        router.feed(0, True, b"\rstep %4d" % (step + 1))
        clock.now += seconds / 1000
        router.tick()
    router.feed(0, True, b"\n")
    end(router, range(count))
    states = shown.getvalue().replace("\r", "\n").split("\n")
    assert 1 <= len([state for state in states if state]) < 50
    assert "step 1000" in shown.getvalue()


def test_a_bar_that_stands_still_shows_where(shown, clock):
    router = Router("all", range(2))
    router.feed(0, True, b"\r37%")
    assert router.due() == pytest.approx(clock.now + 1)
    clock.now += 1.01
    router.tick()
    assert shown.getvalue() == "[rank 0] 37%\n"
    router.feed(0, True, b"\n")
    end(router, range(2))
    assert shown.getvalue() == "[rank 0] 37%\n"


def test_a_question_of_the_main_rank_appears_when_it_is_quiet(shown, clock):
    router = Router("all", range(2))
    router.feed(0, False, b"Name? ")
    router.feed(1, False, b"other question? ")
    router.tick()
    assert shown.getvalue() == ""
    clock.now += 0.31
    router.tick()
    clock.now += 0.1
    router.tick()
    assert shown.getvalue() == "[rank 0] Name? "
    router.feed(0, False, b"Ada\n")
    end(router, range(2))
    assert shown.getvalue() == "[rank 0] Name? Ada\n[rank 1] other question? \n"


def test_nothing_is_due_while_there_is_nothing_to_show():
    router = Router("all", range(2))
    assert router.due() == float("inf")
    end(router, range(2))


def test_a_clear_from_another_rank_leaves_the_cell_alone(shown, monkeypatch):
    router = Router("all", range(2))
    published = []
    monkeypatch.setattr("nbaccel.launch.output.screen.publish", published.append)
    clear = Display(1, "clear")
    for rank in (0, 1):
        router.take_display(rank, clear)
        router.feed(rank, False, output.marks.encode(router.secret, b"s", 1))
    end(router, range(2))
    assert published == [clear]


def test_displays_of_several_ranks_are_labelled(shown):
    router = Router("all", range(2))
    router.take_display(1, Display(1, "show", {"text/plain": "table"}))
    router.feed(1, False, b"before\n" + output.marks.encode(router.secret, b"s", 1))
    end(router, range(2))
    assert shown.getvalue() == "[rank 1] before\n[rank 1] displays:\ntable\n"


def test_lost_output_is_told_once_and_costs_nothing_else(monkeypatch):
    class Broken(io.StringIO):
        def write(self, text):
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(sys, "stdout", Broken())
    router = Router("all", range(2))
    for _ in range(3):
        router.feed(0, False, b"text\n")
        router.flush()
    with pytest.warns(RuntimeWarning, match="No space left") as told:
        router.close()
    assert len(told) == 1


def test_lost_output_is_noted_on_the_launch_s_own_error(monkeypatch):
    monkeypatch.setattr(sys, "stdout", closed := io.StringIO())
    closed.close()
    router = Router("all", range(2))
    router.feed(0, False, b"text\n")
    error = ZeroDivisionError()
    router.close(error)
    assert "closed file" in error.__notes__[0]


# --- logs -------------------------------------------------------------------------------------------


def test_logs_have_everything_of_each_rank(shown, tmp_path):
    router = Router("main", range(2), log_dir=str(tmp_path / "new" / "logs"))
    router.feed(0, False, b"out\n")
    router.feed(1, True, b"\r10%\r100%\nend")
    end(router, range(2))
    logs = tmp_path / "new" / "logs"
    assert (logs / "rank-0.log").read_bytes().endswith(b"\nout\n")
    assert (logs / "rank-1.log").read_bytes().endswith(b"\n\r10%\r100%\nend")


def test_a_second_launch_adds_to_the_logs(tmp_path):
    for text in (b"first\n", b"second\n"):
        router = Router("none", range(1), log_dir=str(tmp_path))
        router.feed(0, False, text)
        end(router, range(1))
    lines = (tmp_path / "rank-0.log").read_text().splitlines()
    assert [line for line in lines if not line.startswith("--- launched ")] == ["first", "second"]


def test_a_log_folder_that_can_t_be_is_refused_before_anything_starts(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="NBACCEL_LOG_DIR"):
        Router("all", range(1), log_dir=str(tmp_path / "file" / "logs"))


def test_a_full_disk_costs_the_log_only(shown):
    router = Router("all", range(1))
    router._logs = output.RankLogs("/tmp", [])
    with open("/dev/full", "ab", buffering=0) as full:
        router._logs._files[0] = full
        router.feed(0, False, b"text\n")
        router.end(0, False)
        with pytest.warns(RuntimeWarning, match="log could not be written"):
            router.close()
    assert shown.getvalue() == "text\n"
