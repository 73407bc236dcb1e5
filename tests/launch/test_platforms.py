"""Platforms that this isn't run on: what Windows hasn't got isn't used, and types are checked for them.

The launcher's suite runs against the portable way of starting workers as its fourth start method.
"""

from __future__ import annotations

import ctypes
import os
import pkgutil
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

import psutil
import pytest

import nbaccel
from nbaccel import notebook_launcher
from nbaccel.errors import LaunchError
from nbaccel.launch.payload import named_files, payload
from nbaccel.launch.system import process, windows
from nbaccel.launch.system.process import PLATFORM_NAME

ROOT = Path(nbaccel.__file__).parents[1]

UNIX_MODULES = ("fcntl", "grp", "pty", "pwd", "resource", "syslog", "termios", "tty")
UNIX_NAMES = {
    "os": (
        *("fork", "forkpty", "getpgid", "getsid", "killpg", "memfd_create", "mkfifo", "pidfd_open", "pread"),
        *("preadv", "register_at_fork", "sched_getaffinity", "set_blocking", "setpgid", "setsid", "sysconf"),
        *("uname", "waitid", "WNOHANG", "O_CLOEXEC"),
    ),
    "signal": ("SIGCHLD", "SIGHUP", "SIGKILL", "SIGUSR1", "alarm", "pthread_kill", "pthread_sigmask"),
    "socket": ("AF_UNIX", "CMSG_LEN", "MSG_DONTWAIT", "SCM_RIGHTS"),
    "select": ("epoll", "poll"),
}
"""What is there here and not on Windows."""

# The standard library and torch were made for this platform, and are loaded before its names are taken away.
SHEAR = textwrap.dedent(
    """
    import asyncio, multiprocessing.pool, subprocess, selectors, sys, tempfile, psutil, torch._dynamo
    import torch.distributed.nn, torch.utils.data, torch.distributed.run, platform
    import torch.distributed.elastic.agent.server.api
    import os, select, signal, socket, threading
    selectors.DefaultSelector = selectors.SelectSelector
    for name in {modules!r}:
        sys.modules[name] = None
    here = os.getpid()
    def refused(*_): raise NotImplementedError("this platform has no such call")
    """
)


def _script(text: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", text],
        cwd=ROOT,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_everything_is_imported_without_modules_of_unix():
    names = [
        module.name
        for module in pkgutil.walk_packages(nbaccel.__path__, "nbaccel.")
        if not module.name.endswith("__main__")
    ]
    script = SHEAR.format(modules=UNIX_MODULES) + textwrap.dedent(
        f"""
        for module, names in {UNIX_NAMES!r}.items():
            for name in names:
                if module != "os" or name not in ("WNOHANG",):
                    vars(sys.modules[module]).pop(name, None)
        import importlib
        for name in {names!r}:
            try:
                importlib.import_module(name)
            except ModuleNotFoundError as error:
                if error.name in {UNIX_MODULES!r} or error.name.startswith("nbaccel"):
                    raise
                print("left out:", name, error.name)
        print("all", len({names!r}))
        """
    )
    done = _script(script, **{PLATFORM_NAME: "portable"})
    assert done.returncode == 0, done.stderr
    assert f"all {len(names)}" in done.stdout
    assert "nbaccel.launch" not in done.stdout
    assert "nbaccel.runtime." not in done.stdout


WATCH = f"""
# Runs at the start of each process: notes what our own code asks those modules for, and says so at the end.
import atexit, os, select, signal, socket, sys, types

forbidden = {{name: set(names) for name, names in {UNIX_NAMES!r}.items()}}
# A process group stands in for the job object of Windows, and the rest is asked for on Linux alone.
forbidden["os"] -= {{"killpg", "register_at_fork", "sched_getaffinity", "sysconf", "waitid"}}
forbidden["signal"] -= {{"SIGKILL", "SIGCHLD", "pthread_kill", "pthread_sigmask"}}
forbidden["select"] -= {{"poll"}}
asked = set()
ask = types.ModuleType.__getattribute__


class Watched(types.ModuleType):
    def __getattribute__(self, name):
        if name in forbidden.get(ask(self, "__name__"), ()):
            caller = sys._getframe(1)
            if {os.sep + "nbaccel" + os.sep!r} in caller.f_code.co_filename:
                asked.add(f"{{name}} in {{caller.f_code.co_filename}}:{{caller.f_lineno}}")
        return ask(self, name)

    def __reduce__(self):
        return __import__, (self.__name__,)


for name in forbidden:
    sys.modules[name].__class__ = Watched
here = os.getpid()
atexit.register(lambda: print("asked for", len(asked), "calls of Unix", *sorted(asked), flush=True))
"""


def test_B028_a_launch_asks_for_nothing_that_windows_has_not_got(tmp_path):
    script = textwrap.dedent(
        """
        import os, time
        import nbaccel

        def work(x):
            import torch.distributed as dist
            dist.init_process_group("gloo")
            print("at work", flush=True)
            return [x * 2, int(os.environ["RANK"])]

        print(nbaccel.notebook_launcher(work, (21,), num_processes=2, returns="all", cpu=True))
        session = nbaccel.session(2, cpu=True)
        print(session.run(lambda: os.environ["RANK"]))
        try:
            session.run(lambda: time.sleep(60), timeout=1)
        except nbaccel.LaunchTimeout:
            print(session.run(lambda: 5))
        session.stop()
        """
    )
    file = tmp_path / "script.py"
    file.write_text(script)
    (tmp_path / "sitecustomize.py").write_text(WATCH)
    done = subprocess.run(
        [sys.executable, str(file)],
        cwd=ROOT,
        env={**os.environ, PLATFORM_NAME: "portable", "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "[[42, 0], [42, 1]]" in done.stdout
    assert "['0', '1']" in done.stdout
    assert "[5, 5]" in done.stdout
    assert done.stdout.count("at work") == 2
    told = [line for line in done.stdout.splitlines() if "asked for" in line]
    assert len(told) == 5  # this process, and twice two workers
    assert all("asked for 0 calls of Unix" in line for line in told), told


@pytest.mark.parametrize("method", ["fork", "zygote"])
def test_what_the_platform_has_not_got_is_refused(monkeypatch, method):
    monkeypatch.setenv(PLATFORM_NAME, "portable")
    with pytest.raises(LaunchError, match=f"start_method='{method}': this platform has no fork"):
        notebook_launcher(print, num_processes=2, start_method=method)


def test_workers_end_with_a_kernel_that_is_killed(tmp_path):
    script = textwrap.dedent(
        f"""
        import os, subprocess, time
        from pathlib import Path
        from nbaccel import notebook_launcher

        def work():
            child = subprocess.Popen(["sleep", "300"])
            Path({str(tmp_path)!r}, os.environ["RANK"]).write_text(f"{{os.getpid()}} {{child.pid}}")
            time.sleep(300)

        notebook_launcher(work, num_processes=2, cpu=True)
        """
    )
    file = tmp_path / "script.py"
    file.write_text(script)
    kernel = subprocess.Popen(
        [sys.executable, str(file)],
        env={**os.environ, PLATFORM_NAME: "portable", "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
    )
    told = [tmp_path / "0", tmp_path / "1"]
    _await(lambda: all(path.exists() and len(path.read_text().split()) == 2 for path in told), 90)
    family = [psutil.Process(int(pid)) for path in told for pid in path.read_text().split()]
    kernel.kill()
    kernel.wait()
    _, left = psutil.wait_procs(family, timeout=10)
    assert not left
    # What the launch had in the file system is left, and whoever launches next removes it.
    folders = list(Path(tempfile.gettempdir()).glob(f"{named_files.PREFIX}{kernel.pid}-*"))
    assert folders
    named_files.sweep()
    assert not [folder for folder in folders if folder.exists()]


def _await(condition, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_sweeping_leaves_what_belongs_to_a_process_that_runs():
    folder = named_files.make_folder()
    fd, path = named_files.create(lent=True)
    os.close(fd)
    foreign = Path(tempfile.gettempdir(), f"{named_files.PREFIX}notes")
    foreign.touch()
    dead = Path(
        tempfile.gettempdir(), f"{named_files.PREFIX}{os.getpid()}-12345-x"
    )  # the pid of another life
    dead.touch()
    try:
        named_files.sweep()
        assert Path(folder).is_dir()
        assert Path(path).exists()
        assert foreign.exists()
        assert not dead.exists()
    finally:
        named_files.remove_folder(folder)
        named_files.remove(path)
        foreign.unlink()


def test_a_named_payload_is_its_owner_s_alone_and_ends_with_it(monkeypatch):
    monkeypatch.setenv(PLATFORM_NAME, "portable")
    with payload.dump_call((len, ("abc",), {})) as call:
        path = Path(call.lend())
        assert path.stat().st_mode & 0o077 == 0
        for _ in range(2):
            with payload.Payload.from_ticket(str(path), given=False) as received:
                assert received.load() == (len, ("abc",), {})
    assert not path.exists()
    with payload.dump_result([1, 2]) as result:
        path = Path(result.give())
    assert path.exists()  # it is the receiver's now
    with payload.Payload.from_ticket(str(path), given=True) as received:
        assert not path.exists()
        assert received.load() == [1, 2]


def test_layouts_of_windows_structures():
    # Sizes of the documented structures on 64-bit Windows, whose integer types this platform shares.
    assert ctypes.sizeof(windows._BasicLimits) == 64
    assert ctypes.sizeof(windows._ExtendedLimits) == 144


def test_exit_codes_of_windows_are_told():
    assert process.describe_exit(0xC0000005) == "exit code 0xc0000005, access violation"
    assert process.describe_exit(3) == "exit code 3"
    assert process.describe_exit(-9) == "SIGKILL"


def test_an_end_is_seen_where_the_system_offers_nothing_to_wait_on(monkeypatch):
    def refuse(_pid):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(os, "pidfd_open", refuse)
    assert notebook_launcher(lambda: 5, start_method="spawn") == 5


PORTABLE = (
    *("group/spawner_portable", "output/byte_sources", "payload/mapping", "payload/memory"),
    *("payload/named_files", "system/process", "system/wakeup", "system/windows", "transport/handshake"),
)


# What holds on one platform only can't be reached on the others; what isn't looked into is anything.
LENIENT = (
    "--no-warn-unreachable",
    "--allow-subclassing-any",
    "--no-warn-return-any",
    "--allow-untyped-calls",
)


@pytest.mark.parametrize("platform", ["win32", "darwin"])
def test_types_hold_for_the_platform(platform, tmp_path):
    pytest.importorskip("mypy")
    files = [f"nbaccel/launch/{name}.py" for name in PORTABLE]
    options = ["--platform", platform, "--follow-imports", "skip", "--cache-dir", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *options, *LENIENT, *files],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stdout
