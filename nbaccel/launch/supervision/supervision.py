"""What happens to a launch: it returns, fails, is interrupted, or takes too long.

The rules:

* All return: workers shut down in order and the values come home.
* One fails: the others get a short grace to fail by themselves, so that the root cause can be told
  from its consequences; then they are ended, and the root cause is raised.
* The user interrupts: one SIGINT to each worker, then TERM, then KILL. A second interrupt doesn't
  wait.
* The time is over: every worker says where it is, then all are ended.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from types import FrameType
from typing import Any, NoReturn, Self

from nbaccel.errors import LaunchTimeout, WorkerDied
from nbaccel.launch import failures, notices
from nbaccel.launch.group.group import WorkerGroup
from nbaccel.launch.group.member import Member
from nbaccel.launch.output.router import Router
from nbaccel.launch.supervision.hang import HangWatch
from nbaccel.launch.system import process
from nbaccel.launch.system.wakeup import Wakeup
from nbaccel.launch.traces import postmortem

FAILURE_GRACE = 0.2
"""Seconds that the others get to fail by themselves after the first failure."""

DETAILS_PATIENCE = 0.2
"""Seconds to wait for the failed worker's description of its frames."""

TERM_PATIENCE = 0.15
"""Seconds between TERM and KILL after a failure."""

INTERRUPT_PATIENCE = (2.0, 1.0)
"""Seconds from SIGINT to TERM, and from TERM to KILL."""

SHUTDOWN_PATIENCE = 30.0
"""Seconds that a worker gets for its threads and exit handlers after its function has returned."""

STACKS_PATIENCE = 0.5
"""Seconds to wait for workers to say where they are."""


class Interrupts:
    """Counts interrupts of the kernel while it is entered, instead of raising in odd places.

    Outside the main thread, where Python delivers no signals, it counts none.
    """

    def __init__(self) -> None:
        self.count = 0
        self._previous: Any = None
        self._installed = False
        self._wakeup = Wakeup()
        self._previous_fd: int | None = None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._previous = signal.signal(signal.SIGINT, self._note)
            self._installed = True
            if process.is_portable():
                # On Windows nothing else ends a wait: an interrupt is only noted for later.
                self._previous_fd = signal.set_wakeup_fd(
                    self._wakeup.sender_fileno(), warn_on_full_buffer=False
                )
        return self

    def __exit__(self, *_: object) -> None:
        if self._installed:
            signal.signal(signal.SIGINT, self._previous)
        if self._previous_fd is not None:
            signal.set_wakeup_fd(self._previous_fd)
        self._wakeup.close()

    def fileno(self) -> int:
        """Becomes readable when an interrupt has come."""
        return self._wakeup.fileno()

    def raise_if_any(self) -> None:
        """Raise ``KeyboardInterrupt`` for an interrupt that nobody has acted on."""
        if self.count:
            raise KeyboardInterrupt

    def _note(self, _signum: int, _frame: FrameType | None) -> None:
        self.count += 1
        self._wakeup.wake()

    def clear(self) -> None:
        """Make :meth:`fileno` unreadable again; the count stays."""
        self._wakeup.clear()


def import_torch() -> None:
    """Import torch whole: an interrupt in the middle would leave half of it, and a kernel that crashes.

    Raises:
        KeyboardInterrupt: the user interrupted meanwhile.
    """
    if "torch" in sys.modules:
        return
    with Interrupts() as interrupts:
        import torch.distributed  # noqa: F401

        interrupts.raise_if_any()


class Supervisor:
    """Carries one call to its end on a group of workers."""

    def __init__(
        self, group: WorkerGroup, router: Router, interrupts: Interrupts, timeout: float | None
    ) -> None:
        self._group = group
        self._router = router
        self._interrupts = interrupts
        self._timeout = timeout
        self._deadline = None if timeout is None else time.monotonic() + timeout

    def wait(self) -> None:
        """Return when every worker has returned; raise what went wrong otherwise.

        Raises:
            BaseException: the root cause, as raised by the worker.
            WorkerDied: a worker ended without a report.
            LaunchTimeout: the time was over.
            KeyboardInterrupt: the user interrupted.
        """
        grace_over = float("inf")
        hang_watch = HangWatch(self._group)
        while not all(member.is_settled for member in self._group.members):
            if self._interrupts.count:
                self._give_in()
            now = time.monotonic()
            if grace_over == float("inf") and self._in_trouble():
                grace_over = now + FAILURE_GRACE
            if now >= grace_over:
                break
            if self._deadline is not None and now >= self._deadline:
                self._time_is_over()
            if now >= hang_watch.next_look:
                hang_watch.look()
            deadline = float("inf") if self._deadline is None else self._deadline
            until = min(grace_over, deadline, hang_watch.next_look)
            self._group.pump(None if until == float("inf") else max(0.0, until - now))
        if self._interrupts.count:
            self._give_in()
        if self._in_trouble():
            self._fail()

    def shut_down(self) -> None:
        """After :meth:`wait`: let the workers end in order, and read the rest of their output."""
        self._group.stop()
        stopped: list[Member] = []
        deadline = time.monotonic() + SHUTDOWN_PATIENCE
        while self._group.running():
            if self._interrupts.count:
                self._give_in()
            left = deadline - time.monotonic()
            if left <= 0:
                self._report_late()
                stopped = self._group.running()
                self._group.terminate(TERM_PATIENCE)
                break
            self._group.pump(left)
        self._group.drain()
        for member in self._group.members:
            if member.exitcode and member not in stopped:
                how = process.describe_exit(member.exitcode)
                notices.warn(f"rank {member.rank} ended with {how} after its function had returned")

    # --- the four ends ------------------------------------------------------------------------

    def _end_all(self) -> None:
        """After a failure: leave no worker at work."""
        self._group.terminate(TERM_PATIENCE)
        self._group.drain()

    def _in_trouble(self) -> list[Member]:
        return [member for member in self._group.members if member.is_in_trouble]

    def _fail(self) -> NoReturn:
        troubled = self._in_trouble()
        member = min(troubled, key=_precedence)
        if member.failure is not None:
            self._group.pump_until(lambda: member.frames is not None or member.has_exited, DETAILS_PATIENCE)
        stopped = [member.rank for member in self._group.members if not member.is_settled]
        self._end_all()
        self._router.show_kept(member.rank)
        error = self._error_of(member)
        others = [other.failure for other in troubled if other is not member and other.failure is not None]
        notes = failures.summarise(others)
        for other in troubled:
            if other is not member and other.failure is None and not _died_together(other, member):
                notes.append(f"rank {other.rank} also {story_of(other)}")
        if stopped:
            notes.append(
                f"{failures.describe_ranks(stopped)} {'were' if len(stopped) > 1 else 'was'} stopped"
            )
        if member.failure is not None and len(self._group.members) > 1:
            notes.insert(0, f"raised by rank {member.rank}")
        if notes:
            failures.annotate(error, f"nbaccel: {'; '.join(notes)}")
        # An exception of its own: the one that is raised collects the frames, and so the variables, of
        # everybody it passes through, and those would stay alive with the report.
        own = self._error_of(member)
        postmortem.remember(postmortem.FailureReport(member.rank, own, member.frames or (), tuple(notes)))
        raise error

    def _error_of(self, member: Member) -> BaseException:
        if member.failure is not None:
            return failures.revive(member.failure, member.failure_payload)
        code = member.asked_exit if member.asked_exit is not None else member.exitcode
        tail = self._router.stderr_tail(member.rank).rstrip()
        who = f"rank {member.rank}"
        if len(member.process_ranks) > 1 and member.asked_exit is None:
            who = f"the process of {failures.describe_ranks(member.process_ranks)}"
        text = f"{who} {story_of(member)}"
        if tail:
            text += f"\nlast lines of its stderr:\n{tail}"
        return WorkerDied(
            text,
            rank=member.rank,
            exitcode=code,
            signal=-code if code is not None and code < 0 else None,
            stderr_tail=tail,
        )

    def _give_in(self) -> NoReturn:
        """The user interrupted: stop everybody, ever more firmly, and say so once."""
        for signum, patience in zip((signal.SIGINT, signal.SIGTERM), INTERRUPT_PATIENCE, strict=True):
            seen = self._interrupts.count
            self._group.signal(signum)
            self._group.pump_until(
                lambda seen=seen: not self._group.running() or self._interrupts.count > seen,  # type: ignore[misc]
                patience,
            )
        self._group.kill()
        self._group.drain()
        raise KeyboardInterrupt

    def _time_is_over(self) -> None:
        stacks = self._collect_stacks()
        late = [member.rank for member in self._group.members if not member.is_settled]
        if not late:
            return  # the last one was done while we asked
        self._end_all()
        rank = late[0] if late else None
        text = f"not over after {self._timeout:g} s: {failures.describe_ranks(late)} still at work\n{stacks}"
        postmortem.remember(postmortem.FailureReport(rank, LaunchTimeout(text, rank=rank)))
        raise LaunchTimeout(text, rank=rank)

    def _collect_stacks(self, *, leaving: bool = False) -> str:
        """Where each rank is; ``leaving``: functions have returned, what still runs is of interest."""
        self._group.ask_stacks()
        asked = self._group.running()
        self._group.pump_until(
            lambda: all(member.stacks is not None or member.has_exited for member in asked), STACKS_PATIENCE
        )
        blocks = []
        for member in asked:
            if member.returned and not leaving:
                text = "has finished"
            else:
                text = member.stacks or "does not answer: it is stuck in C code that holds the interpreter"
            blocks.append(f"--- rank {member.rank} ---\n{text}")
        return "\n".join(blocks)

    def _report_late(self) -> None:
        stacks = self._collect_stacks(leaving=True)
        late = failures.describe_ranks(member.rank for member in self._group.running())
        notices.warn(
            f"{late} did not end within {SHUTDOWN_PATIENCE:.0f} s after the function had returned "
            f"and is stopped\n{stacks}"
        )


def _precedence(member: Member) -> tuple[bool, float]:
    consequence = member.failure is not None and member.failure.consequence
    return consequence, member.trouble_at


def _died_together(one: Member, other: Member) -> bool:
    """Whether the end of both is one story: that of the process that they share."""
    return other.failure is None and one.asked_exit is None and other.rank in one.process_ranks


def story_of(member: Member) -> str:
    """What became of a member that did not report an exception."""
    if member.asked_exit is not None:
        return f"called sys.exit({member.exit_text or member.asked_exit!r})"
    if member.exitcode is None:
        return "was lost with the process that it was forked from"
    if member.exitcode == -process.KILL and sys.platform != "win32":
        return (
            "was killed by SIGKILL, most likely by the system because memory ran out: "
            "use a smaller batch, model or number of processes"
        )
    return f"died: {process.describe_exit(member.exitcode)}"
