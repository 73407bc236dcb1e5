"""What the launcher's tests share."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from nbaccel.launch.system.process import PLATFORM_NAME

ZYGOTE = "nbaccel.launch.zygotes.zygote"
"""In the command line of zygotes, and of what is forked from them."""

START_METHODS = ("zygote", "spawn", "fork", "portable")
"""Ways to bring up a worker. ``portable`` is none that a user can name: what happens on Windows."""


@pytest.fixture(scope="session", autouse=True)
def first_store() -> None:
    """The event library of torch's store keeps one pipe for signals, made with the first store."""
    from nbaccel.launch.request.rendezvous import open_rendezvous

    open_rendezvous("127.0.0.1", None, num_nodes=1, node_rank=0).close()


def use(method: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Make one of :data:`START_METHODS` happen; what to pass as ``start_method``."""
    if method != "portable":
        return method
    monkeypatch.setenv(PLATFORM_NAME, "portable")
    return "auto"


@pytest.fixture(params=START_METHODS)
def start_method(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each way to bring up a worker; a test that takes it holds for all of them."""
    return use(str(request.param), monkeypatch)


@pytest.fixture
def interrupt_when(tmp_path: Path) -> Iterator[Callable[..., None]]:
    """Send this process SIGINT once all the named files exist, as a front end's stop button does."""
    threads: list[threading.Thread] = []

    def arrange(*names: str, times: int = 1) -> None:
        def wait_and_send() -> None:
            deadline = time.monotonic() + 30
            while not all((tmp_path / name).exists() for name in names):
                if time.monotonic() > deadline:
                    return  # the launch ends without an interrupt, and the test says so
                time.sleep(0.01)
            for _ in range(times):
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(0.1)

        threads.append(threading.Thread(target=wait_and_send))
        threads[-1].start()

    yield arrange
    for thread in threads:
        thread.join()


def descendants() -> list[psutil.Process]:
    """Every process below this one, but for the idle zygotes."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            is_zygote = process.name().startswith("python") and ZYGOTE in " ".join(process.cmdline())
            if not is_zygote:
                found.append(process)
    return found


@pytest.fixture(autouse=True)
def no_worker_is_left() -> Iterator[None]:
    """Whatever a launch does, when it returns or raises nobody is left."""
    before = {(process.pid, process.create_time()) for process in descendants()}
    yield
    left = [process for process in descendants() if (process.pid, process.create_time()) not in before]
    assert not left, f"left behind: {left}"


@pytest.fixture(autouse=True)
def no_retired_zygotes() -> Iterator[None]:
    """A zygote that was replaced leaves by itself, and its descriptors are closed at the next launch."""
    from nbaccel.launch.zygotes import zygote_client

    yield
    deadline = time.monotonic() + 5
    while not zygote_client.tidy() and time.monotonic() < deadline:
        time.sleep(0.01)


@pytest.fixture(autouse=True)
def no_warm_memory() -> Iterator[None]:
    """The launcher keeps the memory of its last large call; each test gives it back."""
    from nbaccel.launch.payload import memory

    yield
    memory.free_warm()
