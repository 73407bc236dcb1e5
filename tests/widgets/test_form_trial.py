"""The form's self test: in a process of its own, told line by line, to be stopped."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable

import psutil
import pytest

from nbaccel.diagnosis import child
from nbaccel.diagnosis.selftest import STAGES
from nbaccel.widgets import form_trial
from nbaccel.widgets.form import Form
from nbaccel.widgets.form_devices import Watch
from nbaccel.widgets.form_parts import Log
from tests.kernel import ROOT
from tests.widgets.forms import put, view_of

NewForm = Callable[..., Form]
PATIENCE_S = 100.0


def until(condition: Callable[[], bool], seconds: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it doesn't come true"
        time.sleep(0.01)


def test_the_configured_run_is_tested_stage_by_stage(new_form: NewForm) -> None:
    form = new_form(num_processes=2, cpu=True)
    view = view_of(form)
    put(form, "mixed_precision", "bf16")  # what stands in the form is tested, applied or not
    view.test_button.click()
    assert form.is_testing
    assert view.test_button.description == "Stop test"
    assert form.wait_for_test(PATIENCE_S)
    assert view.status.text == f"Self test: all {len(STAGES)} stages passed."
    assert view.test_button.description == "Test"
    assert (view.progress.value, view.progress.bar_style) == (len(STAGES), "success")
    assert [line.split(":")[0] for line in form.report] == [stage.name for stage in STAGES]
    assert "2 processes on cpu, bf16" in form.report[1]
    assert view.log.lines == form.report


def test_a_stage_that_fails_is_told_with_what_to_try(
    new_form: NewForm,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    form = new_form()
    # Another process may see another machine.
    monkeypatch.setattr(
        child, "request", lambda _said, timeout_s: b'{"said": {"devices": "7"}, "timeout_s": 9}\n'
    )
    view_of(form).test_button.click()
    assert form.wait_for_test(PATIENCE_S)
    assert view_of(form).status.text == "Self test: stage 'devices' failed."
    assert view_of(form).progress.bar_style == "danger"
    assert "devices: FAILED" in form.report[1]
    assert form.report[-1].startswith("What to try: ")


def test_stopping_leaves_nothing(new_form: NewForm) -> None:
    form = new_form(num_processes=2, cpu=True)
    view_of(form).test_button.click()
    until(lambda: any(line.startswith("start: ok") for line in form.report))
    view_of(form).test_button.click()
    assert form.wait_for_test(30)
    assert view_of(form).status.text == "Self test: stopped."
    # What it started is gone: the leak check looks for it.


def test_a_process_that_ends_without_a_word_is_told_of(
    new_form: NewForm,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        form_trial.child, "PROGRAM", "print('no such luck', flush=True); import os; os._exit(3)"
    )
    form = new_form()
    form.test()
    assert form.wait_for_test(PATIENCE_S)
    assert view_of(form).status.text == "Self test: its process ended with exit code 3."
    assert form.report == ["no such luck"]


def test_the_end_of_the_kernel_ends_it() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", child.PROGRAM],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    with process:
        process.stdin.write(child.request({"num_processes": 2, "cpu": True}, 60.0))
        process.stdin.flush()
        while b'"begins": "start"' not in process.stdout.readline():
            assert process.poll() is None
        relatives = psutil.Process(process.pid).children(recursive=True)
        process.stdin.close()  # as when the kernel is killed
        assert process.wait(30) == 130
        assert psutil.wait_procs(relatives, 5)[1] == []


def test_B047_B048_lines_of_many_threads_are_all_there_and_stay_in_the_form() -> None:
    log = Log()

    def write(number: int) -> None:
        for line in range(250):
            log.add(f"{number} <{line}>")

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    shown = log.widget.value
    assert len(log.lines) == 1000
    for number in range(4):
        places = [shown.index(f"{number} &lt;{line}&gt;") for line in range(250)]
        assert places == sorted(places)


def test_B170_a_log_is_cleared_without_touching_a_cell(capsys: pytest.CaptureFixture[str]) -> None:
    log = Log()
    log.add("old")
    thread = threading.Thread(target=log.clear)
    thread.start()
    thread.join()
    assert (log.lines, log.widget.value) == ([], "")
    assert capsys.readouterr() == ("", ""), "clear_output would have written here"


def test_a_watch_looks_again_and_again_until_it_is_stopped() -> None:
    seen = threading.Semaphore(0)
    watch = Watch(seen.release, period_s=0.001)
    for _ in range(3):
        assert seen.acquire(timeout=10)
    watch.stop()
    assert not watch.is_running
    while seen.acquire(blocking=False):
        pass
    assert not seen.acquire(timeout=0.05)
