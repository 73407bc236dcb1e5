"""When a test passes its deadline: the stacks of every process it started, then the failure.

pytest-timeout keeps the clock; this adds what its own report can't know, where each rank was. It must be
sure never to signal a process that would die of it: only those of this run that have a handler.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

from tests import leaks

STACKS_FILE = "NBACCEL_TEST_STACKS"
"""Environment variable: the file that support/sitecustomize.py has the stacks written to."""

_SUPPORT = Path(__file__).parent / "support"


def arm(stacks: Path) -> None:
    """Make every Python process started from here on answer SIGUSR1 with its stacks, written to `stacks`."""
    stacks.touch()
    os.environ[STACKS_FILE] = str(stacks)
    rest = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = str(_SUPPORT) + (os.pathsep + rest if rest else "")


def stacks_of_all_processes(timeout_s: float = 3.0) -> str:
    """One section for each process of the run: what it is, and where each of its threads is."""
    stacks = Path(os.environ[STACKS_FILE])
    sections = []
    for (pid, _), description in sorted(leaks.marked_processes().items()):
        header = f"--- {description}"
        if not _catches(pid, signal.SIGUSR1):
            sections.append(f"{header}\n(doesn't answer: it isn't Python, or is still starting)")
            continue
        start = stacks.stat().st_size
        os.kill(pid, signal.SIGUSR1)
        sections.append(f"{header}\n{_appended(stacks, start, timeout_s)}")
    return "\n".join(sections)


def report_stacks_before_failing() -> None:
    """Put the stacks in front of the alarm that pytest-timeout has set for this test."""
    fail = signal.getsignal(signal.SIGALRM)
    if not callable(fail):
        return  # no deadline for this test, or the thread method is in use

    def on_deadline(signum: int, frame: FrameType | None) -> Any:
        # The test's processes first: pytest-timeout's own report of this process follows.
        print(
            f"\nThe test's deadline has passed. Its processes:\n{stacks_of_all_processes()}", file=sys.stderr
        )
        return fail(signum, frame)

    signal.signal(signal.SIGALRM, on_deadline)


def _catches(pid: int, signum: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    mask = next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(mask, 16) >> (signum - 1) & 1)


def _appended(path: Path, start: int, timeout_s: float) -> str:
    """What the process wrote: all there is once the file has stopped growing."""
    deadline = time.monotonic() + timeout_s
    size = -1
    while time.monotonic() < deadline:
        now = path.stat().st_size
        if now > start and now == size:
            break
        size = now
        time.sleep(0.1)
    with path.open("rb") as file:
        file.seek(start)
        return file.read().decode(errors="replace").rstrip() or "(no answer)"
