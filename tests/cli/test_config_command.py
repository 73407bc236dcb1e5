"""``nbaccel config``: prompts, flags, and what is written."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from nbaccel import config
from nbaccel.cli import questions
from nbaccel.cli.app import application
from nbaccel.config import file


def call(*words: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(application, ["config", *words], input=stdin, catch_exceptions=False)


def written(path: Path) -> dict[str, object]:
    return dict(file.load(path).values)


def test_B151_yes_writes_a_valid_file_without_a_terminal(home: Path) -> None:
    result = call("--yes")
    assert result.exit_code == 0
    (path,) = [each for each in home.rglob("*") if each.is_file()]
    assert written(path) == {}
    assert str(path) in result.output.replace("\n", "")


def test_B151_numbers_are_read_from_a_pipe(tmp_path: Path) -> None:
    result = call("--config-file", "c.yaml", stdin="1\n2\n")
    assert result.exit_code == 0, result.output
    assert "  1) " in result.output
    assert written(tmp_path / "c.yaml") == {"num_processes": 2}


def test_B151_nobody_to_answer_is_an_error_and_nothing_is_written(home: Path) -> None:
    result = call(stdin="")
    assert result.exit_code == 2
    assert "--yes" in result.output
    assert list(home.rglob("*")) == []


def test_a_wrong_answer_in_a_pipe_writes_nothing(tmp_path: Path) -> None:
    result = call("--config-file", "c.yaml", stdin="3\n")
    assert result.exit_code == 2
    assert "1 to 2" in result.output
    assert not (tmp_path / "c.yaml").exists()


ANSWERS = [
    ("where", "2", {"cpu": True}),
    ("where", "1", {}),
    ("devices", "0,2", {"devices": (0, 2)}),
    ("devices", "idle", {"devices": "idle"}),
    ("devices", "all", {}),
    ("num_processes", "3", {"num_processes": 3}),
    *[("mixed_precision", str(n), {"mixed_precision": each}) for n, each in enumerate(config.PRECISIONS, 1)],
    ("mixed_precision", "bf16", {"mixed_precision": "bf16"}),
    ("gradient_accumulation_steps", "4", {"gradient_accumulation_steps": 4}),
    *[("output", str(n), {"output": each}) for n, each in enumerate(config.OUTPUT_MODES, 1)],
    *[("start_method", str(n), {"start_method": each}) for n, each in enumerate(config.START_METHODS, 1)],
    ("num_nodes", "2", {"num_nodes": 2}),
    ("node_rank", "1", {"node_rank": 1}),
    ("master_addr", "10.0.0.1", {"master_addr": "10.0.0.1"}),
    ("master_port", "29501", {"master_port": 29501}),
    *[
        ("rdzv_backend", str(n), {"rdzv_backend": each})
        for n, each in enumerate(config.RENDEZVOUS_BACKENDS, 1)
    ],
]


def test_B159_every_question_is_in_the_table() -> None:
    assert {name for name, _, _ in ANSWERS} == {question.name for question in questions.QUESTIONS}


@pytest.mark.parametrize(("name", "typed", "stored"), ANSWERS)
def test_B159_each_answer_is_stored_under_its_own_key(
    tmp_path: Path, name: str, typed: str, stored: dict[str, object]
) -> None:
    asked, answers = [], []
    # Questions about several machines are asked when there are several.
    several = name in {"node_rank", "master_addr", "master_port", "rdzv_backend"}
    present: dict[str, object] = {"num_nodes": 2} if several else {}
    for question in questions.QUESTIONS:
        if question.matters(present):
            asked.append(question.name)
            answers.append(typed if question.name == name else "")
    assert name in asked
    file.save(present, tmp_path / "c.yaml")
    result = call("--config-file", "c.yaml", stdin="\n".join(answers) + "\n")
    assert result.exit_code == 0, result.output
    assert written(tmp_path / "c.yaml") == {**present, **stored}


def test_set_changes_the_named_keys_only(tmp_path: Path) -> None:
    file.save({"num_processes": 2, "devices": (0, 1)}, tmp_path / "c.yaml")
    assert (
        call("--config-file", "c.yaml", "--set", "mixed-precision=off", "--unset", "devices").exit_code == 0
    )
    assert written(tmp_path / "c.yaml") == {"num_processes": 2, "mixed_precision": "no"}


@pytest.mark.parametrize(
    ("assignment", "word"),
    [
        ("num_procs=2", "did you mean 'num_processes'?"),
        ("mixed_precision=fp32", "no, fp16, bf16, fp8"),
        ("num_processes", "KEY=VALUE"),
        ("devices=0,1,2", "contradict"),
    ],
)
def test_a_wrong_assignment_is_refused_and_the_file_stays(tmp_path: Path, assignment: str, word: str) -> None:
    file.save({"num_processes": 2}, tmp_path / "c.yaml")
    before = (tmp_path / "c.yaml").read_text()
    result = call("--config-file", "c.yaml", "--set", assignment)
    assert result.exit_code == 2
    assert word in result.output
    assert (tmp_path / "c.yaml").read_text() == before


def test_default_goes_back_to_the_defaults(tmp_path: Path) -> None:
    file.save({"num_processes": 2}, tmp_path / "c.yaml")
    assert call("--default", "--config-file", "c.yaml").exit_code == 0
    assert written(tmp_path / "c.yaml") == {}


def test_show_prints_and_writes_nothing(home: Path) -> None:
    result = call("--show")
    assert result.exit_code == 0
    assert "not there" in result.output
    assert list(home.rglob("*")) == []
    assert "gradient_accumulation_steps" in call("--keys").output


def test_an_incumbents_file_becomes_one_of_ours(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("compute_environment: LOCAL_MACHINE\nuse_cpu: true\nnum_processes: 2\n")
    assert call("--config-file", "c.yaml", "--yes").exit_code == 0
    assert (tmp_path / "c.yaml").read_text() == "version: 1\nnum_processes: 2\ncpu: true\n"


def test_B151_a_terminal_asks_again_after_a_wrong_answer(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "nbaccel", "config", "--config-file", "c.yaml"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    try:
        seen = _answer(ours, ["9", "2", "3", *[""] * 5])
        assert process.wait(30) == 0, seen
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    assert "none of the numbers 1 to 2" in seen
    assert written(tmp_path / "c.yaml") == {"cpu": True, "num_processes": 3}


def _answer(terminal: int, answers: list[str]) -> str:
    """Type each answer when a prompt is there; returns all that was shown."""
    seen, deadline = "", time.monotonic() + 60
    waiting = list(answers)
    while time.monotonic() < deadline:
        try:
            data = os.read(terminal, 4096)
        except OSError:  # how Linux tells that the other side has closed
            break
        seen += data.decode()
        if seen.endswith("] ") and waiting:
            os.write(terminal, f"{waiting.pop(0)}\n".encode())
    return seen
