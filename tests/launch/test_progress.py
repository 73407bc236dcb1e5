"""What is told of a rank becomes what is shown: activity, rates, time left, ends. No process is started."""

from __future__ import annotations

from array import array
from types import SimpleNamespace

import pytest

from nbaccel import config
from nbaccel.errors import ConfigError, LaunchTimeout
from nbaccel.launch.progress import end, progress
from nbaccel.launch.progress.model import ENDED, FAILED, RUNNING, STOPPED, RankRow
from nbaccel.launch.progress.track import RankTrack, estimate
from nbaccel.launch.traces.postmortem import FrameReport
from nbaccel.launch.traces.whereabouts import Whereabouts
from nbaccel.launch.transport.messages import Failed, Progress
from nbaccel.runtime.curves import CurveData
from nbaccel.runtime.gauges import Pass, Standing

TRAIN, TEST = 1, 2
"""Loaders."""


def a_pass(loader, done, *, epoch=0, length=100, steps=0, total=None):
    number = loader * 10 + epoch
    return Pass(number, loader, epoch, done, length, steps, done if total is None else total)


def at(line=0, waits_in=""):
    return Whereabouts(0.0, waits_in, "train.py" if line else "", line)


def fed(*reports):
    track = RankTrack(0, 100.0)
    for standing, here in reports:
        track.take(Progress(standing, here))
    return track


def standing(when, *passes, **more):
    return Standing(when=100.0 + when, passes=passes, **more)


# --- what it does -----------------------------------------------------------------------------------


def test_before_anything_is_known():
    row = RankTrack(3, 100.0).row(102.0)
    assert (row.rank, row.doing, row.since, row.batch) == (3, "starts", 2.0, None)


def test_it_trains_evaluates_and_runs_lines():
    over = a_pass(TRAIN, 100, steps=100)
    track = fed((standing(1), at(7)))
    assert track.row(101.0).doing == "runs train.py, line 7"
    track.take(Progress(standing(2, a_pass(TEST, 5)), at(7)))
    assert track.row(102.0).doing == "reads batches"
    track.take(Progress(standing(3, a_pass(TRAIN, 5, steps=5)), at(7)))
    assert track.row(105.0).doing == "trains"
    assert track.row(105.0).since == 2.0
    track.take(Progress(standing(6, a_pass(TEST, 5), last=over), at(9)))
    row = track.row(106.0)
    # The epoch is that of training, the batch the evaluation's.
    assert (row.doing, row.epoch, row.batch) == ("evaluates", 0, 5)
    # The first batch of the next epoch: no step yet, but it is the loader that is trained on.
    track.take(Progress(standing(7, a_pass(TRAIN, 1, epoch=1), last=over), at(7)))
    assert track.row(107.0).doing == "trains"


def test_an_evaluation_inside_an_epoch():
    nested = fed((standing(1, a_pass(TRAIN, 50, steps=50), a_pass(TEST, 3)), at(7)))
    row = nested.row(101.0)
    assert (row.doing, row.batch) == ("evaluates", 50)


def test_waiting_counts_from_when_it_began_and_only_after_a_while():
    track = fed((standing(1), at(12, "gather")), (standing(3.5), at(12, "gather")))
    assert track.row(103.5).doing == "runs train.py, line 12"
    track.take(Progress(standing(4.5), at(12, "gather")))
    row = track.row(111.0)
    assert (row.doing, row.since) == ("waits in gather (train.py, line 12)", 10.0)


def test_a_loop_that_goes_on_trains_wherever_it_is_found():
    looks = [
        (standing(t, a_pass(TRAIN, 40 * t, length=999, steps=40 * t)), at(4, "backward"))
        for t in range(1, 21)
    ]
    track = fed(*looks)
    assert (track.row(121.0).doing, track.row(121.0).since) == ("trains", 20.0)
    # Between two passes, and after an evaluation, it is the same training.
    over = a_pass(TRAIN, 999, steps=999)
    track.take(Progress(standing(21, last=over, steps=999), at(4, "backward")))
    track.take(Progress(standing(22, a_pass(TEST, 5), last=over, steps=999), at(9)))
    assert track.row(122.0).doing == "evaluates"
    track.take(Progress(standing(23, a_pass(TRAIN, 5, epoch=1, steps=5), last=over, steps=1004), at(4)))
    assert (track.row(124.0).doing, track.row(124.0).since) == ("trains", 23.0)


def test_a_loop_that_stands_still_waits_from_when_it_stood():
    def look(t, done):
        return standing(t, a_pass(TRAIN, done, steps=done), steps=done), at(4, "backward")

    track = fed(*(look(t, 40 * t) for t in range(1, 11)))
    track.take(Progress(*look(12, 400)))
    assert track.row(112.0).doing == "trains"
    track.take(Progress(*look(13, 400)))
    row = track.row(115.0)
    assert (row.doing, row.since) == ("waits in backward (train.py, line 4)", 5.0)
    track.take(Progress(*look(16, 401)))
    assert (track.row(116.0).doing, track.row(116.0).since) == ("trains", 15.0)


def test_steps_without_a_prepared_loader_are_training_too():
    looks = [(standing(t, steps=t // 2), at(4, "backward")) for t in range(1, 21)]
    assert fed(*looks).row(120.0).doing == "trains"
    ended = fed(*looks, (standing(24, steps=10), at(30)))
    assert ended.row(124.0).doing == "runs train.py, line 30"


def test_a_report_from_outside_of_the_call_changes_nothing():
    track = fed((standing(1, a_pass(TRAIN, 5, steps=5)), at(7)), (standing(2, steps=5), at()))
    assert track.row(102.0).doing == "trains"


# --- how fast ---------------------------------------------------------------------------------------


def test_rate_and_time_left_of_an_epoch():
    track = fed(*((standing(t, a_pass(TRAIN, 10 * t, steps=10 * t)), at(7)) for t in range(1, 5)))
    told = estimate(track, 104.0)
    assert track.row(104.0).rate == pytest.approx(10.0)
    assert (told.share, told.left, told.epochs) == (0.4, pytest.approx(6.0), None)


def test_rate_of_passes_that_are_shorter_than_the_time_between_two_looks():
    looks = [
        (standing(t, a_pass(TRAIN, 1, epoch=7 * t, length=3, steps=1, total=21 * t)), at(7))
        for t in range(1, 4)
    ]
    assert fed(*looks).row(103.0).rate == pytest.approx(21.0)


def test_an_evaluation_does_not_count_into_the_rate_of_training():
    track = fed(
        (standing(1, a_pass(TRAIN, 10, steps=10)), at(7)),
        (standing(2, a_pass(TRAIN, 20, steps=20)), at(7)),
        (standing(4, a_pass(TEST, 10), last=a_pass(TRAIN, 20, steps=20)), at(7)),
        (standing(5, a_pass(TEST, 90), last=a_pass(TRAIN, 20, steps=20)), at(7)),
    )
    assert track.row(105.0).rate == pytest.approx(80.0)
    track.take(
        Progress(standing(9, a_pass(TRAIN, 2, epoch=1, total=22), last=a_pass(TRAIN, 20, steps=20)), at(7))
    )
    assert track.row(109.0).rate == pytest.approx(10.0)


def test_time_left_of_a_run_whose_epochs_are_known():
    def look(t, done):
        one = a_pass(TRAIN, done, steps=done)
        return standing(t, one, epochs=4), at(7)

    track = fed(look(1, 20))
    assert estimate(track, 101.0).left is None
    track.take(Progress(*look(11, 40)))
    told = estimate(track, 111.0)
    assert (told.share, told.epochs) == (pytest.approx(0.1), 4)
    assert told.left == pytest.approx(180.0)  # 5 % took 10 s, 90 % are left


def test_epochs_of_a_loader_that_has_been_trained_on_before():
    one = a_pass(TRAIN, 50, epoch=3, steps=50)
    track = fed((standing(1, one, epochs=2, first_epoch=2), at(7)))
    told = estimate(track, 101.0)
    assert (told.share, told.epochs) == (pytest.approx(0.75), 4)


def test_time_left_in_steps():
    track = fed((standing(1, steps=100, total_steps=400), at(7)))
    estimate(track, 101.0)
    track.take(Progress(standing(2, steps=200, total_steps=400), at(7)))
    told = estimate(track, 102.0)
    assert (told.share, told.left) == (0.5, pytest.approx(2.0))
    assert track.row(102.0).rate == pytest.approx(100.0)


# --- how it ends ------------------------------------------------------------------------------------

ROW = RankRow(1, RUNNING, "trains", 3.0)
HERE = FrameReport("train.py", "step", 12, (), {})
LIBRARY = FrameReport(config.__file__, "resolve", 1, (), {})


def member(**facts):
    before = {
        "rank": 1,
        "returned": False,
        "failure": None,
        "frames": None,
        "asked_exit": None,
        "exit_text": "",
        "has_exited": False,
        "exitcode": None,
    }
    return SimpleNamespace(**{**before, **facts})


def failed(type_name="KeyError", text="'x'", *, consequence=False):
    return Failed(1, 1, 0.0, type_name, text, "", consequence, in_result=False)


def error_of(rank):
    error = KeyError("x")
    error.rank = rank
    return error


@pytest.mark.parametrize(
    ("facts", "error", "state", "doing"),
    [
        ({"returned": True, "has_exited": True}, None, ENDED, "has finished"),
        (
            {"failure": failed(), "frames": (HERE, LIBRARY)},
            error_of(1),
            FAILED,
            "raised KeyError: 'x' at train.py, line 12",
        ),
        (
            {"failure": failed("Closed", consequence=True)},
            error_of(0),
            STOPPED,
            "lost its connection to the others",
        ),
        (
            {"failure": failed("Closed", "by peer", consequence=True)},
            error_of(1),
            FAILED,
            "raised Closed: by peer",
        ),
        ({"failure": failed("KeyboardInterrupt", "")}, KeyboardInterrupt(), STOPPED, "interrupted (trains)"),
        ({"failure": failed("KeyboardInterrupt", "")}, error_of(0), STOPPED, "stopped (trains)"),
        ({"has_exited": True, "exitcode": -15}, KeyboardInterrupt(), STOPPED, "interrupted (trains)"),
        ({"has_exited": True, "exitcode": -15}, error_of(0), STOPPED, "stopped (trains)"),
        ({"has_exited": True, "exitcode": 3}, error_of(1), FAILED, "died: exit code 3"),
        ({"asked_exit": 5}, error_of(1), FAILED, "called sys.exit(5)"),
        (
            {"has_exited": True, "exitcode": -9},
            LaunchTimeout("not over", rank=0),
            STOPPED,
            "stopped (trains)",
        ),
    ],
)
def test_how_a_rank_ended(facts, error, state, doing):
    row = end.row_at_end(member(**facts), ROW, error)
    assert (row.state, row.doing, row.since) == (state, doing, None)


def test_how_a_run_ended():
    raised = RankRow(1, FAILED, "raised KeyError: 'x' at train.py, line 12")
    assert end.outcome_of(None, [ROW]) == (ENDED, "finished")
    assert end.outcome_of(KeyboardInterrupt(), [ROW]) == (STOPPED, "interrupted")
    assert end.outcome_of(error_of(1), [ROW, raised]) == (FAILED, f"rank 1 {raised.doing}")
    assert end.outcome_of(OSError("no more\nlines"), [ROW]) == (FAILED, "OSError: no more")
    late = LaunchTimeout("not over after 3 s\nstacks", rank=0)
    assert end.outcome_of(late, [ROW]) == (STOPPED, "not over after 3 s")


def test_a_long_message_is_cut():
    assert len(end.described("Error", "x" * 5000)) < 300


# --- when it shows ----------------------------------------------------------------------------------


def test_who_may_say_whether_there_is_a_panel(monkeypatch):
    assert [progress.mode_of(asked) for asked in (None, True, False, "auto")] == ["auto", "on", "off", "auto"]
    monkeypatch.setenv("NBACCEL_PROGRESS", "off")
    assert (progress.mode_of(None), progress.mode_of(True)) == ("off", "on")
    with pytest.raises(ValueError, match=r"progress='sometimes' .*auto, on, off"):
        progress.mode_of("sometimes")


@pytest.mark.parametrize(
    ("value", "read"), [(True, "on"), (False, "off"), ("Auto", "auto"), ("1", "on"), ("no", "off")]
)
def test_spellings_of_the_setting(value, read):
    assert config.setting("progress", "x").check(value, "x") == read


def test_a_wrong_value_of_the_setting_names_the_choices():
    with pytest.raises(ConfigError, match="auto, on, off"):
        config.setting("progress", "x").check("maybe", "x")


def test_curves_show_at_once_and_training_after_a_while():
    group = SimpleNamespace(members=[])
    watch = progress.ProgressWatch("auto", group, SimpleNamespace(), config.LaunchSpec())
    assert not watch._shows(200.0)
    watch._tracks[0] = fed((standing(1, a_pass(TRAIN, 5, steps=5)), at(7)))
    assert not watch._shows(101.0 + progress.SHOW_AFTER / 2)
    assert watch._shows(101.0 + progress.SHOW_AFTER)
    curve = CurveData("loss", array("d"), 1.0, 1.0, 1, 0)
    watch._tracks[1] = fed((standing(1, curves=(curve,)), at(7)))
    assert watch._shows(101.0)
