"""The form's self test: a process that runs it, and a thread that hears how it goes.

The kernel is free meanwhile. Stopping, and the end of the kernel, end the process and all that it started.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

from nbaccel.diagnosis import child
from nbaccel.diagnosis.selftest import STAGES, TIMEOUT_S
from nbaccel.launch.system import process

_NOISE = 20
"""Lines of what the process says otherwise that are kept, for when it ends without an answer."""


class Trial:
    """One run of the self test."""

    def __init__(
        self,
        said: dict[str, object],
        *,
        on_begin: Callable[[str], None],
        on_line: Callable[[str], None],
        on_progress: Callable[[int], None],
        on_end: Callable[[str, bool], None],
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        """Start it.

        Args:
            said: what the session would say.
            on_begin: is told the name of each stage that begins.
            on_line: is handed each line of the report.
            on_progress: is told how many stages are over.
            on_end: is told a sentence and whether all is well. All four are called in a thread.
            timeout_s: seconds for each stage.

        Raises:
            OSError: no process can be started.
        """
        self._on_begin, self._on_line = on_begin, on_line
        self._on_progress, self._on_end = on_progress, on_end
        self.has_ended = False
        """Nothing of it runs any more; what came of it is about to be told, or was."""
        self._stopped = False
        self._done = 0
        self._failed = ""
        self._is_over = False
        self._noise: list[str] = []
        code = f"import sys; sys.path[:] = {process.absolute_import_path()!r}; {child.PROGRAM}"
        self._process = subprocess.Popen(  # noqa: S603  # our own text
            [sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # an interrupt of the notebook isn't meant for it
            bufsize=0,
        )
        assert self._process.stdin is not None
        # A process that ended at once is told of by the thread.
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(child.request(said, timeout_s))
        self._thread = threading.Thread(target=self._listen, name="nbaccel-self-test", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ask it to end, and return at once; :meth:`wait` waits."""
        self._stopped = True
        # The end of its standard input: it interrupts itself, and kills itself if that doesn't help.
        with contextlib.suppress(OSError):
            assert self._process.stdin is not None
            self._process.stdin.close()

    def wait(self, seconds: float) -> bool:
        """Wait until it is over and all was told; False when it isn't after ``seconds``."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    # --- in the thread --------------------------------------------------------------------------

    def _listen(self) -> None:
        try:
            for line in self._lines():
                self._take(line)
        finally:
            self._finish()
        self.has_ended = True
        self._on_end(*self._verdict())

    def _lines(self) -> Any:
        # Read past Python's buffers: their locks must not be held when the interpreter ends.
        assert self._process.stdout is not None
        descriptor, rest = self._process.stdout.fileno(), b""
        while piece := os.read(descriptor, 65536):
            *whole, rest = (rest + piece).split(b"\n")
            yield from whole
        if rest:
            yield rest

    def _finish(self) -> None:
        watch = process.ExitWatch(self._process.pid)
        select.select([watch], [], [], child.PATIENCE)
        watch.close()
        # Not reaped yet, so the pid is its own: whoever is left of the group goes too.
        process.kill_group(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                assert stream is not None
                stream.close()

    def _take(self, line: bytes) -> None:
        try:
            told = json.loads(line)
        except ValueError:
            told = None
        if not isinstance(told, dict):
            self._noise = [*self._noise, line.decode(errors="replace")][-_NOISE:]
        elif "begins" in told:
            self._on_begin(str(told["begins"]))
        elif "stage" in told:
            self._take_outcome(told)
        else:
            self._is_over = True

    def _take_outcome(self, told: dict[str, Any]) -> None:
        self._done += 1
        mark = "ok" if told["ok"] else "FAILED"
        first, *rest = str(told["text"]).splitlines() or [""]
        self._on_line(f"{told['stage']}: {mark}, {told['seconds']:.1f} s: {first}")
        self._on_progress(self._done)
        if told["ok"]:
            return
        self._failed = told["stage"]
        for line in [*rest, *str(told["details"]).splitlines()]:
            if line.strip():
                self._on_line(f"    {line}")
        self._on_line(f"What to try: {told['advice']}")

    def _verdict(self) -> tuple[str, bool]:
        if self._failed:
            return f"Self test: stage {self._failed!r} failed.", False
        if self._is_over:
            return f"Self test: all {len(STAGES)} stages passed.", True
        if self._stopped:
            return "Self test: stopped.", False
        for line in self._noise:
            self._on_line(line)
        return f"Self test: its process ended with exit code {self._process.returncode}.", False
