"""The program itself: entry points, start, completion."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import nbaccel
from tests.cli.conftest import Done

ROOT = Path(__file__).parents[2]


def test_the_console_script_and_python_m_are_the_same() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    module, _, name = scripts["nbaccel"].partition(":")
    assert callable(getattr(import_module(module), name))
    assert import_module("nbaccel.__main__").main is getattr(import_module(module), name)


def test_version_help_and_unknown_commands(run: Callable[..., Done]) -> None:
    assert run("--version").out == f"nbaccel, version {nbaccel.__version__}\n"
    done = run("--help")
    assert done.code == 0
    assert all(name in done.out for name in ("config", "launch", "test", "env", "export"))
    done = run("lunch")
    assert done.code == 2
    assert "lunch" in done.err


def test_words_are_completed_in_a_shell(tmp_path: Path) -> None:
    def complete(words: str) -> list[str]:
        code = "from nbaccel.cli import main; main()"
        done = subprocess.run(
            [sys.executable, "-c", code],
            check=False,
            capture_output=True,
            text=True,
            timeout=60,
            env={
                "PATH": "",
                "PYTHONPATH": str(ROOT),
                "_NBACCEL_COMPLETE": "bash_complete",
                "COMP_WORDS": words,
                "COMP_CWORD": str(len(words.split(" ")) - 1),
            },
        )
        return [line.partition(",")[2] for line in done.stdout.splitlines()]

    assert complete("nbaccel la") == ["launch"]
    assert "--num-processes" in complete("nbaccel launch --num")


def test_an_unexpected_error_keeps_its_traceback() -> None:
    code = (
        "import nbaccel.diagnosis.report as r\n"
        "def broken(*_): raise RuntimeError('a bug')\n"
        "r.make_report = broken\n"
        "import sys; sys.argv = ['nbaccel', 'env']\n"
        "from nbaccel.cli import main; main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "RuntimeError: a bug" in done.stderr
