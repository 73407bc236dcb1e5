"""Odd things that user code and its surroundings do, each of which once went wrong."""

from __future__ import annotations

import dataclasses
import errno
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import psutil
import pytest
import torch

import nbaccel
from nbaccel import Accelerator, LaunchTimeout, WorkerDied, WorkerError, notebook_launcher
from nbaccel.errors import LaunchError
from nbaccel.launch import failures
from nbaccel.launch.current import stop_session
from nbaccel.launch.transport.channel import Channel
from nbaccel.launch.zygotes import zygote_client, zygote_handle
from nbaccel.launch.zygotes.zygote import Zygote

# --- exceptions ---------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class FrozenError(Exception):
    x: int


class OwnSetattrError(Exception):
    def __setattr__(self, name, value):
        raise TypeError("nothing is set here")


class RankError(Exception):
    @property
    def rank(self):
        return 7

    @rank.setter
    def rank(self, value):
        raise ValueError("bad rank")


class ExitingTextError(Exception):
    def __str__(self):
        raise SystemExit(3)


class InterruptingPickleError(Exception):
    def __reduce__(self):
        raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("kind", "args", "arrives_as"),
    [
        (FrozenError, (3,), FrozenError),
        (OwnSetattrError, ("a",), OwnSetattrError),
        (RankError, ("a",), RankError),
        (ExitingTextError, ("a",), ExitingTextError),
        (InterruptingPickleError, ("a",), WorkerError),
        (ExceptionGroup, ("many", [ValueError(1), KeyError(2)]), ExceptionGroup),
    ],
)
def test_no_exception_kills_its_worker(kind, args, arrives_as):
    def fail():
        raise kind(*args)

    with pytest.raises(arrives_as) as caught:
        notebook_launcher(fail, num_processes=2)
    assert type(caught.value) is arrives_as
    assert any("raised by rank" in note for note in caught.value.__notes__)


def test_a_text_without_end_is_shortened():
    def fail():
        raise ValueError("x" * 10_000_000)

    with pytest.raises(ValueError) as caught:
        notebook_launcher(fail)
    assert len(caught.value.remote_traceback) < 300_000
    assert "characters left out" in caught.value.remote_traceback


def test_sys_exit_with_an_object_that_has_no_text():
    class Odd:
        def __str__(self):
            raise ValueError("no text")

    with pytest.raises(WorkerDied) as caught:
        notebook_launcher(lambda: sys.exit(Odd()))
    assert caught.value.exitcode == 1


def test_a_stream_of_the_user_that_cannot_be_flushed():
    class Stream:
        def write(self, text):
            return len(text)

        def flush(self):
            raise RuntimeError("never")

    def replace():
        sys.stdout = Stream()
        return "fine"

    assert notebook_launcher(replace, num_processes=2) == "fine"


def test_no_ranks_are_described_too():
    assert failures.describe_ranks([]) == "no rank"


# --- forks and daemons -----------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["returns", "exits", "raises"])
def test_a_fork_of_a_worker_does_not_speak_for_it(how, capfd):
    def fork():
        pid = os.fork()
        if pid == 0:
            if how == "exits":
                sys.exit(0)
            if how == "raises":
                raise ValueError("in the fork")
            return "the fork's"
        os.waitpid(pid, 0)
        return "the worker's"

    assert notebook_launcher(fork, num_processes=2, returns="all") == ["the worker's"] * 2


def test_a_daemon_does_not_outlive_a_killed_kernel(fresh_kernel, tmp_path):
    fresh_kernel.run("import os, subprocess, time, torch\nfrom nbaccel import notebook_launcher")
    fresh_kernel.run(
        "def daemon(folder):\n"
        "    child = subprocess.Popen(['sleep', '300'], start_new_session=True)\n"
        "    open(folder + '/new', 'w').write(str(child.pid))\n"
        "    os.rename(folder + '/new', folder + '/pid')\n"
        "    print('daemon')\n"
        "    time.sleep(300)"
    )
    cell = fresh_kernel.submit(f"notebook_launcher(daemon, ({str(tmp_path)!r},), cpu=True)")
    cell.wait_for_text("daemon")
    deadline = time.monotonic() + 10
    while not (tmp_path / "pid").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    daemon = psutil.Process(int((tmp_path / "pid").read_text()))
    fresh_kernel.kill()
    deadline = time.monotonic() + 5
    while daemon.is_running() and daemon.status() != psutil.STATUS_ZOMBIE and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not daemon.is_running() or daemon.status() == psutil.STATUS_ZOMBIE


# --- surroundings -------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["zygote", "spawn"])
def test_path_objects_on_the_import_path(method, tmp_path, monkeypatch):
    (tmp_path / "nbaccel_path_module.py").write_text("value = 5\n")
    monkeypatch.setattr(sys, "path", [*sys.path, pathlib.Path(tmp_path)])
    zygote_client.stop_zygote()

    def use():
        import nbaccel_path_module

        return nbaccel_path_module.value

    assert notebook_launcher(use, start_method=method) == 5


def test_blocked_signals_of_the_kernel_are_not_the_workers():
    zygote_client.stop_zygote()
    numbers = {signal.SIGCHLD, signal.SIGTERM, signal.SIGUSR1}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        start = time.monotonic()
        blocked = notebook_launcher(lambda: signal.pthread_sigmask(signal.SIG_BLOCK, ()))
        assert not blocked
        assert time.monotonic() - start < 25  # the shutdown patience is 30 s
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        zygote_client.stop_zygote()


def test_a_folder_that_was_deleted(tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(LaunchError, match=r"current folder has been deleted.*os.chdir"):
        notebook_launcher(os.getpid)
    monkeypatch.undo()
    assert notebook_launcher(os.getpid) > 0


def test_a_kernel_without_streams(monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    assert notebook_launcher(lambda: 3) == 3


def _refuse() -> int:
    raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))


def test_a_fork_that_the_system_refuses_is_told_and_leaves_nothing(monkeypatch):
    notebook_launcher(os.getpid)  # what a first launch opens for good
    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(os, "fork", _refuse)
    with pytest.raises(LaunchError, match=f"forked.*{os.strerror(errno.EAGAIN)}"):
        notebook_launcher(os.getpid, num_processes=2, start_method="fork")
    monkeypatch.undo()
    assert len(os.listdir("/proc/self/fd")) == before
    assert notebook_launcher(os.getpid, start_method="fork") > 0


def test_a_fork_that_the_system_refuses_the_zygote_is_told_and_leaves_nothing(monkeypatch):
    ours, end = Channel.pair()
    theirs = Channel(end)
    served = Zygote.__new__(Zygote)  # its handlers of signals are for a process of its own
    served._control = theirs

    def serve_once():
        message, tickets = theirs.recv(10)
        served._handle(message, [int(fd) for fd in tickets])

    monkeypatch.setattr(os, "fork", _refuse)
    reader, writer = os.pipe()
    thread = threading.Thread(target=serve_once)
    thread.start()
    try:
        with pytest.raises(LaunchError, match=f"forked: {os.strerror(errno.EAGAIN)}; use fewer processes"):
            zygote_handle.Zygote(ours).fork("rank 0", (writer, writer, writer, writer))
        os.close(writer)
        assert os.read(reader, 1) == b""  # the zygote has closed its copies
    finally:
        thread.join()
        os.close(reader)
        ours.close()
        theirs.close()


def test_no_descriptors_left():
    code = (
        "import resource, os\n"
        "from nbaccel import notebook_launcher\n"
        "from nbaccel.errors import LaunchError\n"
        "notebook_launcher(os.getpid)\n"
        "used = len(os.listdir('/proc/self/fd'))\n"
        "_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (used + 20, hard))\n"
        "try:\n"
        "    notebook_launcher(os.getpid, num_processes=6)\n"
        "except LaunchError as error:\n"
        "    print('told:', error)\n"
        "for free in (0, 6, 12):\n"
        "    resource.setrlimit(resource.RLIMIT_NOFILE, (used + free, hard))\n"
        "    try:\n"
        "        notebook_launcher(os.getpid)\n"
        "    except OSError as error:\n"
        "        print('at once:', error.strerror)\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (used + 40, hard))\n"
        "print('then', notebook_launcher(os.getpid, num_processes=2) > 0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in map(str, sys.path) if entry)},
    )
    assert "told:" in done.stdout, done.stderr
    assert "Too many open files" in done.stdout
    assert done.stdout.count("at once: too few file descriptors are left") == 3
    assert "[c10d]" not in done.stderr  # the store never tried
    assert "then True" in done.stdout


def test_an_interrupt_during_the_first_import_of_torch_leaves_it_whole(fresh_kernel):
    fresh_kernel.run("import sys; assert 'torch' not in sys.modules; from nbaccel import notebook_launcher")
    cell = fresh_kernel.submit("print('now'); notebook_launcher(lambda: 1, num_processes=2)")
    cell.wait_for_text("now")
    fresh_kernel.interrupt()
    cell.wait(timeout=60)
    result = fresh_kernel.run("print('value', notebook_launcher(lambda: 1, num_processes=2))", timeout=90)
    assert "value 1" in result.stdout


def test_random_numbers_differ_between_ranks_and_launches():
    import random

    import numpy as np

    draw = lambda: (torch.rand(1).item(), float(np.random.rand()), random.random())  # noqa: E731
    rows = [row for _ in range(2) for row in notebook_launcher(draw, num_processes=2, returns="all")]
    for numbers in zip(*rows, strict=True):
        assert len(set(numbers)) == 4


# --- the keyboard -------------------------------------------------------------------------------


@pytest.mark.parametrize("ask", ["input", "breakpoint", "pdb"])
def test_whoever_asks_for_input_is_told_that_nobody_is_there(ask):
    def fail():
        if ask == "input":
            input("?")
        elif ask == "breakpoint":
            breakpoint()  # noqa: T100
        else:
            import pdb  # noqa: T100

            pdb.set_trace()  # noqa: T100

    with pytest.raises((EOFError, RuntimeError), match="a worker has no keyboard"):
        notebook_launcher(fail)


# --- time ---------------------------------------------------------------------------------------


def test_a_launch_that_ends_while_it_is_asked_where_it_is(monkeypatch):
    from nbaccel.launch.supervision import supervision

    asked = supervision.Supervisor._collect_stacks

    def slowly(self, **kwargs):
        text = asked(self, **kwargs)
        self._group.pump_until(lambda: all(m.is_settled for m in self._group.members), 20)
        return text

    monkeypatch.setattr(supervision.Supervisor, "_collect_stacks", slowly)
    assert notebook_launcher(lambda: time.sleep(1.5), num_processes=2, timeout=1) is None


# --- sessions -----------------------------------------------------------------------------------


@pytest.fixture
def session(capsys):
    yield nbaccel.session(2, cpu=True)
    stop_session()


@pytest.mark.parametrize(
    ("given", "kind"),
    [({"timeout": 0}, ValueError), ({"timeout": "5"}, TypeError), ({"ranks": []}, ValueError)],
)
def test_a_session_refuses_bad_arguments_before_it_starts(session, given, kind):
    with pytest.raises(kind):
        session.run(os.getpid, **given)
    assert not session.is_alive


def test_ranks_may_be_any_collection(session):
    assert session.run(lambda: int(os.environ["RANK"]), ranks=iter([1])) == [1]


def test_what_is_not_callable_is_refused_here(session):
    with pytest.raises(TypeError, match="can't be called"):
        session.run(3)


def test_odd_exceptions_cost_a_session_nothing(session):
    pids = session.run(os.getpid)

    def fail():
        raise FrozenError(3)

    with pytest.raises(FrozenError):
        session.run(fail)
    assert session.run(os.getpid) == pids


def test_a_busy_session_is_not_ended_from_another_thread(session, tmp_path):
    import threading

    def work():
        (tmp_path / f"rank{os.environ['RANK']}").touch()
        while not (tmp_path / "go").exists():
            time.sleep(0.01)
        return "done"

    values = []
    thread = threading.Thread(target=lambda: values.append(session.run(work, timeout=60)))
    thread.start()
    try:
        deadline = time.monotonic() + 30
        while not (tmp_path / "rank1").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        with pytest.raises(RuntimeError, match="busy"):
            session.stop()
        assert all("runs test_hardening.py" in row["doing"] for row in session.status())
    finally:
        (tmp_path / "go").touch()
        thread.join()
    assert values == [["done", "done"]]


def test_a_session_outlives_the_root_zygote(session):
    pids = session.run(os.getpid)
    family = zygote_client._family
    if psutil.Process(pids[0]).ppid() == family.process.pid:
        pytest.skip("these workers are forks of the root itself")
    family.process.kill()
    family.process.wait()
    assert notebook_launcher(lambda: 1) == 1
    assert session.run(os.getpid) == pids


# --- the notebook's own Accelerator -----------------------------------------------------------------


def test_an_accelerator_of_the_notebook_joins_the_world_of_the_workers():
    accelerator = Accelerator(cpu=True, mixed_precision="bf16")
    assert accelerator.num_processes == 1
    look = lambda: (accelerator.num_processes, accelerator.process_index, accelerator.mixed_precision)  # noqa: E731
    assert notebook_launcher(look, num_processes=2, returns="all", cpu=True) == [
        (2, 0, "bf16"),
        (2, 1, "bf16"),
    ]
    assert notebook_launcher(lambda: accelerator, num_processes=2, cpu=True).num_processes == 1


def test_a_late_launch_is_still_late():
    with pytest.raises(LaunchTimeout):
        notebook_launcher(lambda: time.sleep(60), num_processes=2, timeout=1)


# --- forks of a worker --------------------------------------------------------------------------


def test_what_is_garbage_at_a_fork_is_not_taken_down_in_the_fork():
    """A process group that is gone needs its threads to be taken down, and a fork has none of them."""

    def fork_with_garbage():
        import gc

        class Group:
            def __init__(self):
                self.itself = self

            def __del__(self):
                taken_down_in.append(os.getpid())

        taken_down_in = []
        gc.collect()
        gc.disable()
        Group()
        child = os.fork()
        if child == 0:
            gc.collect()
            os._exit(len(taken_down_in))
        _, status = os.waitpid(child, 0)
        gc.enable()
        gc.collect()
        return os.waitstatus_to_exitcode(status), taken_down_in == [os.getpid()]

    assert notebook_launcher(fork_with_garbage) == (0, True)
