"""Workers that stay: a session runs task after task on the same group, which keeps all its state.

A task is a call like a launch's, with the same payload, channel, output and failures. What is
different: a failed, interrupted or late task leaves the workers alive (see
:mod:`nbaccel.launch.supervision.task_supervision`), and only a worker that dies costs its group. Between
tasks workers sleep; what their threads print meanwhile is shown with the next task.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from typing import Any

from nbaccel.config import LaunchSpec
from nbaccel.errors import LaunchError, WorkerDied
from nbaccel.launch import notices
from nbaccel.launch.failures import describe_ranks, hide_our_frames
from nbaccel.launch.group import spawners, xla
from nbaccel.launch.group.group import WorkerGroup
from nbaccel.launch.output.idle import IdleOutput
from nbaccel.launch.output.router import MODES, Router
from nbaccel.launch.payload import payload
from nbaccel.launch.payload.payload import Payload
from nbaccel.launch.progress.progress import ProgressWatch, mode_of
from nbaccel.launch.request.arguments import check_call
from nbaccel.launch.request.options import check_timeout
from nbaccel.launch.request.rendezvous import Rendezvous, open_rendezvous
from nbaccel.launch.request.resolve import describe
from nbaccel.launch.request.setups import setup_maker
from nbaccel.launch.supervision.status import status_of
from nbaccel.launch.supervision.supervision import Interrupts, Supervisor
from nbaccel.launch.supervision.task_supervision import TaskSupervisor
from nbaccel.launch.transport import messages
from nbaccel.launch.worker import standing_functions
from nbaccel.launch.worker.surroundings import Surroundings

REGROUP_PATIENCE = 20.0
"""Seconds in which workers must have a new process group."""

XLA_ALIGN_PATIENCE = 120.0
"""Seconds in which XLA's cores must have the same state again: there are transfers to be compiled."""

STATUS_PATIENCE = 1.0


class Session:
    """A group of workers that keep their state from task to task.

    Not for several threads at once: a task that finds another one running is refused.
    """

    def __init__(self, spec: LaunchSpec, start_method: str = "auto") -> None:
        """Prepare; workers start with the first task.

        Args:
            spec: what to run on.
            start_method: one of :data:`nbaccel.config.START_METHODS`.
        """
        self.spec = spec
        self._start_method = start_method
        self._busy = threading.Lock()
        self._group: WorkerGroup | None = None
        self._router: Router | None = None
        self._rendezvous: Rendezvous | None = None
        self._idle: IdleOutput | None = None
        """There while workers are."""
        self._round = 0
        self._task = 0
        self._around: dict[int, Surroundings] = {}
        self._lost = ""
        self._interrupts: Interrupts | None = None
        """Those of the task at hand."""
        self.generation = 0
        """How often workers were started: what others know of their state holds for one of them."""

    # --- tasks --------------------------------------------------------------------------------

    def run(
        self,
        function: Callable[..., Any],
        *args: Any,
        ranks: Sequence[int] | None = None,
        timeout: float | None = None,
        output: str | None = None,
        returns: str = "all",
        progress: bool | str | None = None,
        **kwargs: Any,
    ) -> Any:
        """Run ``function(*args, **kwargs)`` on every worker and return what it returned.

        Args:
            function: shipped by value, with what it uses of this process.
            args: positional arguments.
            ranks: run on these ranks only; None for all.
            timeout: seconds after which the task is stopped; the workers stay.
            output: ``all``, ``main`` or ``none``; None means ``all``.
            returns: ``all``: a list, a value a rank that took part; ``main``: the first one's value.
            progress: whether a live panel is shown, as in :func:`nbaccel.notebook_launcher`.
            kwargs: keyword arguments.

        Raises:
            ValueError: a rank, output or returns that doesn't exist.
            BaseException: as :func:`nbaccel.notebook_launcher`.
        """
        __tracebackhide__ = True
        check_call(function, args, kwargs)
        if returns not in ("all", "main"):
            raise ValueError(f"returns={returns!r} is not known; choose one of all, main")
        with payload.dump_call((function, args, kwargs)) as call:
            try:
                values = self.run_packed(
                    call, ranks=ranks, timeout=timeout, output=output, progress=mode_of(progress)
                )
            except BaseException as error:
                hide_our_frames(error)
                raise
        ordered = [values[rank] for rank in sorted(values)]
        return ordered if returns == "all" else ordered[0]

    def run_packed(
        self,
        call: Payload,
        *,
        ranks: Collection[int] | None = None,
        timeout: float | None = None,
        output: str | None = None,
        progress: str = "off",
    ) -> dict[int, Any]:
        """As :meth:`run`, for a call that is packed already; the caller closes it.

        Without a word it has no live panel: it may be a question of nbaccel's own.

        Returns:
            rank -> value.
        """
        mode = output or "all"
        if mode not in MODES:
            raise ValueError(f"output={mode!r} is not known; choose one of {', '.join(MODES)}")
        timeout = check_timeout(timeout)
        ranks = self._check_ranks(ranks)
        with self._claimed():
            # It may wait for imports; there is nothing to be stopped yet, so an interrupt may just be raised.
            spawner = None if self.is_alive else spawners.of(self._start_method, call.modules)
            with Interrupts() as interrupts:
                values = self._run_task(call, ranks, timeout, mode, progress, interrupts, spawner)
                interrupts.raise_if_any()
        return values

    def _claimed(self) -> AbstractContextManager[None]:
        """Within it no other task runs.

        Raises:
            RuntimeError: one runs already.
        """
        if not self._busy.acquire(blocking=False):
            raise RuntimeError(
                "the workers are busy with another task of this kernel; wait for it or interrupt it"
            )
        return _Release(self._busy)

    def _run_task(
        self,
        call: Payload,
        ranks: Collection[int] | None,
        timeout: float | None,
        mode: str,
        progress: str,
        interrupts: Interrupts,
        spawner: spawners.Spawner | None,
    ) -> dict[int, Any]:
        self._interrupts = interrupts
        group = self._live_group(spawner)
        router = self._router
        assert router is not None
        router.begin(mode)
        error: BaseException | None = None
        watch = ProgressWatch(progress, group, router, self.spec)
        with group.listening_to(interrupts.fileno(), interrupts.clear):
            try:
                self._hear_from_now_on()
                self._task += 1
                news = self._news(ranks)
                with watch:
                    group.submit(self._task, call, lambda _rank: True, ranks=ranks, ambience=news.__getitem__)
                    supervisor = TaskSupervisor(
                        group,
                        router,
                        interrupts,
                        timeout,
                        self._renew_group,
                        severs=not xla.is_used_by(self.spec),
                    )
                    supervisor.wait()
                values = {m.rank: m.value.load() for m in group.members if m.value is not None}
                if not all(member.has_group for member in group.members):
                    self._renew_group(False)
            except BaseException as raised:
                error = raised
                raise
            finally:
                router.finish(error)
                watch.finish()
                self._after_task(group, error)
        return values

    def _after_task(self, group: WorkerGroup, error: BaseException | None) -> None:
        if any(member.has_exited for member in group.members):
            self._lost = self._lost or _why_lost(error)
            if not isinstance(error, WorkerDied):  # which says it itself
                notices.warn("a worker did not stop and was ended: the names on the workers are gone")
            self._let_go()
            return
        for member in group.members:
            member.begin_task(idles=True)
        self._leave_to_idle_output()

    def _hear_from_now_on(self) -> None:
        """This thread reads the workers' pipes; what came meanwhile is shown first."""
        if self._idle is not None:
            self._idle.pause(self._router)

    def _leave_to_idle_output(self) -> None:
        """Nobody waits for the workers now, and still their pipes have to be read."""
        assert self._group is not None
        if self._idle is None:
            self._idle = IdleOutput()
        self._idle.resume(self._group.open_streams())

    # --- life ---------------------------------------------------------------------------------

    @property
    def is_alive(self) -> bool:
        """Whether workers run and keep state."""
        return self._group is not None and not any(member.has_exited for member in self._group.members)

    def start(self) -> None:
        """Bring the workers up now instead of with the first task."""
        self.run(standing_functions.nothing, output="none", progress=False)

    def stop(self) -> None:
        """End the workers in order; their state is gone. Without workers it does nothing."""
        group, router = self._group, self._router
        if group is None or router is None:
            return
        with (
            self._claimed(),
            Interrupts() as interrupts,
            group.listening_to(interrupts.fileno(), interrupts.clear),
        ):
            router.begin("all")
            self._hear_from_now_on()
            for member in group.members:
                member.begin_task(idles=True)
            try:
                Supervisor(group, router, interrupts, None).shut_down()
            finally:
                self._let_go()

    def restart(self) -> None:
        """End the workers; new ones start with the next task."""
        self.stop()
        self._lost = ""

    def use_precision(self, mixed_precision: str) -> None:
        """Let each ``Accelerator`` that is made from now on take this precision."""
        from dataclasses import replace

        self.spec = replace(self.spec, mixed_precision=mixed_precision)

    def _live_group(self, spawner: spawners.Spawner | None) -> WorkerGroup:
        if self._group is not None and not self.is_alive:
            self._lost = self._lost or "a worker ended between two cells"
            self._let_go()
        if self._group is None:
            if self._lost:
                notices.warn(
                    f"the workers were lost ({self._lost.splitlines()[0]}), and with them all names that "
                    "lived there; new ones are started"
                )
                self._lost = ""
            self._start(spawner or spawners.of(self._start_method, frozenset()))
        assert self._group is not None
        return self._group

    def _start(self, spawner: spawners.Spawner) -> None:
        ranks = range(self.spec.num_processes)
        xla.check_can_stay(self.spec)
        xla.check_free(self.spec, os.environ)
        rendezvous = open_rendezvous("127.0.0.1", None, num_nodes=1, node_rank=0)
        try:
            router = Router("all", ranks, log_dir=self.spec.log_dir)
        except BaseException:
            rendezvous.close()
            raise
        group = WorkerGroup(router)
        try:
            notices.announce(f"{describe(self.spec)}; they stay for the next cells")
            setup = setup_maker(self.spec, rendezvous, {}, router.secret, stays=True)
            group.start(spawner, setup, self.spec.num_processes)
            if xla.is_used_by(self.spec):
                self._bring_up_xla(group, router)
            self._group, self._router, self._rendezvous = group, router, rendezvous
            self._around = {rank: Surroundings.now(self.spec) for rank in ranks}
            self.generation += 1
            interrupts = self._interrupts
            assert interrupts is not None
            with group.listening_to(interrupts.fileno(), interrupts.clear):
                self._renew_group(False)
            interrupts.raise_if_any()
        except BaseException as error:
            group.close()
            rendezvous.close()
            router.close(error)
            self._group = self._router = self._rendezvous = None
            raise
        if not self.is_alive:
            why, self._lost = self._lost, ""
            self._let_go()
            raise LaunchError(f"the workers did not come up: {why}")

    def _bring_up_xla(self, group: WorkerGroup, router: Router) -> None:
        interrupts = self._interrupts
        assert interrupts is not None
        with group.listening_to(interrupts.fileno(), interrupts.clear):
            xla.bring_up(group, Supervisor(group, router, interrupts, None).wait)

    def _let_go(self) -> None:
        """Free what is left of the group; processes that still run are killed."""
        if self._idle is not None:
            self._idle.close()
            self._idle = None
        if self._group is not None:
            self._group.close()
        if self._router is not None:
            self._router.close()
        if self._rendezvous is not None:
            self._rendezvous.close()
        self._group = self._router = self._rendezvous = None

    def abandon(self) -> None:
        """At the end of this process: kill what is left, say nothing."""
        if self._idle is not None:
            self._idle.close()
            self._idle = None
        if self._group is not None:
            self._group.kill()

    # --- process group ------------------------------------------------------------------------

    def _renew_group(self, align: bool) -> None:
        """A new process group on all workers; without success the workers are ended."""
        group = self._group
        assert group is not None
        if not xla.is_used_by(self.spec):
            trouble = self._regroup(group, REGROUP_PATIENCE, align=align)
            if trouble:
                self._lost = f"no new process group could be made, {trouble}"
        elif align:
            trouble = self._regroup(group, REGROUP_PATIENCE, align=False)
            if trouble:
                self._lost = f"the cores were stopped in the middle of a collective, {trouble}"
            elif trouble := self._regroup(group, XLA_ALIGN_PATIENCE, align=True):
                self._lost = f"the cores could not be given the same state again, {trouble}"
        else:
            return
        if trouble:
            group.kill()
            return
        for member in group.members:
            member.has_group = True

    def _regroup(self, group: WorkerGroup, patience: float, *, align: bool) -> str:
        """One round of orders and answers; what went wrong, if anything."""
        self._round += 1
        group.regroup(self._round, align=align)
        interrupts = self._interrupts
        seen = interrupts.count if interrupts is not None else 0
        group.pump_until(
            lambda: (
                all(member.regrouped is not None or member.has_exited for member in group.members)
                or (interrupts is not None and interrupts.count > seen)
            ),
            patience,
        )
        for member in group.members:
            if member.regrouped and member.regrouped.trouble:
                return f"rank {member.rank}: {member.regrouped.trouble}"
        if all(member.regrouped is not None and not member.has_exited for member in group.members):
            return ""
        return "it took too long, was interrupted, or a worker ended"

    def _news(self, ranks: Collection[int] | None) -> dict[int, messages.Ambience]:
        """For those who take part: what has changed around this process since they last did."""
        now = Surroundings.now(self.spec)
        parted = self._around if ranks is None else ranks
        news = {rank: self._around[rank].changes_to(now) for rank in parted}
        self._around.update(dict.fromkeys(news, now))
        return news

    def _check_ranks(self, ranks: Collection[int] | None) -> list[int] | None:
        if ranks is None:
            return None
        ranks = list(ranks)
        unknown = [rank for rank in ranks if rank not in range(self.spec.num_processes)]
        if unknown or not ranks:
            raise ValueError(
                f"ranks={ranks}: this session has {describe_ranks(range(self.spec.num_processes))}"
            )
        return ranks

    # --- names and status ---------------------------------------------------------------------

    def push(self, **names: Any) -> None:
        """Set names in every worker's ``__main__``."""
        told = self.run(standing_functions.set_names, names, output="none", progress=False)
        if displaced := frozenset[str]().union(*told):
            notices.warn(standing_functions.describe_displaced(displaced))

    def pull(self, name: str) -> Any:
        """Rank 0's value of a name: on the CPU, unwrapped of what ``prepare`` put around it.

        Raises:
            NameError: the workers have no such name.
            TypeError: its value can't be sent.
        """
        return self.run(standing_functions.get_name, name, ranks=[0], output="none", progress=False)[0]

    def status(self) -> list[dict[str, Any]]:
        """For each worker: rank, pid, device, memory in bytes, what it does and since when in seconds.

        Never waits for a task: a worker that is busy is described by its service thread.
        """
        group = self._group
        if group is None:
            return []
        if self._busy.acquire(blocking=False):
            try:
                self._hear_from_now_on()
                group.ask_whereabouts()
                asked = group.running()
                group.pump_until(
                    lambda: all(m.whereabouts is not None or m.has_exited for m in asked), STATUS_PATIENCE
                )
                self._leave_to_idle_output()
            finally:
                self._busy.release()
        else:
            # Another thread runs a task, and takes in the answers.
            group.ask_whereabouts()
            latest = time.monotonic() + STATUS_PATIENCE
            while time.monotonic() < latest and any(m.whereabouts is None for m in group.running()):
                time.sleep(0.005)
        return [status_of(member, self.spec) for member in group.members]

    def stacks(self) -> str:
        """Where every thread of every worker is."""
        group = self._group
        if group is None:
            return "no workers run"
        with self._claimed():
            self._hear_from_now_on()
            group.ask_stacks()
            asked = group.running()
            group.pump_until(
                lambda: all(m.stacks is not None or m.has_exited for m in asked), STATUS_PATIENCE
            )
            self._leave_to_idle_output()
        return "\n".join(f"--- rank {m.rank} ---\n{m.stacks or 'does not answer'}" for m in asked)


def _why_lost(error: BaseException | None) -> str:
    if error is None:
        return "a worker ended"
    text = str(error).partition("\n")[0]
    return f"{type(error).__name__}: {text}" if text else f"a worker did not stop at a {type(error).__name__}"


class _Release(AbstractContextManager[None]):
    """Gives a lock back that is held already."""

    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock

    def __exit__(self, *_: object) -> None:
        self._lock.release()
