"""A worker process: takes on its place in the world, runs what it is sent, reports.

::

    main thread      setup ─▶ load payload ─▶ user code ─▶ report ─▶ shut down in order
    service thread   reads the channel: hands tasks to the main thread, answers for stacks,
                     and kills the process group when the kernel is gone

A rank that shares its process with others has two such threads of its own
(:mod:`nbaccel.launch.worker.replica`).

The service thread answers while user code is stuck in C, since collectives release the GIL. The
same code runs in a fork of the zygote, in a fresh interpreter and in a fork of the kernel.
"""

from __future__ import annotations

import atexit
import gc
import os
import queue
import signal
import sys
import threading
import time
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

from nbaccel import config
from nbaccel.launch import failures
from nbaccel.launch.payload import payload
from nbaccel.launch.system import connections, process
from nbaccel.launch.traces import postmortem, stacks, whereabouts
from nbaccel.launch.transport import messages
from nbaccel.launch.transport.channel import Channel, ChannelClosed, Ticket
from nbaccel.launch.worker import display, no_keyboard, standing
from nbaccel.launch.worker.streams import Turns, flush_streams, take_streams
from nbaccel.runtime.environment import ProcessEnvironment, take_place, thread_place
from nbaccel.runtime.gauges import Gauges, use_gauges
from nbaccel.runtime.steps import StepClock, use_clock

if TYPE_CHECKING:
    from nbaccel.launch.worker.replica import Replica


_loading = threading.Lock()
"""Ranks that share a process load one after the other: classes that were sent are the process's."""


def main(channel_fd: int, out_fd: int, err_fd: int, parent: int, name: str) -> NoReturn:
    """Run as a worker until told to stop. Never returns.

    Args:
        channel_fd: this worker's end of its channel.
        out_fd: becomes fd 1.
        err_fd: becomes fd 2.
        parent: pid of the process that started this one; when it ends, so does this one.
        name: what process listings show.
    """
    process.lead_session()
    process.set_name(name)
    process.default_signal_mask()
    process.die_with_parent(parent)
    turns = take_streams(out_fd, err_fd)
    _begin()
    Worker(Channel.from_fd(channel_fd), turns).run()


def main_connected(channel: Channel, name: str) -> NoReturn:
    """The same for a process that has a channel and its streams already. Never returns.

    Args:
        channel: this worker's end of it; when it ends, so does this process.
        name: what process listings show.
    """
    process.set_name(name)
    process.default_signal_mask()
    turns = take_streams(1, 2)
    _begin()
    Worker(channel, turns).run()


def _begin() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in ("SIGTERM", "SIGCHLD"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_DFL)
    # What was garbage here at a fork, say a process group that is gone, must not be taken down in the
    # fork: the threads that it counts on aren't there, and a DataLoader's worker would crash or hang.
    process.at_fork(after_in_child=gc.freeze)


class Worker:
    """One rank's side of a worker: takes orders from its channel, in the thread that it is run in."""

    def __init__(self, channel: Channel, turns: Turns) -> None:
        self._channel = channel
        self._turns = turns
        self._inbox: queue.SimpleQueue[tuple[Any, list[Ticket]]] = queue.SimpleQueue()
        self._pid = os.getpid()
        self._rank = 0
        self._stays = False
        self._place = ProcessEnvironment()
        self._meeting_timeout: float | None = None
        self._clock = StepClock()
        self._gauges = Gauges(self._clock)
        self._steps_before = 0
        self._exitcode = 0
        self._is_watched = False
        self._runs_user_code = False
        self._thread: int | None = None
        """Identity of the thread that runs the tasks; None: the main one."""
        self._replicas: list[Replica] = []
        """Further ranks of this process."""
        self._service = threading.Thread(target=self._serve, name="nbaccel-service", daemon=True)

    def run(self) -> NoReturn:
        """Take orders until :class:`~nbaccel.launch.transport.messages.Stop`, then leave."""
        # An interrupt is for user code: before that runs, and after it, there is nothing to interrupt.
        signal.signal(signal.SIGINT, self._on_interrupt)
        self._use_counters()
        self._service.start()
        self._obey()
        self._leave()

    def _obey(self) -> None:
        while True:
            message, tickets = self._inbox.get()
            if isinstance(message, messages.Setup):
                self._set_up(message)
            elif isinstance(message, messages.Host):
                self._host(message, [int(fd) for fd in tickets])
            elif isinstance(message, messages.Run):
                self._run(message, tickets[0])
                if self._exitcode and not self._stays:
                    break
                self._exitcode = 0
            elif isinstance(message, messages.Regroup):
                self._report(messages.Regrouped(message.number, standing.regroup(message)))
            elif isinstance(message, messages.Stop):
                break
            else:
                raise TypeError(f"a worker does not know {type(message).__name__}")

    # --- one task -----------------------------------------------------------------------------

    def _set_up(self, setup: messages.Setup) -> None:
        self._take_rank(setup)
        os.environ.clear()
        os.environ.update(setup.environ)
        sys.path[:] = setup.path
        sys.argv[:] = setup.argv
        os.chdir(setup.cwd)
        main_module = types.ModuleType("__main__")
        if setup.main_file is not None:
            main_module.__file__ = setup.main_file
        main_module.__builtins__ = __builtins__  # type: ignore[attr-defined]
        no_keyboard.install()
        sys.modules["__main__"] = main_module
        config.set_active_spec(setup.spec)
        self._turns.start(setup.marks_secret)
        display.install(display.Outlet(self._channel.send, self._turns))
        import torch

        # OMP_NUM_THREADS is read when the library is loaded, which was long before.
        torch.set_num_threads(setup.num_threads)
        if setup.spec.device_type in ("cuda", "xpu"):
            torch.get_device_module(setup.spec.device_type).set_device(setup.place.local_rank)

    def _take_rank(self, setup: messages.Setup) -> None:
        self._rank = setup.place.rank
        self._stays = setup.stays
        self._place = setup.place
        self._meeting_timeout = setup.meeting_timeout
        if setup.spec.device_type == "xla":
            take_place(setup.place)
            self._use_counters()

    def _use_counters(self) -> None:
        """What the calling thread, a rank, counts is what this worker tells."""
        use_clock(self._clock)
        use_gauges(self._gauges)

    def _host(self, order: messages.Host, fds: list[int]) -> None:
        from nbaccel.launch.worker.replica import Replica, share_streams

        share_streams()
        replica = Replica(order.setup, *fds)
        self._replicas.append(replica)
        replica.start()

    def _run(self, order: messages.Run, ticket: Ticket) -> None:
        in_result = False
        try:
            if order.ambience is not None:
                standing.take_in(order.ambience)
            value = self._call(ticket)
            if os.getpid() != self._pid:
                self._end_fork(0)
            in_result = True
            self._report_return(order, value)
        except SystemExit as request:
            if os.getpid() != self._pid:
                self._end_fork(request.code)
            self._obey_exit(order, request)
        except BaseException as error:  # noqa: BLE001
            if os.getpid() != self._pid:
                sys.excepthook(type(error), error, error.__traceback__)
                self._end_fork(1)
            self._report_failure(order, error, in_result)

    def _call(self, ticket: Ticket) -> Any:
        """Load the call and make it; only in here an interrupt is raised."""
        self._be_interruptible()
        try:
            self._runs_user_code = True
            self._meet()
            with payload.Payload.from_ticket(ticket, given=False) as packed, _loading:
                function, args, kwargs = packed.load()
            value = _user_call(function, args, kwargs)
            display.show_open_figures()
        finally:
            self._runs_user_code = False
        return value

    def _meet(self) -> None:
        """Before the first task: wait for the other machines, if there are any."""
        if self._meeting_timeout is not None:
            from nbaccel.runtime.meeting import wait_for_machines

            wait_for_machines(self._place, self._meeting_timeout)
            self._meeting_timeout = None

    def _be_interruptible(self) -> None:
        signal.signal(signal.SIGINT, self._on_interrupt)  # an earlier task may have set its own

    def _end_fork(self, code: object) -> NoReturn:
        """User code has forked this worker, and the fork has come here: its end, as a script's.

        It must not say anything on the channel, which is its parent's.
        """
        if code is not None and not isinstance(code, int):
            sys.stderr.write(f"{code}\n")
            code = 1
        flush_streams()
        os._exit((code or 0) & 0xFF)

    def _on_interrupt(self, _signum: int, _frame: types.FrameType | None) -> None:
        for replica in self._replicas:
            replica.interrupt()
        if self._runs_user_code:
            raise KeyboardInterrupt

    def _report_return(self, order: messages.Run, value: Any) -> None:
        self._report_progress(fetches=True)
        done = messages.Returned(order.task, has_group=self._stays and standing.has_group())
        if not order.wants_value:
            self._report(done)
            return
        with payload.dump_result(value, f"the value that rank {self._present_rank} returned") as result:
            self._report(done, result.give())

    @property
    def _present_rank(self) -> int:
        """Its rank; on XLA devices known only when they have come up."""
        place = thread_place()
        return self._rank if place is None else place.rank

    def _obey_exit(self, order: messages.Run, request: SystemExit) -> None:
        code = request.code
        if code is None or code == 0:
            self._report_return(order, None)
            return
        text = ""
        if not isinstance(code, int):
            # What the interpreter does with a text.
            text = failures.text_of(code)
            sys.stderr.write(f"{text}\n")
            code = 1
        self._exitcode = code
        self._report_progress(fetches=True)
        self._report(messages.Exiting(order.task, code, text))

    def _report_failure(self, order: messages.Run, error: BaseException, in_result: bool) -> None:
        self._runs_user_code = False  # the report must arrive whole
        when = time.monotonic()
        self._report_progress(fetches=False)
        error = no_keyboard.explained(error)
        self._exitcode = 1
        failure, packed = failures.pack(
            error,
            task=order.task,
            rank=self._present_rank,
            when=when,
            in_result=in_result,
            skip_file=__file__,
        )
        if packed is None:
            self._report(failure)
        else:
            with packed:
                self._report(failure, packed.give())
        # After the report: describing variables takes a moment, and the others wait.
        self._report(messages.FailureDetails(postmortem.describe_frames(error.__traceback__)))

    def _report_progress(self, *, fetches: bool) -> None:
        """The last word on a task that is watched; ``fetches``: it may wait for the accelerator."""
        if not self._is_watched:
            return
        self._is_watched = False
        if fetches:
            self._gauges.settle()
        if self._gauges.has_news():
            self._report(messages.Progress(self._gauges.look(), whereabouts.look(self._thread)))
        self._gauges.end()

    def _report(self, message: object, *tickets: Ticket) -> None:
        flush_streams()
        try:
            self._channel.send(message, tickets)
        except ChannelClosed:
            self._abandon()

    # --- the end ------------------------------------------------------------------------------

    def _leave(self) -> NoReturn:
        """Do what an interpreter does at its end, but stop before C++ destructors run.

        Those destructors abort the process when a process group's threads are still there, and
        that would turn a success into a failure.
        """
        code = self._exitcode
        try:
            _shut_down_process_group()
            # In the interpreter's order: threads that aren't daemons first, then exit handlers.
            threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001
            atexit._run_exitfuncs()  # noqa: SLF001
        except BaseException:  # noqa: BLE001
            code = code or 1
            sys.excepthook(*sys.exc_info())
        finally:
            flush_streams()
            os._exit(code & 0xFF)

    def _abandon(self) -> NoReturn:
        """The kernel is gone: nobody wants anything of this process group any more."""
        process.end_with_descendants()

    # --- service thread -----------------------------------------------------------------------

    def _serve(self) -> None:
        try:
            while True:
                self._attend(*self._channel.recv())
        except ChannelClosed:  # also while we answer
            self._abandon()

    def _attend(self, message: object, tickets: list[Ticket]) -> None:
        if isinstance(message, messages.Interrupt):
            process.interrupt_main_thread()
        elif isinstance(message, messages.AskStacks):
            self._channel.send(messages.Stacks(stacks.describe(skip=threading.get_ident(), of=self._thread)))
        elif isinstance(message, messages.AskWhereabouts):
            self._channel.send(messages.Here(whereabouts.look(self._thread)))
        elif isinstance(message, messages.AskSteps):
            self._channel.send(messages.Steps(self._clock.count, self._steps_before))
        elif isinstance(message, messages.WatchProgress):
            self._is_watched = True
            self._gauges.begin()
        elif isinstance(message, messages.AskProgress):
            self._channel.send(messages.Progress(self._gauges.look(), whereabouts.look(self._thread)))
        elif isinstance(message, messages.StopAtStep):
            self._clock.go_on() if message.count is None else self._clock.stop_at(message.count)
        elif isinstance(message, messages.Sever):
            connections.sever(message.connections)
        else:
            if isinstance(message, messages.Run):
                self._steps_before = self._clock.count
            self._inbox.put((message, tickets))


def _user_call(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The frame below which everything is the user's."""
    return function(*args, **kwargs)


def _shut_down_process_group() -> None:
    # The runtime owns the process group; a worker that never built one has nothing to end.
    if "torch.distributed" in sys.modules:
        from nbaccel.runtime.process_group import shutdown_process_group

        shutdown_process_group()
