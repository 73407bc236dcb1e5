"""What happens to a task of a session: as for a launch, only that the workers live on.

Where a launch ends its workers, a session stops what they do: an interrupt for Python code, and cut
connections for those who wait in a collective. Then the process group, which is of no use any more,
is made anew, and replicas that may have been stopped at different steps are made equal.

The user's first interrupt asks all ranks to stop right after the same optimizer step. Only when that
has no success, or nobody takes steps, are they stopped where they are.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Collection
from typing import NoReturn

from nbaccel.launch.group.group import WorkerGroup
from nbaccel.launch.output.router import Router
from nbaccel.launch.supervision.supervision import Interrupts, Supervisor

SAME_STEP_PATIENCE = 2.0
"""Seconds that ranks get to reach the step at which they stop together."""

STEP_AHEAD_SECONDS = 0.1
"""How far ahead that step lies, in time at their present rate: asking and telling takes a moment."""

ANSWER_PATIENCE = 0.5
"""Seconds to wait for workers to tell their steps."""

STOP_PATIENCE = 2.0
"""Seconds after which a worker that can't be stopped is given up, and the session with it."""

REPEAT_EVERY = 0.3
"""Seconds between two interrupts of a worker that goes on."""


class TaskSupervisor(Supervisor):
    """Carries one task of a session to its end."""

    def __init__(
        self,
        group: WorkerGroup,
        router: Router,
        interrupts: Interrupts,
        timeout: float | None,
        renew_group: Callable[[bool], None],
        *,
        severs: bool = True,
    ) -> None:
        """Prepare for a task that has been submitted.

        Args:
            group: the session's workers.
            router: their output.
            interrupts: the user's.
            timeout: seconds until the task is stopped; None for no limit.
            renew_group: makes a new process group on all workers; its argument says whether replicas
                may differ. Ends the workers when that fails.
            severs: connections between workers are made by what may lose them. Those of a TPU's runtime
                aren't: it lives as long as the worker.
        """
        super().__init__(group, router, interrupts, timeout)
        self._renew_group = renew_group
        self._severs = severs
        self._started = time.monotonic()

    def wait(self) -> None:
        super().wait()
        self._group.drain_now()

    def _end_all(self) -> None:
        if any(member.has_exited for member in self._group.members) or not self._stop_hard():
            self._group.kill()
            self._group.drain()
            return
        self._group.drain_now()
        self._renew_group(True)

    def _give_in(self) -> NoReturn:
        if self._stop_at_the_same_step():
            self._group.drain_now()
            if not all(member.has_group for member in self._group.members):
                self._renew_group(False)
        else:
            self._end_all()
        raise KeyboardInterrupt

    def _stop_at_the_same_step(self) -> bool:
        at_work = [member for member in self._group.members if not member.is_settled]
        if not at_work or len(at_work) < sum(not member.idles for member in self._group.members):
            return False  # some have finished or failed: there is no step ahead of all
        seen = self._interrupts.count
        self._group.ask_steps()
        self._group.pump_until(
            lambda: all(member.steps is not None or member.is_settled for member in at_work), ANSWER_PATIENCE
        )
        taken = []
        for member in at_work:
            before = member.steps_before
            if member.steps is None or member.steps <= before:
                return False
            taken.append(member.steps - before)
        rate = max(taken) / max(time.monotonic() - self._started, 1e-3)
        target = max(member.steps or 0 for member in at_work) + 1 + int(rate * STEP_AHEAD_SECONDS)
        self._group.stop_at_step(target)
        deadline = time.monotonic() + SAME_STEP_PATIENCE
        while time.monotonic() < deadline and self._interrupts.count == seen:
            if all(member.is_settled for member in at_work):
                break
            self._group.pump(deadline - time.monotonic())
        self._group.stop_at_step(None)
        return all(_was_interrupted(member) for member in at_work) and self._ended_together(at_work)

    def _ended_together(self, members: Collection[object]) -> bool:
        """Whether they stopped after the same number of steps, as far as they tell."""
        self._group.ask_steps()
        self._group.pump_until(
            lambda: all(member.steps is not None for member in self._group.running()), ANSWER_PATIENCE
        )
        counts = {
            (member.steps or 0) - member.steps_before for member in self._group.members if member in members
        }
        return len(counts) == 1

    def _stop_hard(self) -> bool:
        """Stop everybody where they are; says whether all have stopped."""
        deadline = time.monotonic() + STOP_PATIENCE
        while not self._all_settled():
            if time.monotonic() > deadline:
                return False
            for member in self._group.members:
                if not member.is_settled:
                    member.process.signal(signal.SIGINT)
            if self._severs:
                self._group.sever()
            self._group.pump_until(self._all_settled, REPEAT_EVERY)
        return not any(member.has_exited for member in self._group.members)

    def _all_settled(self) -> bool:
        return all(member.is_settled for member in self._group.members)


def _was_interrupted(member: object) -> bool:
    failure = getattr(member, "failure", None)
    return failure is not None and failure.type_name == "KeyboardInterrupt"
