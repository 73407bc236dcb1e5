"""The kernel driver does what a front end does, and sees what a user would see."""

from __future__ import annotations

import os
import time

import pytest

from tests.kernel import CellError, Kernel, KernelGoneError


def test_outputs_come_in_order_with_their_streams(kernel: Kernel) -> None:
    result = kernel.run(
        "import sys\n"
        "print('one', flush=True)\n"
        "print('two', file=sys.stderr, flush=True)\n"
        "display({'a': 1})\n"
        "print('three')\n"
        "40 + 2"
    )
    kinds = [(o.kind, o.name) for o in result.outputs]
    assert kinds == [
        ("stream", "stdout"),
        ("stream", "stderr"),
        ("display_data", ""),
        ("stream", "stdout"),
        ("execute_result", ""),
    ]
    assert result.stdout == "one\nthree\n"
    assert result.stderr == "two\n"
    assert [o.text for o in result.displays] == ["{'a': 1}", "42"]


def test_an_error_has_name_value_and_plain_traceback(kernel: Kernel) -> None:
    error = kernel.run("def f():\n    return 1 / 0\nf()", may_fail=True).error
    assert (error.ename, error.evalue) == ("ZeroDivisionError", "division by zero")
    assert "return 1 / 0" in error.text
    assert "\x1b" not in error.text


def test_an_unexpected_error_fails_the_test_with_its_traceback(kernel: Kernel) -> None:
    with pytest.raises(CellError, match="KeyError: 'missing'"):
        kernel.run("{}['missing']")


def test_output_is_seen_while_the_cell_runs(kernel: Kernel) -> None:
    cell = kernel.submit(
        "import os, time\nprint('first', flush=True)\n"
        "while not os.path.exists('go'): time.sleep(0.01)\nprint('second')"
    )
    cell.wait_for_text("first", timeout=10)
    assert not cell.done
    (kernel.cwd / "go").touch()
    result = cell.wait(10)
    assert result.stdout == "first\nsecond\n"
    assert result.outputs[0].sent < result.outputs[1].sent <= result.finished
    (kernel.cwd / "go").unlink()


def test_output_sent_while_nobody_reads_is_kept_and_timed_by_the_kernel(kernel: Kernel) -> None:
    cell = kernel.submit("for i in range(3000):\n    display(i)")
    deadline = time.monotonic() + 0.5
    while time.monotonic() < deadline:  # not reading on purpose: more than the sockets' default of 1000
        time.sleep(0.05)
    result = cell.wait(30)
    assert [o.text for o in result.displays] == [str(i) for i in range(3000)]
    assert cell.submitted <= result.displays[0].sent <= result.displays[-1].sent


def test_a_wait_for_output_that_never_comes_ends_with_the_cell(kernel: Kernel) -> None:
    cell = kernel.submit("print('something else')")
    with pytest.raises(AssertionError, match="without an output that fits"):
        cell.wait_for_output(lambda o: o.kind == "error", timeout=10)


def test_a_cell_past_its_timeout_shows_its_output_so_far(kernel: Kernel) -> None:
    cell = kernel.submit("import time\nprint('waiting', flush=True)\ntime.sleep(60)")
    with pytest.raises(TimeoutError, match="waiting"):
        cell.wait(1)
    kernel.interrupt()
    assert cell.wait(10).error.ename == "KeyboardInterrupt"


def test_interrupt_reaches_the_whole_process_group(kernel: Kernel) -> None:
    cell = kernel.submit(
        "import subprocess, sys\n"
        "code = 'import time; print(1, flush=True); time.sleep(60)'\n"
        "child = subprocess.Popen([sys.executable, '-c', code], stdout=subprocess.PIPE)\n"
        "child.stdout.readline(); print('child is up', flush=True)\n"
        "import time; time.sleep(60)"  # not child.wait(): interrupted at the end of it, that loses the code
    )
    cell.wait_for_text("child is up", timeout=20)
    kernel.interrupt()
    assert cell.wait(10).error.ename == "KeyboardInterrupt"
    # The child got the signal from the same stroke and ends by it, without anyone's help.
    assert kernel.run("child.wait(10); child.stdout.close(); print(child.returncode)").stdout == "-2\n"


def test_the_kernel_starts_with_an_empty_namespace_every_time(shared_kernel, kernel: Kernel) -> None:
    kernel.run("left_over = 1")
    shared_kernel.ensure_ready()
    assert kernel.run("'left_over' in globals()").displays[0].text == "False"


def test_nbaccel_comes_from_this_checkout(kernel: Kernel) -> None:
    import nbaccel

    shown = kernel.run("import nbaccel; print(nbaccel.__file__)").stdout.strip()
    assert os.path.samefile(shown, nbaccel.__file__)


@pytest.mark.parametrize("detached", [False, True])
def test_relatives_and_survivors_of_a_killed_kernel_are_found(fresh_kernel: Kernel, detached: bool) -> None:
    shown = fresh_kernel.run(
        "import subprocess, sys\n"
        f"child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'],"
        f" start_new_session={detached})\n"
        "print(child.pid)"
    )
    pid = int(shown.stdout)
    assert [p.pid for p in fresh_kernel.children()] == [pid]
    assert "time.sleep(60)" in " ".join(fresh_kernel.children()[0].cmdline())
    fresh_kernel.kill()
    with pytest.raises(TimeoutError, match=rf"pid {pid} .*time\.sleep\(60\)"):
        fresh_kernel.wait_until_alone(0.1)
    with pytest.raises(TimeoutError):  # closing tells of the survivor, and ends it
        fresh_kernel.close()
    fresh_kernel.wait_until_alone(0)


def test_waiting_for_a_dead_kernel_says_so_at_once(fresh_kernel: Kernel) -> None:
    cell = fresh_kernel.submit(
        "import os, sys\nprint('last words', file=sys.__stderr__, flush=True)\nos._exit(3)"
    )
    start = time.monotonic()
    with pytest.raises(KernelGoneError, match=r"(?s)ended with 3.*last words"):
        cell.wait(30)
    assert time.monotonic() - start < 10
