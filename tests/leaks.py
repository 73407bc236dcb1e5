"""What a test left behind: processes, threads, file descriptors, environment, signal handlers, temp files,
the default process group.

`watch()` compares the state before and after. What it finds it also repairs, so that one leak is reported
by the test that caused it and by no other. It must never forgive a kind of leak for good: each tolerance
below names its reason.

Processes are found in two ways: as descendants of this one, and by an environment variable that all of
them inherit, which also finds those whose parent has died and that were adopted by init.
"""

from __future__ import annotations

import gc
import multiprocessing.resource_tracker
import os
import re
import signal
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

RUN_MARK = "NBACCEL_TEST_RUN"
"""Environment variable that every process of a test run inherits; its value is unique to the run."""

GRACE_S = 2.0
"""How long what is on its way out may take to go."""

ZYGOTE = "nbaccel.launch.zygotes.zygote"
"""In the command line of the launcher's idle server process."""

# What the libraries in use leave in /dev/shm; other names there belong to other programs.
_SHARED_MEMORY = ("nbaccel", "torch_", "psm_", "sem.mp-", "pymp")

# Set by pytest itself while a test runs.
_ENVIRONMENT_OF_PYTEST = {"PYTEST_CURRENT_TEST", "PYTEST_VERSION"}

ProcessId = tuple[int, float]
"""Process id and start time: a pid alone can be given out again."""


class LeakError(AssertionError):
    """A test left something behind."""


def mark_this_run(*, anew: bool = False) -> str:
    """Mark this process and all that it will start; returns the mark.

    Args:
        anew: also when it was started by a marked process, as by one of several that share the tests.
    """
    if anew:
        os.environ.pop(RUN_MARK, None)
    return os.environ.setdefault(RUN_MARK, uuid.uuid4().hex)


def marked_processes(variable: str = RUN_MARK, value: str | None = None) -> dict[ProcessId, str]:
    """All live processes that inherited `variable` with `value` (default: this run's), without this one."""
    wanted = os.environ.get(variable) if value is None else value
    found: dict[ProcessId, str] = {}
    if wanted is None:
        return found
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and process.environ().get(variable) == wanted:
                found[process.pid, process.create_time()] = describe(process)
        except psutil.Error:
            continue  # gone, a zombie, or somebody else's: not one of ours
    return found


def describe(process: psutil.Process) -> str:
    """Pid, state and command line, e.g. ``pid 12 (sleeping): python -m http.server``."""
    try:
        return (
            f"pid {process.pid} ({process.status()}): {' '.join(process.cmdline())[:200] or process.name()}"
        )
    except psutil.Error:
        return f"pid {process.pid} (gone)"


@dataclass(frozen=True)
class Snapshot:
    """The state of this process and what belongs to it."""

    processes: dict[ProcessId, str]
    threads: dict[int, str]
    files: Counter[str]
    environment: dict[str, str]
    handlers: dict[int, Any]
    temporary: frozenset[str]
    process_group: bool
    cuda: bool
    taken: float = field(default_factory=time.monotonic)

    @classmethod
    def take(cls) -> Snapshot:
        return cls(
            processes=_processes(),
            threads={t.ident: t.name for t in threading.enumerate() if t.ident is not None},
            files=_files(),
            environment={k: v for k, v in os.environ.items() if k not in _ENVIRONMENT_OF_PYTEST},
            # SIGALRM belongs to pytest-timeout, which takes it back before fixtures end when a test fails.
            handlers={int(s): signal.getsignal(s) for s in signal.valid_signals() - {signal.SIGALRM}},
            temporary=_temporary(),
            process_group=_process_group(),
            cuda=_cuda(),
        )


@contextmanager
def watch(grace_s: float = GRACE_S) -> Iterator[None]:
    """Fail when the body leaves something behind.

    Args:
        grace_s: seconds that threads and processes which are on their way out may take.

    Raises:
        LeakError: one line for each leak. What was left is then removed, as far as that is possible.
    """
    before = Snapshot.take()
    yield
    after = Snapshot.take()
    deadline = time.monotonic() + grace_s
    collected = False
    while leaks := differences(before, after):
        if not collected:
            gc.collect()  # an unclosed object in a reference cycle isn't a leak, it is only late
            collected = True
        elif time.monotonic() > deadline:
            repair(before, after)
            raise LeakError("the test left something behind:\n  " + "\n  ".join(leaks))
        else:
            time.sleep(0.02)
        after = Snapshot.take()


def differences(before: Snapshot, after: Snapshot) -> list[str]:
    """One line for each thing that is there now and was not, or has changed."""
    new_processes = set(after.processes) - set(before.processes)
    zygotes = {key for key in new_processes if _is_allowed(key, before)}
    lines = [f"process {after.processes[key]}" for key in sorted(new_processes - zygotes)]
    lines += [
        f"thread {name!r}"
        for ident, name in after.threads.items()
        if ident not in before.threads and not _is_tolerated_thread(name)
    ]
    lines += _file_differences(before, after, zygotes)
    lines += _mapping_differences("environment variable", before.environment, after.environment)
    lines += [
        f"signal handler of {signal.Signals(number).name}: {before.handlers[number]} -> {handler}"
        for number, handler in after.handlers.items()
        if before.handlers[number] != handler
    ]
    new_files = after.temporary - before.temporary
    lines += [f"temporary file {name}" for name in sorted(new_files - _mapped_by_strangers(new_files))]
    if after.process_group and not before.process_group:
        lines.append("default process group of torch.distributed")
    return lines


def repair(before: Snapshot, after: Snapshot) -> None:
    """Take away what was left, so that the next test starts clean. Threads and files can't be taken away."""
    for pid, created in set(after.processes) - set(before.processes):
        if not _is_allowed((pid, created), before):
            end_process(pid, created)
    for number, handler in before.handlers.items():
        if handler is not None and signal.getsignal(number) != handler:
            signal.signal(number, handler)
    for name in set(after.environment) - set(before.environment):
        del os.environ[name]
    os.environ.update(before.environment)
    if after.process_group and not before.process_group:
        sys.modules["torch.distributed"].destroy_process_group()


def end_process(pid: int, created: float, timeout_s: float = 5.0) -> None:
    """Kill the process if the pid still means the one that was seen, and wait until it runs no more."""
    try:
        process = psutil.Process(pid)
        if process.create_time() != created:
            return
        process.kill()
        deadline = time.monotonic() + timeout_s
        # Its parent may never collect it: a zombie is as good as gone.
        while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{describe(process)} is still there {timeout_s} s after SIGKILL")
            time.sleep(0.01)
    except psutil.NoSuchProcess:
        return


def leave_to_itself(pid: int) -> None:
    """From now on the descendants of this process are no test's leaks, as long as it lives.

    For tools of the tests that manage processes of their own: a browser keeps renderers, or starts some in
    advance, as it likes. What is tested must never run below such a tool.
    """
    _left_to_themselves.append(psutil.Process(pid))


_left_to_themselves: list[psutil.Process] = []


def _processes() -> dict[ProcessId, str]:
    found = marked_processes()
    for process in psutil.Process().children(recursive=True):
        try:
            found[process.pid, process.create_time()] = describe(process)
        except psutil.NoSuchProcess:
            continue
    for tool in filter(psutil.Process.is_running, _left_to_themselves):
        for process in tool.children(recursive=True):
            found.pop((process.pid, process.create_time()), None)
    tracker = _resource_tracker("_pid")
    return {key: text for key, text in found.items() if key[0] != tracker}


def is_zygote(pid: int, owners: Collection[int]) -> bool:
    """Whether this is an idle server process of the launcher that belongs to one of the `owners`.

    A Python process that launches keeps one such process, which leads a session, and in the same session the
    ones that it has forked with more modules loaded. Workers are their forks as well and show the same
    command line, but each leads a session of its own.
    """
    try:
        root = psutil.Process(os.getsid(pid))
        return (
            all(ZYGOTE in " ".join(p.cmdline()) for p in (root, psutil.Process(pid)))
            and root.ppid() in owners
        )
    except (psutil.Error, ProcessLookupError):
        return False


def _is_allowed(key: ProcessId, before: Snapshot) -> bool:
    return is_zygote(key[0], {os.getpid()} | {pid for pid, _ in before.processes})


def _is_tolerated_thread(name: str) -> bool:
    # pytest-timeout's timer in thread mode; it ends with the test's protocol, after the fixtures.
    return name.startswith("pytest_timeout")


def _files() -> Counter[str]:
    """Open descriptors by what they point at."""
    targets: Counter[str] = Counter()
    tracker = _resource_tracker("_fd")
    for name in os.listdir("/proc/self/fd"):
        if int(name) == tracker:
            continue
        try:
            targets[os.readlink(f"/proc/self/fd/{name}")] += 1
        except FileNotFoundError:
            continue  # the descriptor of the listing itself
    return targets


def _file_differences(before: Snapshot, after: Snapshot, zygotes: set[ProcessId]) -> list[str]:
    if after.cuda and not before.cuda:
        return []  # the first use of CUDA opens dozens of device files, which stay for the process's life
    new = after.files - before.files
    # Each server process that came up during this test is reached over a socket, the second one too before
    # it is forked; what the first one prints goes to a file in memory.
    mine = [pid for pid, _ in zygotes if is_zygote(pid, {os.getpid()})]
    roots = sum(os.getsid(pid) == pid for pid in mine)
    sockets = [target for target in new.elements() if target.startswith("socket:")]
    if len(sockets) <= len(mine) + roots:
        new -= Counter(sockets)
    if roots:
        new -= Counter({"/memfd:nbaccel-zygote-log (deleted)": roots})
    return [
        f"file descriptor -> {target}" + (f" ({n} of them)" if n > 1 else "") for target, n in new.items()
    ]


def _mapping_differences(kind: str, before: dict[str, str], after: dict[str, str]) -> list[str]:
    lines = [f"{kind} {name}={after[name]!r} was added" for name in sorted(set(after) - set(before))]
    lines += [f"{kind} {name} was removed" for name in sorted(set(before) - set(after))]
    changed = sorted(name for name in set(before) & set(after) if before[name] != after[name])
    return lines + [f"{kind} {name}: {before[name]!r} -> {after[name]!r}" for name in changed]


def _is_of_torch(entry: os.DirEntry[str]) -> bool:
    """Whether this is the directory that torch up to 2.9 makes as it is imported, and leaves in the end where
    the process, say a kernel, was killed. It is put on ``sys.path``, and holds one generated module.
    """
    return (
        re.fullmatch(r"tmp\w{8}", entry.name) is not None
        and entry.is_dir()
        and {file.name for file in os.scandir(entry.path)}
        <= {"_remote_module_non_scriptable.py", "__pycache__"}
    )


def _temporary() -> frozenset[str]:
    """Entries of the temp directory (private to the run, see conftest.py) and of shared memory."""
    names = {entry.path for entry in os.scandir(tempfile.gettempdir()) if not _is_of_torch(entry)}
    shared = Path("/dev/shm")
    if shared.is_dir():
        names |= {e.path for e in os.scandir(shared) if e.name.startswith(_SHARED_MEMORY)}
    return frozenset(names)


def _mapped_by_strangers(names: frozenset[str]) -> frozenset[str]:
    """Shared memory that processes outside of this run are using: another run's, on the same machine."""
    shared = {name for name in names if name.startswith("/dev/shm/")}
    if not shared:
        return frozenset()
    ours = {pid for pid, _ in marked_processes()} | {os.getpid()}
    found: set[str] = set()
    for pid in psutil.pids():
        if pid in ours:
            continue
        try:
            maps = Path(f"/proc/{pid}/maps").read_text()
        except OSError:
            continue  # it has ended, or is somebody else's
        found |= {name for name in shared if name in maps}
    return frozenset(found)


def _process_group() -> bool:
    distributed = sys.modules.get("torch.distributed")
    return distributed is not None and distributed.is_available() and distributed.is_initialized()


def _cuda() -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and torch.cuda.is_initialized()


def _resource_tracker(attribute: str) -> int | None:
    """The standard library starts one tracker process, once, and keeps it and its pipe for good."""
    return getattr(multiprocessing.resource_tracker._resource_tracker, attribute, None)
