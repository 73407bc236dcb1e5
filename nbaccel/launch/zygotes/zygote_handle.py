"""One zygote as the kernel sees it: what it has loaded, and what it can be asked for."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Mapping

from nbaccel.errors import LaunchError
from nbaccel.launch.transport import messages
from nbaccel.launch.transport.channel import Channel, ChannelClosed
from nbaccel.launch.zygotes import libraries

_FORK_TIMEOUT = 30.0


class Zygote:
    """A zygote process at the other end of a channel. May be used from several threads."""

    def __init__(
        self, channel: Channel, *, parent: Zygote | None = None, environ: Mapping[str, str] | None = None
    ) -> None:
        self._channel = channel
        self._parent = parent
        self._lock = threading.Lock()
        self._pid = 0
        self._ended = False
        self.started = time.monotonic()
        self.environ = environ
        """What its libraries saw of the environment when they were imported; None for torch alone."""
        self.ready: messages.ZygoteReady | None = None
        self.importing = ""
        """The package that it imports, or imported last."""

    def wait_ready(self, timeout: float) -> messages.ZygoteReady:
        """Wait until its imports are done.

        Raises:
            ChannelClosed: it ended.
            TimeoutError: nothing is heard of it for ``timeout`` seconds.
        """
        with self._lock:
            while self.ready is None:
                message, _ = self._channel.recv(timeout)
                self._take(message)
            return self.ready

    def look(self) -> bool:
        """Take in what it has said, without waiting; False when it has ended."""
        with self._lock:
            if not self._ended:
                arrived, is_open = self._channel.poll()
                for message, _ in arrived:
                    self._take(message)
                self._ended = not is_open
            return not self._ended

    def is_fit(self) -> bool:
        """Whether it can be forked at this moment."""
        return self.look() and self.ready is not None and not self.ready.unclean

    def fork(self, name: str, fds: tuple[int, int, int, int]) -> int:
        """Fork a worker and return its pid.

        Raises:
            LaunchError: the system refused, or the zygote has ended or doesn't answer.
        """
        with self._lock:
            try:
                self._channel.send(messages.Fork(name), fds)
                answer, _ = self._channel.recv(_FORK_TIMEOUT)
            except ChannelClosed as error:
                self._ended = True
                raise LaunchError(
                    "the process that workers are forked from has ended; launch again to start a new one"
                ) from error
            except TimeoutError as error:
                self._ended = True  # a late answer would be taken for that to the next question
                raise LaunchError(
                    f"the process that workers are forked from did not answer for {_FORK_TIMEOUT:g} s; "
                    "launch again to start a new one"
                ) from error
        if isinstance(answer, messages.ForkFailed):
            raise LaunchError(
                f"a worker process could not be forked: {answer.text}; "
                "use fewer processes or free memory, and launch again"
            )
        assert isinstance(answer, messages.Forked)
        return answer.pid

    def signal(self, pid: int, signum: int, *, group: bool = False) -> None:
        """Signal a worker that it forked; nothing happens when the worker has ended."""
        self._tell(messages.Signal(pid, signum, group))

    def fork_zygote(
        self, modules: Collection[str], environ: Mapping[str, str], path: tuple[str, ...]
    ) -> Zygote:
        """A child zygote that imports ``modules`` as well; it isn't ready yet.

        Raises:
            ChannelClosed: this one has ended.
        """
        channel, theirs = Channel.pair()
        try:
            with theirs:
                request = messages.ForkZygote(libraries.by_package(modules), environ, path)
                self._channel.send(request, (theirs.fileno(),))
        except BaseException:
            channel.close()
            raise
        return Zygote(channel, parent=self, environ=libraries.import_environ(environ))

    def retire(self) -> None:
        """It is no longer needed, but the workers that it forked are."""
        self._tell(messages.Retire())

    def kill(self) -> None:
        """End it, whatever it is busy with."""
        self.look()
        if self._pid and self._parent is not None:
            self._parent._tell(messages.EndZygote(self._pid))  # noqa: SLF001
        self.close()

    def close(self) -> None:
        """Give up this end; the zygote and its workers leave."""
        with self._lock:
            self._ended = True
            self._channel.close()

    def forget(self) -> None:
        """In a fork of the kernel: close the descriptor, touch no lock that a thread may have held."""
        self._ended = True
        self._channel.close()

    def _take(self, message: object) -> None:
        if isinstance(message, messages.Importing):
            self._pid, self.importing = message.pid, message.package
        elif isinstance(message, messages.ZygoteReady):
            self.ready = message
        else:
            raise TypeError(f"a zygote is not expected to send {type(message).__name__}")

    def _tell(self, message: object) -> None:
        try:
            self._channel.send(message)
        except (ChannelClosed, OSError):
            return  # it has ended, and its workers with it
