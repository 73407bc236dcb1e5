"""A real Jupyter kernel, driven the way a front end drives one.

    with Kernel() as k:
        result = k.run("print(1)")        # a whole cell; fails the test when the cell fails
        cell = k.submit("train()")        # in the background
        cell.wait_for_text("epoch 1")
        k.interrupt()                     # as Jupyter does it: SIGINT to the kernel's process group
        result = cell.wait(timeout=10)

The kernel is this interpreter, without an installed kernel spec, in a directory of its own. There is no
thread here: messages are read while somebody waits for them, and their times are those at which the kernel
sent them. Nothing may sleep and hope; each wait has a deadline and says what it waited for.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import psutil
import zmq
from jupyter_client.connect import write_connection_file
from jupyter_client.session import Session

from tests import leaks

ROOT = Path(__file__).resolve().parents[1]
KERNEL_MARK = "NBACCEL_TEST_KERNEL"
"""Environment variable that a kernel's descendants inherit; its value is unique to the kernel."""

START_TIMEOUT_S = 60.0
CELL_TIMEOUT_S = 60.0
STDOUT, STDERR = "stdout", "stderr"

_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


class CellError(AssertionError):
    """A cell that was expected to pass raised; the text is its traceback."""


class KernelGoneError(AssertionError):
    """The kernel process ended while something was expected of it; the text has its last output."""


@dataclass(frozen=True)
class Output:
    """One piece of output, in the order in which the kernel sent it."""

    kind: str
    """The message type: ``stream``, ``display_data``, ``execute_result``, ``error``, ``clear_output``, ..."""

    sent: float
    """Seconds since the epoch at which the kernel sent it; compare with `Cell.submitted`."""

    name: str = ""
    """``stdout`` or ``stderr`` for a stream."""

    text: str = ""
    """Text of a stream, ``text/plain`` of a display, traceback without colours of an error."""

    data: dict[str, Any] = field(default_factory=dict)
    """All representations of a display, by MIME type."""

    ename: str = ""
    evalue: str = ""


@dataclass
class Result:
    """All that a cell has put out."""

    outputs: list[Output]
    submitted: float
    finished: float

    @property
    def stdout(self) -> str:
        return "".join(o.text for o in self.outputs if o.name == STDOUT)

    @property
    def stderr(self) -> str:
        return "".join(o.text for o in self.outputs if o.name == STDERR)

    @property
    def displays(self) -> list[Output]:
        return [o for o in self.outputs if o.kind in {"display_data", "execute_result"}]

    @property
    def errors(self) -> list[Output]:
        return [o for o in self.outputs if o.kind == "error"]

    @property
    def error(self) -> Output:
        """The one error of the cell; fails when there is none, or more than one."""
        assert len(self.errors) == 1, f"{len(self.errors)} errors: {self.outputs}"
        return self.errors[0]

    @property
    def seconds(self) -> float:
        """From handing the cell over to the end of its execution."""
        return self.finished - self.submitted


class Cell:
    """A cell under way."""

    def __init__(self, kernel: Kernel, message_id: str) -> None:
        self._kernel = kernel
        self.message_id = message_id
        self.submitted = time.time()
        self.outputs: list[Output] = []
        self._idle_at: float | None = None
        self._replied = False

    @property
    def done(self) -> bool:
        """Both the reply and the end of output have come (they travel separately)."""
        return self._replied and self._idle_at is not None

    def wait(self, timeout: float = CELL_TIMEOUT_S, *, may_fail: bool = True) -> Result:
        """Wait for the end of the cell.

        Raises:
            TimeoutError: it is still running after `timeout` seconds; the text has the output so far.
            CellError: it raised, and `may_fail` is False.
            KernelGoneError: the kernel process ended.
        """
        self._kernel.pump(lambda: self.done, timeout, f"the end of cell {self.message_id}", self)
        assert self._idle_at is not None
        result = Result(self.outputs, self.submitted, self._idle_at)
        if result.errors and not may_fail:
            raise CellError(f"the cell raised:\n{result.errors[0].text}\nits stderr:\n{result.stderr}")
        return result

    def wait_for_output(self, predicate: Callable[[Output], bool], timeout: float = CELL_TIMEOUT_S) -> Output:
        """Wait for the first output (past ones count) that satisfies `predicate`, and return it."""
        self._kernel.pump(
            lambda: any(map(predicate, self.outputs)) or self.done, timeout, "an output that fits", self
        )
        for output in self.outputs:
            if predicate(output):
                return output
        raise AssertionError(f"the cell ended without an output that fits: {self.outputs}")

    def wait_for_text(self, text: str, timeout: float = CELL_TIMEOUT_S) -> None:
        """Wait until the streams have shown `text`, which may come in several pieces."""

        def seen() -> bool:
            return any(text in "".join(o.text for o in self.outputs if o.name == n) for n in (STDOUT, STDERR))

        self._kernel.pump(lambda: seen() or self.done, timeout, f"{text!r}", self)
        assert seen(), f"the cell ended without printing {text!r}: {self.outputs}"

    def receive(self, message: dict[str, Any]) -> None:
        """Take a message that answers this cell."""
        kind, content = message["msg_type"], message["content"]
        sent = message["header"]["date"].timestamp()
        if kind == "status":
            if content["execution_state"] == "idle":
                self._idle_at = sent
        elif kind == "execute_reply":
            self._replied = True
        elif kind == "stream":
            self.outputs.append(Output(kind, sent, name=content["name"], text=content["text"]))
        elif kind == "error":
            text = _ANSI.sub("", "\n".join(content["traceback"]))
            error = Output(kind, sent, text=text, ename=content["ename"], evalue=content["evalue"])
            self.outputs.append(error)
        elif kind in {"display_data", "execute_result", "update_display_data", "clear_output"}:
            data = content.get("data", {})
            self.outputs.append(Output(kind, sent, text=data.get("text/plain", ""), data=data))


class Kernel:
    """A kernel process and the sockets to it."""

    def __init__(self, *, env: dict[str, str] | None = None, start_timeout: float = START_TIMEOUT_S) -> None:
        """Start a kernel and wait until it answers.

        Args:
            env: environment variables of the kernel, on top of this process's.
            start_timeout: seconds that may pass until it answers.
        """
        self._directory = Path(tempfile.mkdtemp(prefix="kernel-"))
        self.cwd = self._directory / "cwd"
        self.cwd.mkdir()
        self.mark = uuid.uuid4().hex
        self.transcript = self._directory / "kernel.log"
        self._cells: dict[str, Cell] = {}
        self._connection, info = write_connection_file(
            fname=str(self._directory / "connection.json"),
            transport="ipc",  # sockets in our directory: no port that somebody else could take
            ip=str(self._directory / "ipc"),
            key=uuid.uuid4().hex.encode(),
        )
        self._session = Session(key=info["key"].encode(), signature_scheme=info["signature_scheme"])
        self._context = zmq.Context()
        self._shell = self._connect(zmq.DEALER, info["shell_port"])
        self._control = self._connect(zmq.DEALER, info["control_port"])
        self._iopub = self._connect(zmq.SUB, info["iopub_port"])
        self._poller = zmq.Poller()
        for channel in (self._shell, self._control, self._iopub):
            self._poller.register(channel, zmq.POLLIN)
        self.process = self._start(env or {})
        self.created = psutil.Process(self.process.pid).create_time()
        try:
            self._wait_until_ready(start_timeout)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def pid(self) -> int:
        return self.process.pid

    # --- cells ----------------------------------------------------------------------------------

    def run(self, code: str, timeout: float = CELL_TIMEOUT_S, *, may_fail: bool = False) -> Result:
        """Run a cell to its end. A cell that raises fails the test unless `may_fail`."""
        return self.submit(code).wait(timeout, may_fail=may_fail)

    def submit(self, code: str) -> Cell:
        """Hand a cell over; it runs while the test goes on."""
        message = self._session.msg(
            "execute_request",
            {
                "code": code,
                "silent": False,
                "store_history": True,
                "user_expressions": {},
                "allow_stdin": False,
                "stop_on_error": False,
            },
        )
        cell = Cell(self, message["header"]["msg_id"])
        self._cells[cell.message_id] = cell
        self._session.send(self._shell, message)
        return cell

    def interrupt(self) -> None:
        """What the stop button does: SIGINT to the kernel's whole process group."""
        os.killpg(self.process.pid, signal.SIGINT)

    # --- processes ------------------------------------------------------------------------------

    def kill(self) -> None:
        """SIGKILL the kernel, nothing else, and wait until it is gone."""
        self.process.kill()
        self.process.wait(10)

    def children(self) -> list[psutil.Process]:
        """All descendants of the kernel, the launcher's idle server processes included."""
        return psutil.Process(self.pid).children(recursive=True)

    def workers(self) -> list[psutil.Process]:
        """The descendants without the launcher's idle server processes."""
        return [p for p in self.children() if not self._is_zygote(p.pid)]

    def relatives(self) -> dict[leaks.ProcessId, str]:
        """All processes that stem from the kernel, also those whose parent has died; not the kernel."""
        found = leaks.marked_processes(KERNEL_MARK, self.mark)
        return {key: text for key, text in found.items() if key[0] != self.pid}

    def wait_until_alone(self, timeout: float, *, zygote_may_stay: bool = True) -> None:
        """Wait until no process that stems from the kernel is left.

        Raises:
            TimeoutError: some are left after `timeout` seconds; the text lists them.
        """
        deadline = time.monotonic() + timeout
        while True:
            left = self.relatives()
            if zygote_may_stay:
                left = {k: t for k, t in left.items() if not self._is_zygote(k[0])}
            if not left:
                return
            if time.monotonic() > deadline:
                raise TimeoutError(f"after {timeout} s there are still:\n  " + "\n  ".join(left.values()))
            time.sleep(0.02)

    def open_files(self) -> list[str]:
        """What the kernel's file descriptors point at."""
        links = []
        for name in os.listdir(f"/proc/{self.pid}/fd"):
            try:
                links.append(os.readlink(f"/proc/{self.pid}/fd/{name}"))
            except FileNotFoundError:
                continue  # closed in between
        return sorted(links)

    def close(self) -> None:
        """Ask the kernel to end, see to it that it does, and remove all that belonged to it."""
        try:
            self._shut_down()
            try:
                self.wait_until_alone(2, zygote_may_stay=False)
            except TimeoutError:
                for pid, created in self.relatives():
                    leaks.end_process(pid, created)
                raise
        finally:
            self._context.destroy(linger=0)
            shutil.rmtree(self._directory, ignore_errors=True)

    # --- inside ---------------------------------------------------------------------------------

    def pump(self, until: Callable[[], bool], timeout: float, what: str, cell: Cell | None = None) -> None:
        """Read messages and hand them to their cells until the condition holds.

        Raises:
            TimeoutError: it doesn't hold after `timeout` seconds.
            KernelGoneError: the kernel process ended.
        """
        deadline = time.monotonic() + timeout
        while not until():
            left = deadline - time.monotonic()
            if left <= 0:
                seen = "" if cell is None else f"; output so far: {cell.outputs}"
                raise TimeoutError(f"waited {timeout} s for {what}{seen}")
            # Wake up now and then to see whether the kernel is alive.
            if not self._read_messages(min(left, 0.2)) and self.process.poll() is not None:
                while self._read_messages(0):
                    pass
                if not until():
                    raise KernelGoneError(
                        f"the kernel ended with {self.process.returncode} while the test waited for {what}; "
                        f"its log:\n{self.transcript.read_text(errors='replace')[-4000:]}"
                    )

    def _read_messages(self, timeout: float) -> bool:
        ready = self._poller.poll(timeout * 1000)
        for channel, _ in ready:
            _, message = self._session.recv(channel, zmq.NOBLOCK)
            if message is None:
                continue
            cell = self._cells.get(message["parent_header"].get("msg_id", ""))
            if cell is not None:
                cell.receive(message)
        return bool(ready)

    def _connect(self, kind: int, port: int) -> zmq.Socket[bytes]:
        channel = self._context.socket(kind)
        channel.linger = 0
        if kind == zmq.SUB:
            channel.set_hwm(0)  # keep everything: nobody reads while the test does something else
            channel.subscribe(b"")
        channel.connect(f"ipc://{self._directory}/ipc-{port}")
        return channel

    def _start(self, env: dict[str, str]) -> subprocess.Popen[bytes]:
        environ = {**os.environ, KERNEL_MARK: self.mark, "IPYTHONDIR": str(self._directory / "ipython")}
        environ["JUPYTER_RUNTIME_DIR"] = str(self._directory)
        environ["MPLBACKEND"] = "module://matplotlib_inline.backend_inline"
        if not _is_installed("nbaccel"):
            paths = [str(ROOT), *filter(None, [environ.get("PYTHONPATH")])]
            environ["PYTHONPATH"] = os.pathsep.join(paths)
        environ.update(env)
        command = [sys.executable, "-m", "ipykernel_launcher", "-f", self._connection]
        command += ["--HistoryManager.enabled=False"]
        with self.transcript.open("wb") as log:
            return subprocess.Popen(
                command,
                cwd=self.cwd,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # as Jupyter starts kernels
            )

    def _wait_until_ready(self, timeout: float) -> None:
        # Until the subscription has arrived, output is lost: ask again until the answer shows on it.
        deadline = time.monotonic() + timeout
        while True:
            cell = self.submit("")
            left = deadline - time.monotonic()
            try:
                self.pump(lambda cell=cell: cell.done, min(left, 1.0), "the kernel's first answer")
            except TimeoutError:
                if time.monotonic() > deadline:
                    raise
            else:
                return

    def _shut_down(self) -> None:
        """As Jupyter does it: a request, then a signal, each with a little time to be heard.

        ipykernel 7 waits 10 s in a flush when its output thread has ended before its control thread.
        """
        if self.process.poll() is None:
            self._session.send(self._control, "shutdown_request", {"restart": False})
        for stronger in (self.process.terminate, self.process.kill):
            try:
                self.process.wait(1)
            except subprocess.TimeoutExpired:
                stronger()
        self.process.wait(10)

    def _is_zygote(self, pid: int) -> bool:
        return leaks.is_zygote(pid, {self.pid})


class SharedKernel:
    """One kernel process for many tests, replaced when a test has broken it."""

    def __init__(self) -> None:
        self._kernel: Kernel | None = None

    @property
    def kernel(self) -> Kernel:
        assert self._kernel is not None, "ensure_ready() comes first"
        return self._kernel

    def ensure_ready(self) -> None:
        """Start a kernel, or empty the namespace of the one that is there."""
        if self._kernel is not None:
            try:
                self._kernel.run("%reset -f", timeout=10)
            except (TimeoutError, AssertionError):
                self.close()
            else:
                return
        self._kernel = Kernel()

    def close(self) -> None:
        kernel, self._kernel = self._kernel, None
        if kernel is not None:
            kernel.close()


def _is_installed(name: str) -> bool:
    try:
        importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True
