"""Every exception that nbaccel raises on its own behalf, one sentence of cause each."""

from __future__ import annotations


class WorkerError(RuntimeError):
    """A worker failed in a way that can't be raised as the worker's own exception."""

    rank: int | None = None
    """Global rank of the worker that failed first."""

    remote_traceback: str = ""
    """The worker's traceback as text, with the source of notebook cells."""

    def __init__(self, message: str, *, rank: int | None = None, remote_traceback: str = "") -> None:
        super().__init__(message)
        self.rank = rank
        self.remote_traceback = remote_traceback


class WorkerDied(WorkerError):
    """A worker process ended without reporting: a signal, ``os._exit``, or no memory left."""

    def __init__(
        self,
        message: str,
        *,
        rank: int | None = None,
        exitcode: int | None = None,
        signal: int | None = None,
        stderr_tail: str = "",
    ) -> None:
        super().__init__(message, rank=rank)
        self.exitcode = exitcode
        """Exit status; ``-N`` when signal ``N`` ended the process, as in :mod:`subprocess`."""
        self.signal = signal
        """Number of the signal that ended the process, or None."""
        self.stderr_tail = stderr_tail
        """The last lines that the worker wrote to its standard error."""


class LaunchTimeout(WorkerError, TimeoutError):
    """The launch was not over after the ``timeout`` that was asked for, or a machine had not come by then."""


class LaunchError(WorkerError):
    """Workers could not be brought up at all."""


class ConfigError(ValueError):
    """A setting can't have the value that it has, two contradict each other, or their file can't be used."""
