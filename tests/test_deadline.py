"""A test that hangs ends at its deadline and says where each of its processes is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests import deadline

HANGING_TEST = """
import subprocess, sys
import pytest

CODE = '''
import os, time
def waits_in_the_parent():
    os.waitpid(child, 0)
def waits_in_the_fork():
    print("up", flush=True)
    time.sleep(60)
child = os.fork()
waits_in_the_parent() if child else waits_in_the_fork()
'''

@pytest.mark.timeout(1)
def test_hangs():
    process = subprocess.Popen([sys.executable, "-c", CODE], stdout=subprocess.PIPE)
    process.stdout.readline()
    process.wait()
"""


def test_stacks_of_every_process_are_printed_before_the_failure(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = Path(__file__).parents[1]
    monkeypatch.setenv("PYTHONPATH", str(root))
    monkeypatch.delenv("NBACCEL_TEST_RUN")  # a run of its own, so that it reports its own processes only
    pytester.makeconftest((root / "tests" / "conftest.py").read_text())
    pytester.makepyfile(HANGING_TEST)
    result = pytester.runpytest_subprocess(f"--rootdir={pytester.path}", "-p", "no:cacheprovider", timeout=60)
    result.assert_outcomes(failed=1, errors=1)  # the leak check then finds, and ends, the processes
    text = result.stdout.str()
    assert "The test's deadline has passed" in text
    assert "in waits_in_the_parent" in text
    assert "in waits_in_the_fork" in text
    assert "Failed: Timeout" in text


def test_a_process_without_a_handler_is_not_signalled() -> None:
    code = "import signal; signal.signal(signal.SIGUSR1, signal.SIG_DFL); print(1, flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert "doesn't answer" in deadline.stacks_of_all_processes()
        process.communicate("\n")
    assert process.returncode == 0
