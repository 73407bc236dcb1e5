"""``nbaccel test``: it passes where training works, and names stage and rank where it doesn't."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from nbaccel.cli.app import application
from nbaccel.diagnosis import selftest
from tests.cli.conftest import Done, Running

STAGES = [stage.name for stage in selftest.STAGES]


def call(*words: str) -> Result:
    return CliRunner().invoke(application, ["test", "--cpu", *words], catch_exceptions=False)


def test_B158_the_config_file_is_honoured_and_every_stage_is_named(
    run: Callable[..., Done], home: Path, tmp_path: Path
) -> None:
    (tmp_path / "c.yaml").write_text("num_processes: 3\nmixed_precision: bf16\nuse_cpu: true\n")
    done = run("test", "--config-file", "c.yaml")
    assert done.code == 0, done.out + done.err
    assert "num_processes=3 (c.yaml, line 1)" in done.out
    assert "3 processes on cpu, bf16, W=3" in done.out
    assert [line.split()[0] for line in done.out.splitlines() if " ok " in line] == STAGES
    assert list(home.rglob("*")) == []


def test_B153_it_works_in_an_empty_home(monkeypatch: pytest.MonkeyPatch) -> None:
    result = call("--num-processes", "1")
    assert result.exit_code == 0, result.output
    assert f"all {len(STAGES)} stages passed" in result.output


def test_a_wrong_setting_fails_the_first_stage_with_advice(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("num_processes: none\n")
    result = call("--config-file", "c.yaml")
    assert result.exit_code == 1
    assert "c.yaml, line 1" in result.output
    assert "stage 'settings' failed" in result.output


def sleep_on_rank_1() -> None:
    from nbaccel import Accelerator

    accelerator = Accelerator()
    if accelerator.process_index == 1:
        time.sleep(1000)
    accelerator.wait_for_everyone()


def raise_on_rank_1() -> None:
    from nbaccel import Accelerator

    accelerator = Accelerator()
    if accelerator.process_index == 1:
        raise ZeroDivisionError("rank 1 divides")
    accelerator.wait_for_everyone()


def die_on_rank_1() -> None:
    import os
    import signal

    from nbaccel import Accelerator

    if Accelerator().process_index == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(1000)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (
            sleep_on_rank_1,
            ["not over after 8 s", "rank 1 did not come to where the others wait", "sleep_on_rank_1"],
        ),
        (raise_on_rank_1, ["rank 1", "ZeroDivisionError: rank 1 divides"]),
        (die_on_rank_1, ["rank 1", "SIGKILL"]),
    ],
)
def test_B160_a_fault_is_named_with_stage_and_rank_within_the_time_limit(
    monkeypatch: pytest.MonkeyPatch, fault: Callable[[], Any], words: list[str]
) -> None:
    before = [stage for stage in selftest.STAGES if stage.name in {"settings", "devices"}]
    broken = selftest.Stage("communication", "look at the cables", selftest.on_workers(fault, str))
    after = selftest.Stage("data", "", lambda _: pytest.fail("a later stage has run"))
    monkeypatch.setattr(selftest, "STAGES", (*before, broken, after))
    started = time.monotonic()
    result = call("--num-processes", "2", "--timeout", "8")
    assert result.exit_code == 1
    assert "stage 'communication' failed" in result.output
    assert "look at the cables" in result.output
    assert all(word in result.output for word in words), result.output
    assert time.monotonic() - started < 8 + 30  # the workers' start included


def test_two_machines_test_each_other(start: Callable[..., Running]) -> None:
    port = _free_ports(6)
    both = [
        start(
            *("test", "--cpu", "--num-machines", "2", "--machine-rank", rank, "--num-processes", "2"),
            *("--main-process-ip", "127.0.0.1", "--main-process-port", port, "--timeout", "60"),
        )
        for rank in range(2)
    ]
    for done in [each.finish() for each in both]:
        assert done.code == 0, done.out + done.err
        assert "1 of 2 ranks" in done.out


def _free_ports(count: int) -> int:
    """The first of some ports in a row that nobody uses."""
    for first in range(20000, 30000, count):
        with contextlib.ExitStack() as stack:
            try:
                for port in range(first, first + count):
                    stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            except OSError:
                continue
            return first
    raise AssertionError("no ports are free")


def test_a_script_that_hangs_is_ended_with_its_workers(tmp_path: Path) -> None:
    from nbaccel.errors import LaunchTimeout

    with pytest.raises(LaunchTimeout):
        selftest._run_bounded(["sleep", "1000"], 0.2)
