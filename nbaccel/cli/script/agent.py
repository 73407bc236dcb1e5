"""torch's elastic agent with three habits of its own.

- Signals go to the script, which decides: a first interrupt is handed on once and waited for, a second
  one ends the workers. Until the last worker has ended nobody else is touched.
- When a worker has failed the others get a few seconds, not thirty.
- It remembers which worker failed first, and its exit code.

It extends only the methods that the agent's base class declares for its subclasses.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from types import FrameType
from typing import Any

from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent

from nbaccel.cli.script.workers import Workers

STOP_GRACE_S = 5.0
"""How long workers have after a SIGTERM that follows another's failure or a second interrupt."""

TERMINATION_GRACE_S = 30.0
"""How long workers have when this process is asked to end, by SIGTERM or SIGHUP."""

_HANDED_ON = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT") if hasattr(signal, name)
)


class ScriptAgent(LocalElasticAgent):
    """Runs one machine's share of a job."""

    workers: Workers | None = None
    """Those of the present round; None before the first."""

    stopped_by: int | None = None
    """The first signal that came from outside."""

    owns_process = False
    """This process has no other purpose, and several machines are to meet."""

    _signals = 0
    _kill_at = float("inf")

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        pids: dict[int, int] = super()._start_workers(worker_group)
        self.workers = Workers(
            {worker_group.workers[local_rank].global_rank: pid for local_rank, pid in pids.items()}
        )
        # After the agent's own, which would end the workers at the first interrupt.
        self._take_signals()
        return pids

    def _rendezvous(self, worker_group: WorkerGroup) -> None:
        self._leave_signals()
        super()._rendezvous(worker_group)

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        workers = self.workers
        assert workers is not None
        if not hasattr(os, "waitid"):
            result: RunResult = super()._monitor_workers(worker_group)
            workers.record({rank: failure.exitcode for rank, failure in result.failures.items()})
            return result
        workers.look()
        # The agent itself is asked only when its answer is final: it reaps, and ends all once one has failed.
        if not workers.all_ended:
            if self.stopped_by is not None:
                # Each shall finish in its own way.
                if time.monotonic() > self._kill_at:
                    workers.signal(signal.SIGKILL)
                return RunResult(state=WorkerState.HEALTHY)
            if not workers.failed_first:
                return RunResult(state=WorkerState.HEALTHY)
            workers.stop(STOP_GRACE_S)
        if self.stopped_by is not None:
            self._remaining_restarts = 0
        result = super()._monitor_workers(worker_group)
        if result.state is WorkerState.SUCCEEDED:
            self._leave_signals()
        return result

    def _leave_signals(self) -> None:
        """While agents wait for each other, in code that no handler interrupts, signals end the process.

        There are no workers then.
        """
        if self.owns_process and threading.current_thread() is threading.main_thread():
            for signum in _HANDED_ON:
                signal.signal(signum, signal.SIG_DFL)

    def _take_signals(self) -> None:
        if threading.current_thread() is threading.main_thread():
            for signum in _HANDED_ON:
                signal.signal(signum, self._on_signal)

    def _on_signal(self, signum: int, frame: FrameType | None) -> None:
        workers = self.workers
        assert workers is not None
        self._signals += 1
        if self.stopped_by is None:
            self.stopped_by = signum
        if self._signals == 1:
            workers.signal(signum)
            if signum != signal.SIGINT:
                self._kill_at = time.monotonic() + TERMINATION_GRACE_S
        elif self._signals == 2:
            workers.signal(signal.SIGTERM)
            self._kill_at = time.monotonic() + STOP_GRACE_S
        else:
            workers.signal(signal.SIGKILL)
