"""A group of workers: brought up together, heard together, ended together.

::

    WorkerGroup ──▶ Member (one a rank) ──▶ process    (signals, exit status; threads of one share it)
                                        ──▶ channel    (orders, reports)
                                        ──▶ out, err   (its standard streams, drained always)

The group is the mechanism: it starts, listens, signals and ends. What to do when something happens
is :mod:`nbaccel.launch.supervision.supervision`'s. Everything runs in the thread that calls; there are no
threads here, so output goes to the cell that asked for the work.
"""

from __future__ import annotations

import selectors
import signal
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Protocol, Self

from nbaccel.errors import LaunchError
from nbaccel.launch.group.member import Member
from nbaccel.launch.group.spawners import Shared, Spawner, StartedWorker, WorkerProcess, on_descriptors
from nbaccel.launch.output.byte_sources import ByteSource
from nbaccel.launch.output.router import Router
from nbaccel.launch.payload.payload import Payload
from nbaccel.launch.system.connections import between_workers
from nbaccel.launch.system.process import KILL, is_portable
from nbaccel.launch.transport import messages
from nbaccel.launch.transport.channel import ChannelClosed, Ticket

_READS_A_TURN = 16
"""More than a pipe holds, and no more: a process that escaped must not keep us reading for ever."""
_KILL_WAIT = 5.0


class Watcher(Protocol):
    """Looks at a task while somebody waits for it."""

    def begin(self) -> None:
        """The task is about to be handed to the workers."""

    def due(self) -> float:
        """``time.monotonic()`` at which :meth:`tick` should be called, at the latest."""

    def tick(self) -> None:
        """Do what is due."""

    def take(self, member: Member, progress: messages.Progress) -> None:
        """A worker has told what it is at."""


class WorkerGroup:
    """Workers of one launch on this machine. A context manager: leaving it leaves no process."""

    def __init__(self, router: Router) -> None:
        self.members: list[Member] = []
        self._router = router
        self._selector = selectors.DefaultSelector()
        self._watcher: Watcher | None = None
        self._spawner: Spawner | None = None

    # --- life ---------------------------------------------------------------------------------

    def start(
        self,
        spawner: Spawner,
        setup: Callable[[int], messages.Setup],
        count: int,
        threads_per_process: int = 1,
    ) -> None:
        """Bring up ``count`` workers; ``setup(local_rank)`` is what each takes on.

        Args:
            spawner: starts a process.
            setup: by local rank.
            count: ranks of this machine.
            threads_per_process: how many of them share a process.

        Raises:
            LaunchError: the system refused a process; none is left.
        """
        self._spawner = spawner
        if threads_per_process > 1 and is_portable():
            raise LaunchError("ranks can't share a process here: this platform passes no descriptors")
        host: Member | None = None
        late = []
        for local_rank in range(count):
            order = setup(local_rank)
            rank = order.place.rank
            if host is None or local_rank % threads_per_process == 0:
                host = self._start_one(rank, lambda rank=rank: spawner.start(f"nbaccel rank {rank}"))  # type: ignore[misc]
                self._listen(host.process.fileno(), lambda member=host: self._read_exit(member))  # type: ignore[misc]
                if host.channel.is_connected:
                    self._greet(host, order)
                else:
                    late.append((host, order))
            else:
                self._host(host, order)
        for member, order in late:
            self._greet(member, order)

    def _host(self, host: Member, order: messages.Setup) -> None:
        """Bring up a further rank in a thread of ``host``'s process."""

        def hand_over(*fds: int) -> WorkerProcess:
            self._send(host, messages.Host(order), *fds)
            return Shared(host.process)

        member = self._start_one(order.place.rank, lambda: on_descriptors(hand_over))
        self._listen(member.channel.fileno(), lambda: self._read_channel(member))
        member.host = host
        host.hosted.append(member)

    def _start_one(self, rank: int, start: Callable[[], StartedWorker]) -> Member:
        try:
            started = start()
        except OSError as error:
            raise LaunchError(
                f"rank {rank} could not be started: {error.strerror or error}; "
                "use fewer processes or raise the limit (ulimit -a shows it)"
            ) from error
        member = Member(rank, started.process, started.channel, {False: started.out, True: started.err})
        self.members.append(member)
        for is_err, source in member.streams.items():
            self._listen(source.fileno(), lambda e=is_err: self._read_stream(member, e))  # type: ignore[misc]
        return member

    def _greet(self, member: Member, order: messages.Setup) -> None:
        """Begin to speak with a worker."""
        try:
            member.channel.establish(member.process.fileno())
        except ChannelClosed:
            return  # its end shows on the exit status
        except TimeoutError as error:
            raise LaunchError(f"rank {member.rank} did not come up: {error}") from error
        self._listen(member.channel.fileno(), lambda: self._read_channel(member))
        self._send(member, order)

    def renumber(self, rank_of: Mapping[int, int]) -> None:
        """Give members other ranks; before any of them has been asked for more than to start.

        Args:
            rank_of: old rank -> new one, a permutation.
        """
        self.drain_now()
        self._router.renumber({member.source: rank_of[member.rank] for member in self.members})
        for member in self.members:
            member.rank = rank_of[member.rank]
        self.members.sort(key=lambda member: member.rank)

    def close(self) -> None:
        """Kill whoever is left and free everything. Never raises for a worker's sake."""
        try:
            self.kill()
        finally:
            for member in self.members:
                member.channel.close()
                for is_err in tuple(member.open_streams):
                    self._end_stream(member, is_err)
                member.process.close()
                for payload in (member.value, member.failure_payload):
                    if payload is not None:
                        payload.close()
            self.members.clear()
            self._selector.close()
            if self._spawner is not None:
                self._spawner.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- orders -------------------------------------------------------------------------------

    def submit(
        self,
        task: int,
        call: Payload,
        wants_value: Callable[[int], bool],
        *,
        ranks: Collection[int] | None = None,
        ambience: Callable[[int], messages.Ambience] | None = None,
    ) -> None:
        """Hand the same call to every worker, or to those of some ranks.

        Args:
            task: its number.
            call: what to call.
            wants_value: whether a rank's value is to come home.
            ranks: who takes part; None for all.
            ambience: for each rank, what has changed around the kernel.
        """
        for member in self.members:
            member.begin_task(idles=ranks is not None and member.rank not in ranks)
        if self._watcher is not None:
            self._watcher.begin()
        for member in self.members:
            if not member.idles:
                if self._watcher is not None:
                    self._send(member, messages.WatchProgress())
                around = None if ambience is None else ambience(member.rank)
                self._send(member, messages.Run(task, wants_value(member.rank), around), call.lend())

    def ask_steps(self) -> None:
        """Ask every worker for its optimizer steps; the answers arrive in ``member.steps``."""
        for member in self.running():
            member.steps = None
            self._send(member, messages.AskSteps())

    def stop_at_step(self, count: int | None) -> None:
        """Have every worker's user code interrupted right after this optimizer step; None: no longer."""
        for member in self.running():
            self._send(member, messages.StopAtStep(count))

    def sever(self) -> None:
        """Cut the connections between the workers, which frees all who wait in a collective."""
        running = self.running()
        found = between_workers(member.process.pid for member in running)
        for member in running:
            if found[member.process.pid]:
                self._send(member, messages.Sever(found[member.process.pid]))

    def regroup(self, number: int, *, align: bool) -> None:
        """Have all workers make a new process group; the answers arrive in ``member.regrouped``."""
        for member in self.running():
            member.regrouped = None
            self._send(member, messages.Regroup(number, align))

    def stop(self) -> None:
        """Ask every worker to shut down in order."""
        for member in self.running():
            self._send(member, messages.Stop())

    def ask_stacks(self) -> None:
        """Ask every worker where it is; the answers arrive in ``member.stacks``."""
        for member in self.running():
            member.stacks = None
            self._send(member, messages.AskStacks())

    def watch(self, watcher: Watcher | None) -> None:
        """Have the tasks that are submitted from now on watched; None: no longer."""
        self._watcher = watcher

    def ask_progress(self, members: Iterable[Member]) -> None:
        """Ask some workers what they are at; the answers go to the watcher."""
        for member in members:
            self._ask(member, messages.AskProgress())

    def ask_whereabouts(self) -> None:
        """Ask every worker what it does; the answers arrive in ``member.whereabouts``."""
        for member in self.running():
            member.whereabouts = None
            self._ask(member, messages.AskWhereabouts())

    def signal(self, signum: int, *, group: bool = False) -> None:
        """Signal every worker that runs."""
        for member in self.running():
            member.process.signal(signum, group=group)

    def terminate(self, patience: float) -> None:
        """TERM, and after ``patience`` seconds KILL: nobody is left when this returns."""
        self.signal(signal.SIGTERM)
        self.pump_until(lambda: not self.running(), patience)
        self.kill()

    def kill(self) -> None:
        """KILL every worker's group and wait until all are reaped."""
        if self.running():
            self.signal(KILL, group=True)
            self.pump_until(lambda: not self.running(), _KILL_WAIT)

    # --- listening ----------------------------------------------------------------------------

    def running(self) -> list[Member]:
        """Members whose process has not ended."""
        return [member for member in self.members if not member.has_exited]

    def pump(self, timeout: float | None) -> None:
        """Take in what workers say, for at most ``timeout`` seconds of silence; None: until they speak."""
        if not self._selector.get_map():
            return
        now = time.monotonic()
        until = float("inf") if timeout is None else now + timeout
        until = min(until, self._router.due())
        if self._watcher is not None:
            until = min(until, self._watcher.due())
        for key, _ in self._selector.select(None if until == float("inf") else max(0.0, until - now)):
            # An earlier event of this turn may have closed it.
            if key.fd in self._selector.get_map():
                key.data()
        self._router.tick()
        if self._watcher is not None:
            self._watcher.tick()

    def pump_until(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Take in events until ``condition()`` holds or the time is over; says whether it holds."""
        deadline = time.monotonic() + seconds
        while not condition():
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            self.pump(left)
        return True

    def listening_to(self, fd: int, callback: Callable[[], None]) -> AbstractContextManager[None]:
        """Within it, wake :meth:`pump` for a descriptor that isn't a worker's, too."""
        return _Listening(self._selector, fd, callback)

    def open_streams(self) -> list[tuple[int, bool, ByteSource]]:
        """Source, whether it is standard error, and the stream, of each that is open."""
        return [
            (member.source, is_err, member.streams[is_err])
            for member in self.members
            for is_err in member.open_streams
        ]

    def drain_now(self) -> None:
        """Read what is there at this moment: all that was written before a report that arrived."""
        for member in self.members:
            for is_err in tuple(member.open_streams):
                member.streams[is_err].settle()
                self._read_stream(member, is_err)
        self._router.flush()

    def drain(self) -> None:
        """After the workers' ends: read what is still in their pipes."""
        for member in self.members:
            for is_err in tuple(member.open_streams):
                member.streams[is_err].settle()
                self._read_stream(member, is_err)
                self._end_stream(member, is_err)
        self._router.flush()

    # --- inside -------------------------------------------------------------------------------

    def _listen(self, fd: int, callback: Callable[[], None]) -> None:
        self._selector.register(fd, selectors.EVENT_READ, callback)

    def _send(self, member: Member, message: object, *tickets: Ticket) -> None:
        try:
            member.channel.send(message, tickets)
        except ChannelClosed:
            return  # its end shows on the exit status

    def _ask(self, member: Member, question: object) -> None:
        """Ask what is asked again and again, unless the last such question is still open: a worker that can't
        answer, stopped or deep in C code, would get its socket filled up, and we would wait for it.
        """
        if type(question) not in member.unanswered:
            member.unanswered.add(type(question))
            self._send(member, question)

    def _read_stream(self, member: Member, is_err: bool) -> None:
        for _ in range(_READS_A_TURN):
            try:
                data = member.streams[is_err].read()
            except BlockingIOError:
                return
            if not data:
                self._end_stream(member, is_err)
                return
            self._router.feed(member.source, is_err, data)

    def _end_stream(self, member: Member, is_err: bool) -> None:
        if is_err not in member.open_streams:
            return
        member.open_streams.discard(is_err)
        self._selector.unregister(member.streams[is_err].fileno())
        member.streams[is_err].close()
        self._router.end(member.source, is_err)

    def _read_channel(self, member: Member) -> None:
        arrived, is_open = member.channel.poll()
        for message, tickets in arrived:
            self._take(member, message, tickets)
        if not is_open:
            self._selector.unregister(member.channel.fileno())

    def _take(self, member: Member, message: object, tickets: Iterable[Ticket]) -> None:
        payload = next((Payload.from_ticket(ticket, given=True) for ticket in tickets), None)
        if isinstance(message, messages.Display):
            self._router.take_display(member.source, message)
        elif isinstance(message, messages.Progress):
            member.unanswered.discard(messages.AskProgress)
            if self._watcher is not None:
                self._watcher.take(member, message)
        else:
            member.hear(message, payload)

    def _read_exit(self, host: Member) -> None:
        everybody = (host, *host.hosted)
        # What they said last counts, even if the exit status was seen first.
        for member in everybody:
            if member.channel.is_connected and member.channel.fileno() in self._selector.get_map():
                self._read_channel(member)
        self._selector.unregister(host.process.fileno())
        for member in everybody:
            for source in member.streams.values():
                source.writer_has_ended()
        exitcode = host.process.exitcode()
        for member in everybody:
            member.exitcode = exitcode
            member.has_exited = True
            if member.asked_exit is None:
                member.exited_at = time.monotonic()


class _Listening(AbstractContextManager[None]):
    # A class: contextlib's generators assign to attributes of the exception that passes through, which
    # a user's class may refuse.

    def __init__(self, selector: selectors.BaseSelector, fd: int, callback: Callable[[], None]) -> None:
        self._selector = selector
        self._fd = fd
        self._callback = callback

    def __enter__(self) -> None:
        self._selector.register(self._fd, selectors.EVENT_READ, self._callback)

    def __exit__(self, *_: object) -> None:
        if self._selector.get_map() is not None:  # the group may be closed by now
            self._selector.unregister(self._fd)
