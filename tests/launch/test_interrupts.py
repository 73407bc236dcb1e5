"""The stop button: control comes back, nobody is left, the kernel keeps what it had."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest
import torch
import torch.distributed as dist

from nbaccel import notebook_launcher


def _arrive(folder) -> None:
    (folder / f"rank{os.environ['RANK']}").touch()


def _sleep(folder):
    _arrive(folder)
    time.sleep(300)


def _compute_in_python(folder):
    _arrive(folder)
    while True:
        sum(range(1000))


def _compute_in_c(folder):
    x = torch.ones(1500, 1500)
    _arrive(folder)
    for _ in range(10_000):
        x = x @ x


def _wait_in_a_collective(folder):
    dist.init_process_group("gloo")
    _arrive(folder)
    if os.environ["RANK"] == "0":
        dist.barrier()
    time.sleep(300)


def _ignore_signals(folder):
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    _arrive(folder)
    time.sleep(300)


def _catch_the_interrupt(folder):
    _arrive(folder)
    try:
        time.sleep(300)
    except KeyboardInterrupt:
        (folder / "cleaned up").touch()
    return "a value nobody gets"


def _with_grandchildren(folder):
    from torch.utils.data import DataLoader

    class Slow(torch.utils.data.Dataset):
        def __len__(self):
            return 100

        def __getitem__(self, index):
            _arrive(folder)
            time.sleep(300)

    next(iter(DataLoader(Slow(), num_workers=2)))


WAYS_TO_BE_BUSY = [
    _sleep,
    _compute_in_python,
    _compute_in_c,
    _wait_in_a_collective,
    _ignore_signals,
    _with_grandchildren,
]


@pytest.mark.parametrize("busy", WAYS_TO_BE_BUSY, ids=lambda function: function.__name__.strip("_"))
def test_B073_an_interrupt_ends_whatever_workers_do_without_noise(
    busy, interrupt_when, tmp_path, start_method, capfd
):
    interrupt_when("rank0", "rank1")
    with pytest.raises(KeyboardInterrupt):
        notebook_launcher(busy, (tmp_path,), num_processes=2, start_method=start_method, timeout=100)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert len(capfd.readouterr().err.splitlines()) <= 2  # a line a rank at most


@pytest.mark.parametrize("times", [2, 3])
def test_more_interrupts_do_not_wait(times, interrupt_when, tmp_path):
    interrupt_when("rank0", "rank1", times=times)
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        notebook_launcher(_ignore_signals, (tmp_path,), num_processes=2, timeout=100)
    assert time.monotonic() - start < 30


def test_workers_may_clean_up(interrupt_when, tmp_path):
    interrupt_when("rank0", "rank1")
    with pytest.raises(KeyboardInterrupt):
        notebook_launcher(_catch_the_interrupt, (tmp_path,), num_processes=2, timeout=100)
    assert (tmp_path / "cleaned up").exists()


def test_a_launch_after_an_interrupt_works(interrupt_when, tmp_path):
    interrupt_when("rank0", "rank1")
    with pytest.raises(KeyboardInterrupt):
        notebook_launcher(_sleep, (tmp_path,), num_processes=2, timeout=100)
    assert notebook_launcher(os.getppid, num_processes=2) > 0


def test_a_handler_of_the_kernel_is_put_back(interrupt_when, tmp_path):
    def handler(*_):
        raise AssertionError("not while a launch runs")

    before = signal.signal(signal.SIGINT, handler)
    try:
        interrupt_when("rank0", "rank1")
        with pytest.raises(KeyboardInterrupt):
            notebook_launcher(_sleep, (tmp_path,), num_processes=2, timeout=100)
        assert signal.getsignal(signal.SIGINT) is handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_launch_in_another_thread_goes_on_when_the_main_thread_is_interrupted(tmp_path):
    values = []
    thread = threading.Thread(target=lambda: values.append(notebook_launcher(os.getpid, num_processes=2)))
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
        thread.join(30)
    thread.join()
    assert len(values) == 1
