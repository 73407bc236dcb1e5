"""One script on some processes: from start to exit code.

Leaves the process as it found it: environment, signal handlers, logging, children.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from torch.distributed.elastic.agent.server.api import WorkerSpec
from torch.distributed.elastic.multiprocessing import SignalException

from nbaccel.cli.script import meeting, streams
from nbaccel.cli.script.agent import ScriptAgent
from nbaccel.cli.script.meeting import MeetingPoint
from nbaccel.cli.script.workers import Workers
from nbaccel.config import LaunchSpec
from nbaccel.errors import WorkerDied
from nbaccel.launch import failures
from nbaccel.launch.system import process

OUT_OF_MEMORY_HINT = "SIGKILL is what the system sends when memory has run out"


@dataclass(frozen=True)
class Job:
    """A script and how to run it."""

    command: Sequence[str]
    """Program and arguments of each process; see :func:`script_command`."""

    spec: LaunchSpec
    environ: Mapping[str, str] = field(default_factory=dict)
    """What the processes' environment has besides this one's; an empty text removes a name."""

    output: str = "all"
    max_restarts: int = 0
    monitor_interval: float = 0.1
    """Seconds between two looks at the workers."""

    meeting: MeetingPoint = field(default_factory=MeetingPoint)
    role: str = "default"
    owns_process: bool = False
    """This process runs the job and nothing else: signals may end it as long as there are no workers."""

    debug: bool = False
    """Show torch's own log of the agent."""


def script_command(script: str, arguments: Sequence[str], *, is_module: bool, is_program: bool) -> list[str]:
    """The command that runs a script, a module (as ``python -m``), or any program."""
    if is_program:
        # A path as it stands: the system would search PATH for a bare name.
        program = f"./{script}" if os.sep not in script and Path(script).is_file() else script
        return [program, *arguments]
    return [sys.executable, "-u", *(["-m"] if is_module else []), script, *arguments]


def run(job: Job) -> None:
    """Run a job to its end.

    Raises:
        WorkerDied: a process ended with an exit code other than 0, or by a signal.
        KeyboardInterrupt: the same, after an interrupt that the script didn't handle.
        LaunchTimeout: the machines did not meet.
        OSError: the port is in use, or a log can't be written.
    """
    is_direct = (
        job.spec.num_processes == 1
        and job.output != "none"
        and job.spec.log_dir is None
        and streams.writes_to_own_terminal()
    )
    first = job.spec.node_rank * job.spec.num_processes
    ranks = range(first, first + job.spec.num_processes)
    with meeting.told_in_full(job.meeting, job.spec):
        handler = meeting.open_handler(job.meeting, job.spec)
    with contextlib.ExitStack() as stack:
        stack.callback(handler.shutdown)
        stack.enter_context(_environment(job))
        stack.enter_context(_own_signals())
        stack.enter_context(_quiet_log(job.debug))
        sink: streams.Sink = (
            streams.PassThrough()
            if is_direct
            else streams.router_for(job.output, ranks, log_dir=job.spec.log_dir)
        )
        pipes = streams.Streams(sink, is_direct=is_direct)
        stack.callback(pipes.close)
        agent = ScriptAgent(
            WorkerSpec(
                role=job.role,
                local_world_size=job.spec.num_processes,
                rdzv_handler=handler,
                entrypoint=sys.executable,
                args=("-I", "-S", str(guard_path()), str(os.getpid()), *job.command),
                max_restarts=job.max_restarts,
                monitor_interval=job.monitor_interval,
            ),
            logs_specs=pipes,
        )
        agent.owns_process = job.owns_process and job.spec.num_nodes > 1
        try:
            with meeting.told_in_full(job.meeting, job.spec):
                result = agent.run(job.role)
        except SignalException as error:
            # It came before the workers were there, or while the agents waited for each other.
            raise WorkerDied(
                f"stopped by {process.describe_signal(error.sigval)}",
                signal=int(error.sigval),
                exitcode=-error.sigval,
            ) from None
    if agent.workers is not None and (result is None or result.is_failed()):
        _raise_failure(agent.workers, sink, agent.stopped_by)


def guard_path() -> Path:
    """The file that becomes a worker."""
    return Path(__file__).with_name("guard.py")


def _raise_failure(workers: Workers, sink: streams.Sink, stopped_by: int | None) -> NoReturn:
    rank = _cause(workers, sink)
    code = workers.codes[rank]
    if stopped_by == signal.SIGINT and code == -signal.SIGINT:
        raise KeyboardInterrupt
    tail = sink.stderr_tail(rank)
    if code < 0:
        text = f"rank {rank} was ended by {process.describe_signal(-code)}"
        if code == -signal.SIGKILL and stopped_by is None:
            text += f"; {OUT_OF_MEMORY_HINT}"
    else:
        text = f"rank {rank} ended with exit code {code}"
    others = [
        other
        for other, its in workers.codes.items()
        if other != rank and its not in {0, -signal.SIGTERM, code}
    ]
    if others:
        text += f" ({', '.join(f'rank {other}: {workers.codes[other]}' for other in others)})"
    if tail:
        text += f"\nThe last lines of its standard error:\n{tail.rstrip()}"
    raise WorkerDied(
        text,
        rank=rank,
        exitcode=code,
        signal=-code if code < 0 else None,
        stderr_tail=tail,
    )


def _cause(workers: Workers, sink: streams.Sink) -> int:
    """The rank whose end explains the others'.

    Of several that were seen to have failed at the same look: one that doesn't complain about a peer,
    then one with an exit code of its own choice.
    """
    failed = workers.failed_first or tuple(rank for rank, code in workers.codes.items() if code != 0)

    def order(rank: int) -> tuple[bool, bool, int]:
        return failures.tells_of_a_peer(sink.stderr_tail(rank)), workers.codes[rank] == 1, rank

    return min(failed, key=order)


@contextlib.contextmanager
def _environment(job: Job) -> Iterator[None]:
    """The agent hands this process's environment on to the workers."""
    before = dict(os.environ)
    threads = max(1, process.usable_cores() // job.spec.num_processes)
    changes = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS") or str(threads), **job.environ}
    interface = process.loopback_interface() if job.spec.num_nodes == 1 else None
    if interface is not None:
        changes = {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": interface} | changes
    try:
        for name, value in changes.items():
            if value:
                os.environ[name] = value
            else:
                os.environ.pop(name, None)
        yield
    finally:
        for name in set(os.environ) - set(before):
            del os.environ[name]
        os.environ.update(before)


@contextlib.contextmanager
def _own_signals() -> Iterator[None]:
    """Put back the handlers that the agent replaces."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for name in ("SIGHUP", "SIGQUIT"):
        if (number := getattr(signal, name, None)) is not None:  # not on Windows
            handlers[number] = signal.getsignal(number)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


@contextlib.contextmanager
def _quiet_log(debug: bool) -> Iterator[None]:
    """The agent's log repeats at length what is said here in a line."""
    logger = logging.getLogger("torch.distributed.elastic")
    before = logger.level
    logger.setLevel(logging.INFO if debug else logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)
