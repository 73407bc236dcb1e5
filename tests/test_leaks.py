"""The leak check catches each kind of leak, repairs it, and lets through what it must."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import torch.distributed as dist

from tests import leaks
from tests.leaks import LeakError, watch

SLEEPER = [sys.executable, "-S", "-c", "import time; time.sleep(60)"]


@pytest.fixture
def undo() -> Iterator[list[Callable[[], object]]]:
    """What takes the leak away again after the check has seen it (the autouse check looks after us)."""
    actions: list[Callable[[], object]] = []
    yield actions
    for action in actions:
        action()


def test_a_clean_body_passes(tmp_path: Path) -> None:
    with watch(0):
        thread = threading.Thread(target=time.monotonic)
        thread.start()
        thread.join()
        (tmp_path / "file").write_text("text")
        subprocess.run([sys.executable, "-S", "-c", ""], check=True)


def test_a_failing_body_raises_its_own_error() -> None:
    with pytest.raises(KeyError), watch(0):
        raise KeyError


def test_a_child_process_is_caught_and_ended() -> None:
    child = None
    with pytest.raises(LeakError, match=r"process pid \d+ .*time\.sleep\(60\)"), watch(0):
        child = subprocess.Popen(SLEEPER)
    assert child is not None
    assert child.wait(5) is not None


def test_a_process_whose_parent_has_died_is_caught_and_ended() -> None:
    # Double fork: the sleeper is adopted by init and is no descendant of ours any more.
    code = f"import subprocess; print(subprocess.Popen({SLEEPER}, start_new_session=True, stdout=-3).pid)"
    pid = -1
    with pytest.raises(LeakError, match=r"process pid \d+ .*time\.sleep\(60\)"), watch(0):
        run = subprocess.run(
            [sys.executable, "-S", "-c", code], stdout=subprocess.PIPE, text=True, check=True
        )
        pid = int(run.stdout)
        assert pid not in {p.pid for p in psutil.Process().children(recursive=True)}
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_a_process_on_its_way_out_is_waited_for() -> None:
    child = None
    with watch(10):
        child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(0.3)"])
        threading.Thread(target=child.wait).start()
    assert child is not None
    assert child.returncode == 0


def test_a_thread_is_caught(undo: list[Callable[[], object]]) -> None:
    stop = threading.Event()
    undo.append(stop.set)
    with pytest.raises(LeakError, match="thread 'forgotten'"), watch(0):
        threading.Thread(target=stop.wait, name="forgotten").start()


def test_an_open_file_is_caught(tmp_path: Path, undo: list[Callable[[], object]]) -> None:
    with pytest.raises(LeakError, match=r"file descriptor -> .*held open"), watch(0):
        file = (tmp_path / "held open").open("w")
        undo.append(file.close)


def test_both_ends_of_a_pipe_are_caught(undo: list[Callable[[], object]]) -> None:
    with pytest.raises(LeakError, match=r"file descriptor -> pipe:\[\d+\] \(2 of them\)"), watch(0):
        undo.extend(lambda fd=fd: os.close(fd) for fd in os.pipe())


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # an unclosed file, on purpose
def test_a_file_held_by_a_reference_cycle_is_no_leak(tmp_path: Path) -> None:
    with watch(0.5):
        cycle: dict[str, object] = {"file": (tmp_path / "file").open("w")}
        cycle["self"] = cycle
        del cycle


@pytest.mark.parametrize("change", ["added", "changed", "removed"])
def test_a_change_of_the_environment_is_caught_and_undone(
    change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NBACCEL_A", "before")
    with pytest.raises(LeakError, match="environment variable NBACCEL_"), watch(0):
        if change == "added":
            os.environ["NBACCEL_B"] = "new"
        elif change == "changed":
            os.environ["NBACCEL_A"] = "after"
        else:
            del os.environ["NBACCEL_A"]
    assert os.environ["NBACCEL_A"] == "before"
    assert "NBACCEL_B" not in os.environ


def test_a_signal_handler_is_caught_and_put_back() -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(LeakError, match="signal handler of SIGINT"), watch(0):
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    assert signal.getsignal(signal.SIGINT) is before


def test_a_temporary_file_is_caught(undo: list[Callable[[], object]]) -> None:
    with pytest.raises(LeakError, match=r"temporary file .*payload"), watch(0):
        handle, name = tempfile.mkstemp(prefix="payload")
        os.close(handle)
        undo.append(lambda: Path(name).unlink())


def test_shared_memory_is_caught(undo: list[Callable[[], object]]) -> None:
    name = Path(f"/dev/shm/nbaccel-test-{os.getpid()}")
    with pytest.raises(LeakError, match="temporary file /dev/shm/nbaccel-test"), watch(0):
        name.touch()
        undo.append(name.unlink)


def test_a_process_group_is_caught_and_destroyed() -> None:
    store = dist.HashStore()
    with pytest.raises(LeakError, match=r"default process group of torch\.distributed"), watch(0):
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    assert not dist.is_initialized()


def test_idle_server_processes_of_the_launcher_are_allowed_but_their_workers_are_not() -> None:
    idle = "import os, time; os.fork(); time.sleep(60)"  # the second one shares the session of the first
    with_worker = "import os, time; os.fork() or os.setsid(); time.sleep(60)"

    def start(code: str) -> psutil.Process:
        server = psutil.Popen([sys.executable, "-S", "-c", code, leaks.ZYGOTE], start_new_session=True)
        started.append(server)
        deadline = time.monotonic() + 10
        while not (children := server.children()):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        return children[0]

    started: list[psutil.Popen] = []
    try:
        with watch(0):
            start(idle)
        with pytest.raises(LeakError, match=leaks.ZYGOTE) as caught, watch(0.5):
            worker = start(with_worker)
        assert len(str(caught.value).splitlines()) == 2  # the worker, and nothing but it
        assert f"pid {worker.pid} " in str(caught.value)
        assert all(server.is_running() for server in started)
    finally:
        for server in started:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()


def test_the_check_guards_every_test(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a fixture of a suite: the test that leaks gets the error, the next one doesn't."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    pytester.makeconftest(
        "import pytest\n"
        "from tests import leaks\n"
        "@pytest.fixture(autouse=True)\n"
        "def no_leaks():\n"
        "    with leaks.watch(0):\n"
        "        yield\n"
    )
    pytester.makepyfile(
        "import os\n"
        "def test_leaks():\n    os.environ['LEFT'] = '1'\n"
        "def test_is_not_blamed_for_it():\n    assert 'LEFT' not in os.environ\n"
    )
    result = pytester.runpytest_subprocess(f"--rootdir={pytester.path}", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=2, errors=1)
    result.stdout.fnmatch_lines(["*LeakError: the test left something behind:*", "*LEFT='1' was added*"])
