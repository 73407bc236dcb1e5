"""A JupyterLab server of the tests' own: on loopback, with a token, in directories that nobody else uses.

It must never touch the user's Jupyter: configuration, data, settings, home and kernel specs all lie in one
temporary directory, which goes with it. Kernels are this interpreter.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import uuid
from pathlib import Path
from typing import Any, Self

import psutil

from tests import leaks
from tests.browser.window import KERNEL_NAME
from tests.kernel import KERNEL_MARK, ROOT

KERNEL_SPEC = "nbaccel-test"
START_TIMEOUT_S = 60.0
REQUEST_TIMEOUT_S = 10.0

_SETTINGS = {
    # All cells are in the page, also those that don't fit on the screen.
    "@jupyterlab/notebook-extension:tracker": {"windowingMode": "none"},
    # Nothing is asked of the network, and no question stands before the notebook.
    "@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": False},
    # A notebook is saved when a test saves it, so that nothing changes under the test's hands.
    "@jupyterlab/docmanager-extension:plugin": {"autosave": False},
}


class JupyterServer:
    """A running server, as a context manager. `root` is the folder that it shows."""

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="jupyter-"))
        self.root = self._folder("notebooks")
        self.home = self._folder("home")
        self.mark = uuid.uuid4().hex
        self.token = secrets.token_hex(16)
        self._runtime = self._folder("runtime")
        self._log = self.directory / "server.log"
        self._write_kernel_spec()
        overrides = self._folder("app-settings") / "overrides.json"
        overrides.write_text(json.dumps(_SETTINGS))
        self.process = self._start(overrides.parent)
        self.created = psutil.Process(self.process.pid).create_time()
        try:
            self.url = self._wait_for_url()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def config_home(self) -> Path:
        """What kernels take for the folder of users' configuration."""
        return self.home / ".config"

    def sessions(self) -> list[dict[str, Any]]:
        """The notebooks that have a kernel."""
        answer: list[dict[str, Any]] = self._request("GET", "api/sessions")
        return answer

    def kernel_pids(self) -> list[int]:
        """The kernel processes that run now."""
        children = psutil.Process(self.process.pid).children()
        return [p.pid for p in children if "ipykernel_launcher" in " ".join(p.cmdline())]

    def shut_down_kernels(self) -> None:
        """End every kernel, as the file browser's "Shut Down All" does."""
        for session in self.sessions():
            self._request("DELETE", f"api/sessions/{session['id']}")

    def relatives(self) -> dict[leaks.ProcessId, str]:
        """All processes that stem from the server, also those whose parent has died; not the server."""
        found = leaks.marked_processes(KERNEL_MARK, self.mark)
        return {key: text for key, text in found.items() if key[0] != self.process.pid}

    def wait_until_gone(self, processes: dict[leaks.ProcessId, str], timeout: float) -> None:
        """Wait until none of these processes runs.

        Raises:
            TimeoutError: some are left after `timeout` seconds; the text lists them.
        """
        deadline = time.monotonic() + timeout
        while left := {k: t for k, t in self.relatives().items() if k in processes}:
            if time.monotonic() > deadline:
                raise TimeoutError(f"after {timeout} s there are still:\n  " + "\n  ".join(left.values()))
            time.sleep(0.05)

    def wait_until_alone(self, timeout: float = 10.0) -> None:
        """Wait until no kernel, server process of a kernel or worker is left; raises `TimeoutError`."""
        self.wait_until_gone(self.relatives(), timeout)
        assert not self.relatives(), f"started meanwhile: {self.relatives()}"

    def log(self) -> str:
        """What server and kernels have written so far."""
        return self._log.read_text(errors="replace")

    def close(self) -> None:
        """End the server and all its kernels, and remove what belonged to it."""
        try:
            self.process.terminate()
            try:
                self.process.wait(15)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(10)
            try:
                self.wait_until_alone(5)
            except TimeoutError:
                for pid, created in self.relatives():
                    leaks.end_process(pid, created)
                raise
        finally:
            shutil.rmtree(self.directory, ignore_errors=True)

    # --- inside ---------------------------------------------------------------------------------

    def _folder(self, name: str) -> Path:
        path = self.directory / name
        path.mkdir(parents=True)
        return path

    def _write_kernel_spec(self) -> None:
        folder = self._folder(f"data/kernels/{KERNEL_SPEC}")
        argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        argv.append("--HistoryManager.enabled=False")
        spec = {"argv": argv, "display_name": KERNEL_NAME, "language": "python"}
        (folder / "kernel.json").write_text(json.dumps(spec))

    def _start(self, app_settings: Path) -> subprocess.Popen[bytes]:
        # Not the test run's own: a kernel or the server may keep what it likes in there.
        temporary = self._folder("tmp")
        environ = {
            **os.environ,
            KERNEL_MARK: self.mark,
            "HOME": str(self.home),
            "XDG_CONFIG_HOME": str(self.config_home),
            "TMPDIR": str(temporary),
            "IPYTHONDIR": str(self.directory / "ipython"),
            "JUPYTER_CONFIG_DIR": str(self.directory / "config"),
            "JUPYTER_DATA_DIR": str(self.directory / "data"),
            "JUPYTER_RUNTIME_DIR": str(self._runtime),
            "JUPYTERLAB_SETTINGS_DIR": str(self.directory / "settings"),
            "JUPYTERLAB_WORKSPACES_DIR": str(self.directory / "workspaces"),
            "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
        }
        for name in ("MPLBACKEND", "JUPYTER_PATH", "JUPYTER_CONFIG_PATH"):
            environ.pop(name, None)
        command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--port=0"]
        command += ["--ip=127.0.0.1", f"--IdentityProvider.token={self.token}"]
        command += [f"--ServerApp.root_dir={self.root}", f"--LabApp.app_settings_dir={app_settings}"]
        command += ["--ServerApp.terminals_enabled=False", "--LabApp.extension_manager=readonly"]
        if setpriv := shutil.which("setpriv"):
            # A test run that is killed closes nothing: the server then ends with it.
            command = [setpriv, "--pdeathsig", "TERM", *command]
        with self._log.open("wb") as log:
            return subprocess.Popen(
                command,
                cwd=self.root,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _wait_for_url(self) -> str:
        description = self._runtime / f"jpserver-{self.process.pid}.json"
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                self.url = f"http://127.0.0.1:{json.loads(description.read_text())['port']}/"
                self._request("GET", "api/status")
            except (OSError, ValueError, urllib.error.URLError):
                time.sleep(0.05)
            else:
                return self.url
        raise TimeoutError(
            f"JupyterLab didn't answer within {START_TIMEOUT_S} s "
            f"(exit code {self.process.poll()}); its log:\n{self.log()[-4000:]}"
        )

    def _request(self, method: str, path: str) -> Any:
        request = urllib.request.Request(self.url + path, method=method)
        request.add_header("Authorization", f"token {self.token}")
        with urllib.request.urlopen(request, timeout=REQUEST_TIMEOUT_S) as answer:
            return json.loads(answer.read() or "null")
