"""Fixtures and hooks of all tests: the leak check, deadlines, kernels."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

# Importing torch opens files and sets environment variables; no test should be blamed for it.
import torch
import torch._dynamo  # noqa: F401  # the first optimizer would import it

from tests import deadline, leaks
from tests.kernel import Kernel, SharedKernel
from tests.runtime.ranks import rank_server  # noqa: F401  # a fixture

_private_temp: tempfile.TemporaryDirectory[str] | None = None


def pytest_sessionstart(session: pytest.Session) -> None:
    """Mark the run, and give it a temp directory of its own: whatever stays in there is a leak."""
    global _private_temp
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A shell starts what it puts in the background like that, and all processes would inherit it.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # Processes of pytest-xdist run side by side: none is to be blamed for what another one starts.
    leaks.mark_this_run(anew=hasattr(session.config, "workerinput"))
    session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]  # pytest's own stays outside
    # Short, because unix sockets lie in it: their paths are limited to 107 characters.
    _private_temp = tempfile.TemporaryDirectory(prefix="nbt-")
    temp = Path(_private_temp.name)
    (temp / "tmp").mkdir()
    deadline.arm(temp / "stacks.txt")
    os.environ["TMPDIR"] = str(temp / "tmp")
    tempfile.tempdir = str(temp / "tmp")
    # torch.compile up to torch 2.9 sets this by itself, in the process that first uses it.
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(temp / "compiled")


def pytest_sessionfinish() -> None:
    if _private_temp is not None:
        _private_temp.cleanup()


@pytest.hookimpl(wrapper=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: object) -> Iterator[None]:
    result = yield
    deadline.report_stacks_before_failing()
    return result


@pytest.fixture(autouse=True)
def no_leaks(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail the test that leaves a process, thread, descriptor, variable, handler or file behind."""
    if "kernel" in request.fixturenames:
        # Started before the snapshot: it outlives the test.
        request.getfixturevalue("shared_kernel").ensure_ready()
    with leaks.watch():
        yield


@pytest.fixture(scope="session")
def shared_kernel() -> Iterator[SharedKernel]:
    shared = SharedKernel()
    yield shared
    shared.close()


@pytest.fixture
def kernel(shared_kernel: SharedKernel) -> Kernel:
    """A running kernel with an empty namespace; other tests have used the process before."""
    return shared_kernel.kernel


@pytest.fixture
def fresh_kernel() -> Iterator[Kernel]:
    """A kernel process of the test's own: for tests that kill it, change its state or look at its start."""
    with Kernel() as kernel:
        yield kernel
