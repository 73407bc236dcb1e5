"""The program as a user runs it: a process of its own, an empty home, a deadline."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from nbaccel import config

DEADLINE_S = 100.0


@dataclass
class Done:
    """How a program ended."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        """Of standard output, without what nbaccel says itself, sorted: ranks come in any order."""
        return sorted(line for line in self.out.splitlines() if not line.startswith("nbaccel:"))


class Running:
    """A program that runs, its output so far, and how to wait for a word of it."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self._texts = {"out": b"", "err": b""}
        self._threads = [
            threading.Thread(target=self._read, args=(name, stream))
            for name, stream in (("out", process.stdout), ("err", process.stderr))
        ]
        for thread in self._threads:
            thread.start()

    def wait_for(self, word: str, times: int = 1) -> None:
        """Until ``word`` stands in the output that often."""
        deadline = time.monotonic() + DEADLINE_S
        while self._texts["out"].count(word.encode()) < times:
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"{word!r} never came {times} times; there is: {self._texts}")
            time.sleep(0.02)

    def send(self, signum: int) -> None:
        self.process.send_signal(signum)

    def finish(self) -> Done:
        code = self.process.wait(DEADLINE_S)
        for thread in self._threads:
            thread.join(DEADLINE_S)
        out, err = (self._texts[name].decode(errors="backslashreplace") for name in ("out", "err"))
        return Done(code, out, err)

    @property
    def raw(self) -> tuple[bytes, bytes]:
        """Both streams as they came."""
        return self._texts["out"], self._texts["err"]

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.finish()
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()

    def _read(self, name: str, stream: object) -> None:
        while data := os.read(stream.fileno(), 65536):  # type: ignore[attr-defined]
            self._texts[name] += data


@pytest.fixture(scope="session", autouse=True)
def first_store() -> None:
    """The event library of torch's store keeps one pipe for signals, made with the first store."""
    from nbaccel.launch.request.rendezvous import open_rendezvous

    open_rendezvous("127.0.0.1", None, num_nodes=1, node_rank=0).close()


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty home and no variables of ours; the home."""
    for each in config.SETTINGS.values():
        monkeypatch.delenv(each.variable, raising=False)
    monkeypatch.delenv("NBACCEL_CONFIG_FILE", raising=False)
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    root = str(Path(__file__).parents[2])
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([root, os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    )
    monkeypatch.chdir(tmp_path)
    return home


@pytest.fixture
def start() -> Iterator[Callable[..., Running]]:
    """Start ``nbaccel`` with some words; whatever happens it is gone when the test ends."""
    running: list[Running] = []

    def start(*words: object, **environ: str) -> Running:
        process = subprocess.Popen(
            [sys.executable, "-m", "nbaccel", *map(str, words)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **environ},
        )
        running.append(Running(process))
        return running[-1]

    yield start
    for each in running:
        each.end()


@pytest.fixture
def run(start: Callable[..., Running]) -> Callable[..., Done]:
    """Run ``nbaccel`` with some words to its end."""
    return lambda *words, **environ: start(*words, **environ).finish()


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], Path]:
    """Write a script; its path."""

    def write(text: str, name: str = "s.py") -> Path:
        path = tmp_path / name
        path.write_text(text)
        return path

    return write
