"""Each fault at each stage of a worker's life, for each start method: control comes back, nobody is left.

With ``NBACCEL_WRITE_DOCS=1`` the outcomes are written to ``docs/fault-matrix.md``, slow combinations
included, that are left out of an ordinary run.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch.distributed as dist

from nbaccel import notebook_launcher
from tests.launch.conftest import START_METHODS, descendants, use

DOCUMENT = Path(__file__).parents[2] / "docs" / "fault-matrix.md"
WRITES = os.environ.get("NBACCEL_WRITE_DOCS") == "1"

TIMEOUT_S = {"zygote": 3.0, "fork": 3.0, "spawn": 15.0, "portable": 15.0}
"""Of launches that would not end by themselves; a fresh interpreter takes some seconds to start."""


def _raise():
    raise LookupError("on purpose")


def _kill():
    os.kill(os.getpid(), signal.SIGKILL)


def _leave():
    os._exit(7)


def _exit():
    sys.exit(3)


def _hang():
    time.sleep(300)


def _hang_deaf():
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    time.sleep(300)


FAULTS: dict[str, Callable[[], None]] = {
    "raises": _raise,
    "is killed (SIGKILL)": _kill,
    "calls os._exit(7)": _leave,
    "calls sys.exit(3)": _exit,
    "hangs": _hang,
    "hangs, ignores signals": _hang_deaf,
}
ENDLESS = ("hangs", "hangs, ignores signals")


class _AtLoading:
    def __init__(self, fault):
        self.fault = fault

    def __reduce__(self):
        return FAULTS[self.fault], ()


class _AtSending:
    def __init__(self, fault):
        self.fault = fault

    def __reduce__(self):
        FAULTS[self.fault]()
        return str, ()


def _work(stage, fault, _passenger):
    is_bad = os.environ["RANK"] == "1"
    if stage == "at its start" and is_bad:
        FAULTS[fault]()
    dist.init_process_group("gloo")
    dist.barrier()
    if stage == "while a peer waits" and is_bad:
        FAULTS[fault]()
    if stage == "while a peer waits":
        dist.barrier()
    if stage == "after it returned" and is_bad:
        atexit.register(FAULTS[fault])
    return _AtSending(fault) if stage == "sending its value" and is_bad else "fine"


STAGES = ("loading its task", "at its start", "while a peer waits", "sending its value", "after it returned")

EXPECTED = {
    "raises": "LookupError",
    "is killed (SIGKILL)": "WorkerDied",
    "calls os._exit(7)": "WorkerDied",
    "calls sys.exit(3)": "WorkerDied",
    "hangs": "LaunchTimeout",
    "hangs, ignores signals": "LaunchTimeout",
}

_rows: list[tuple[str, str, str, str, float, int]] = []


@pytest.fixture(scope="module", autouse=True)
def document() -> Iterator[None]:
    """The table, when it was asked for."""
    yield
    if WRITES:
        DOCUMENT.write_text(_document())


def _combinations():
    for start_method in START_METHODS:
        for stage in STAGES:
            for fault in FAULTS:
                if stage == "after it returned" and fault in ENDLESS:
                    continue  # waits for the shutdown patience; test_failures.py shortens that and tests it
                is_slow = start_method in ("spawn", "portable") and stage != "while a peer waits"
                if WRITES or not is_slow:
                    yield start_method, stage, fault


@pytest.mark.parametrize(("start_method", "stage", "fault"), list(_combinations()))
def test_a_fault_ends_the_launch_and_leaves_nobody(start_method, stage, fault, capfd, monkeypatch):
    passenger = _AtLoading(fault) if stage == "loading its task" else None
    before = {process.pid for process in descendants()}
    begin = time.monotonic()
    try:
        values = notebook_launcher(
            _work,
            (stage, fault, passenger),
            num_processes=2,
            start_method=use(start_method, monkeypatch),
            returns="all",
            timeout=TIMEOUT_S[start_method] if fault in ENDLESS else 60,
        )
        outcome = f"returns {values}"
    except Exception as error:  # which one is what is looked at
        outcome = type(error).__name__
        if stage != "loading its task":
            assert error.rank == 1 or fault in ENDLESS  # noqa: PT017
    seconds = time.monotonic() - begin
    left = [process for process in descendants() if process.pid not in before]
    _rows.append((fault, stage, start_method, outcome, seconds, len(left)))
    assert not left
    if stage == "after it returned":
        # An exit handler that raises is no failure for Python either: its traceback is printed.
        assert outcome == "returns ['fine', 'fine']"
        is_raised = fault in ("raises", "calls sys.exit(3)")
        sign = "Exception ignored in atexit callback" if is_raised else "after its function had returned"
        # A fork of this process has pytest's hook for such exceptions, which prints nothing.
        if not (is_raised and start_method == "fork"):
            assert sign in capfd.readouterr().err
    else:
        # What can't be pickled is a TypeError, whatever its own way of refusing is.
        refused = stage == "sending its value" and fault == "raises"
        assert outcome == ("TypeError" if refused else EXPECTED[fault])


def _document() -> str:
    lines = [
        "# What happens when a worker fails",
        "",
        "Two processes; rank 1 has the fault (both, while they load their task). Written by",
        "`NBACCEL_WRITE_DOCS=1 python -m pytest tests/launch/test_fault_matrix.py`. Seconds are from the",
        "call to control being back, start of the workers included; for a worker that hangs the launch had a",
        f"`timeout` of {TIMEOUT_S['zygote']:g} s ({TIMEOUT_S['spawn']:g} s with `spawn` and `portable`,",
        "which is what happens on Windows).",
        "",
        "| a worker … | when | start method | outcome | seconds | processes left |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    lines += [
        f"| {fault} | {stage} | {method} | `{outcome}` | {seconds:.2f} | {left} |"
        for fault, stage, method, outcome, seconds, left in sorted(
            _rows, key=lambda row: (list(FAULTS).index(row[0]), STAGES.index(row[1]), row[2])
        )
    ]
    return "\n".join(lines) + "\n"
