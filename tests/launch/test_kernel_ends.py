"""In a real kernel: interrupts by the front end, and the kernel's end."""

from __future__ import annotations

import time

import psutil
import pytest

SETUP = """
import os, signal, sys, time
import torch
from nbaccel import notebook_launcher

def hold(ignore=False):
    import torch.distributed as dist
    dist.init_process_group("gloo")
    if ignore:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("holding", os.getpid())
    if os.environ["RANK"] == "0":
        dist.barrier()
    time.sleep(300)
"""


@pytest.fixture
def holding(fresh_kernel):
    """A kernel whose cell holds two workers, one of them in a collective."""
    fresh_kernel.run(SETUP)
    fresh_kernel.run("x = 41")
    cell = fresh_kernel.submit("notebook_launcher(hold, num_processes=2)")
    cell.wait_for_text("[rank 0] holding")
    cell.wait_for_text("[rank 1] holding")
    return fresh_kernel, cell


def test_B066_B067_an_interrupt_is_one_keyboard_interrupt_and_variables_stay(holding):
    kernel, cell = holding
    kernel.interrupt()
    result = cell.wait(timeout=20)
    errors = [output for output in result.outputs if output.kind == "error"]
    assert [error.ename for error in errors] == ["KeyboardInterrupt"]
    assert "value 42" in kernel.run("print('value', x + 1)").stdout
    assert "[rank 1] 1" in kernel.run("notebook_launcher(lambda: print(1), num_processes=2)").stdout


def test_B070_nobody_outlives_a_kernel_that_is_killed(holding):
    kernel, _ = holding
    processes = psutil.Process(kernel.pid).children(recursive=True)
    assert len(processes) >= 3
    kernel.kill()
    assert not _survivors(processes, 2)


def test_nobody_outlives_a_kernel_that_is_killed_during_the_first_import(fresh_kernel):
    fresh_kernel.run("import os; from nbaccel import notebook_launcher")  # starts the zygote
    processes = psutil.Process(fresh_kernel.pid).children(recursive=True)
    assert processes
    fresh_kernel.kill()
    assert not _survivors(processes, 2)


def test_nobody_outlives_a_kernel_that_ends_in_order(fresh_kernel):
    fresh_kernel.run(SETUP)
    fresh_kernel.run("notebook_launcher(os.getpid, num_processes=2)")
    processes = psutil.Process(fresh_kernel.pid).children(recursive=True)
    assert processes
    fresh_kernel.submit("import os; os._exit(0)")
    assert not _survivors(processes, 10)


def test_a_fork_of_the_kernel_does_not_keep_workers_alive(holding):
    """Another library's fork of the kernel inherits our descriptors; it must not hold anything open."""
    kernel, cell = holding
    kernel.interrupt()
    cell.wait(timeout=20)
    forked = kernel.run("pid = os.fork()\nif pid == 0:\n    time.sleep(60)\n    os._exit(0)\nprint(pid)")
    stranger = psutil.Process(int(forked.stdout))
    zygotes = [
        p
        for p in psutil.Process(kernel.pid).children(recursive=True)
        if "nbaccel.launch.zygotes.zygote" in " ".join(p.cmdline())
    ]
    assert zygotes
    kernel.kill()
    try:
        assert not _survivors(zygotes, 2)
    finally:
        stranger.kill()


def _survivors(processes: list[psutil.Process], seconds: float) -> list[psutil.Process]:
    """Those that still run after at most so many seconds; what only waits to be reaped doesn't run."""
    deadline = time.monotonic() + seconds
    while (alive := [process for process in processes if _runs(process)]) and time.monotonic() < deadline:
        time.sleep(0.01)
    return alive


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
