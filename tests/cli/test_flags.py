"""What flags mean and which can't be said together; nothing is started."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from nbaccel.cli import launch_command
from nbaccel.cli.app import application


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What would be run: filled by :func:`call`."""
    seen: dict[str, Any] = {}

    def record(script: str, script_args: tuple[str, ...], spec: Any, settings: Any, given: Any) -> int:
        seen.update(script=script, args=script_args, spec=spec, settings=settings, given=given)
        return 0

    monkeypatch.setattr(launch_command, "_run", record)
    return seen


def call(*words: str) -> Result:
    return CliRunner().invoke(application, ["launch", *words], catch_exceptions=False)


@pytest.mark.parametrize(
    "words",
    [
        ("--num_processes", "2", "--mixed_precision", "bf16"),
        ("--num-processes=2", "--mixed-precision=BF16"),
        ("--num-processes", "2", "--bf16"),
        ("--nproc_per_node=2", "--mixed_precision=bf16"),
    ],
)
def test_flags_with_dashes_or_underscores_a_space_or_an_equals_sign(
    launched: dict[str, Any], words: tuple[str, ...]
) -> None:
    result = call("--cpu", *words, "s.py")
    assert result.exit_code == 0, result.output
    assert (launched["spec"].num_processes, launched["spec"].mixed_precision) == (2, "bf16")


def test_B162_names_are_never_abbreviated(launched: dict[str, Any]) -> None:
    result = call("--num-proc", "2", "s.py")
    assert result.exit_code == 2
    assert "--num-processes" in result.output
    assert not launched


def test_B162_words_after_the_script_stay(launched: dict[str, Any]) -> None:
    words = ("--cpu", "--num_processes", "9", "--", "--unknown", "-m")
    assert call("--cpu", "s.py", *words).exit_code == 0
    assert (launched["script"], launched["args"]) == ("s.py", words)
    assert launched["spec"].num_processes == 1


@pytest.mark.parametrize(
    ("words", "sides"),
    [
        (("--multi-gpu", "--num-processes", "1"), ("--multi-gpu", "--num-processes 1")),
        (("--multi_gpu", "--cpu"), ("--multi-gpu", "--cpu")),
        (("--cpu", "--gpu-ids", "0"), ("--cpu", "--gpu-ids 0")),
        (("--fp16", "--bf16"), ("--fp16", "--bf16")),
        (("--fp16", "--mixed-precision", "no"), ("--fp16", "--mixed-precision no")),
        (("-m", "--no-python"), ("--module", "--no-python")),
        (("--standalone", "--nnodes", "2"), ("--standalone", "--num-machines")),
        (("--rdzv-endpoint", "a:1", "--main-process-ip", "b"), ("--rdzv-endpoint", "--main-process-ip")),
        (("--machine-rank", "2", "--num-machines", "2"), ("--machine-rank 2", "--num-machines 2")),
        (
            ("--cpu", "--num-processes", "4", "--nproc-per-node", "3"),
            ("--num-processes 4", "--nproc-per-node 3"),
        ),
        (("--num-processes", "3", "--gpu-ids", "0,1"), ("--num-processes 3", "--gpu-ids 0,1")),
    ],
)
def test_B157_contradictions_exit_2_and_name_both_flags(
    launched: dict[str, Any], words: tuple[str, ...], sides: tuple[str, str]
) -> None:
    result = call(*words, "s.py")
    assert result.exit_code == 2
    assert all(side in result.output for side in sides), result.output
    assert not launched


@pytest.mark.parametrize(
    ("words", "word"),
    [
        (("--mixed-precision", "fp17"), "no, fp16, bf16, fp8"),
        (("--num-processes", "0"), "at least 1"),
        (("--num-processes", "two"), "whole number"),
        (("--cpu", "--num-processes", "3", "--num-machines", "2"), "--nproc-per-node"),
        (("--machine-rank", "1"), "num_nodes"),
        (("--output", "some"), "all, main, none"),
        (("--multi-gpu",), "at least two accelerators"),
        (("--config-file", "nowhere.yaml"), "nowhere.yaml"),
        (("--use_fsdp",), "fully sharded"),
        (("--deepspeed_config_file", "x"), "DeepSpeed"),
        (("--tpu",), "TPU"),
        (("--dynamo-backend", "inductor"), "torch.compile"),
    ],
)
def test_what_cannot_be_exits_2_with_the_reason(
    launched: dict[str, Any], words: tuple[str, ...], word: str
) -> None:
    result = call(*words, "s.py")
    assert result.exit_code == 2
    assert word in result.output
    assert not launched


def test_processes_of_all_machines_are_shared_out(launched: dict[str, Any]) -> None:
    call("--cpu", "--num-machines", "2", "--machine-rank", "1", "--num-processes", "8", "s.py")
    spec = launched["spec"]
    assert (spec.num_processes, spec.num_nodes, spec.node_rank, spec.world_size) == (4, 2, 1, 8)


def test_an_incumbents_file_counts_all_machines(launched: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "hf.yaml"
    path.write_text(
        "compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_CPU\nmixed_precision: bf16\n"
        "num_machines: 2\nmachine_rank: 1\nnum_processes: 8\n"
        "main_process_ip: 10.0.0.9\nmain_process_port: 1234\n"
    )
    assert call("--config_file", str(path), "s.py").exit_code == 0
    spec, settings = launched["spec"], launched["settings"]
    assert (spec.num_processes, spec.world_size, spec.cpu, spec.mixed_precision) == (4, 8, True, "bf16")
    assert (settings["master_addr"], settings["master_port"]) == ("10.0.0.9", 1234)


def test_B154_an_unknown_key_warns_and_strict_refuses(launched: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("cpu: true\nnum_procesess: 2\n")
    result = call("--config-file", str(path), "s.py")
    assert result.exit_code == 0
    assert "num_procesess" in result.output
    assert "did you mean 'num_processes'?" in result.output
    assert call("--config-file", str(path), "--strict", "s.py").exit_code == 2


def test_workers_are_told_what_holds_and_nothing_that_is_done() -> None:
    from nbaccel.config import LaunchSpec

    told = launch_command.worker_settings(LaunchSpec(num_processes=2, mixed_precision="bf16", cpu=True))
    assert {name: value for name, value in told.items() if value} == {
        "NBACCEL_MIXED_PRECISION": "bf16",
        "NBACCEL_CPU": "true",
        "NBACCEL_GRADIENT_ACCUMULATION_STEPS": "1",
    }
    assert told["NBACCEL_NUM_PROCESSES"] == ""


def test_help_of_every_command_and_completion_never_import_torch() -> None:
    words = [["--help"], *([name, "--help"] for name in ("config", "launch", "test", "env", "export"))]
    words.append(["--completion", "bash"])
    code = (
        "import sys\nfrom nbaccel.cli.app import application\n"
        f"for words in {words!r}:\n"
        "    try: application(words, prog_name='nbaccel')\n"
        "    except SystemExit as end: assert not end.code\n"
        "assert 'torch' not in sys.modules, 'torch was imported'\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "_NBACCEL_COMPLETE" in done.stdout


def test_every_flag_of_the_incumbent_is_understood_or_refused_with_a_reason() -> None:
    launch = pytest.importorskip("accelerate.commands.launch")
    from nbaccel.cli import left_out

    context = click.Context(launch_command.command)
    ours = {name for each in launch_command.command.get_params(context) for name in each.opts}
    theirs = {
        name
        for action in launch.launch_command_parser()._actions
        for name in action.option_strings
        if name.startswith("--")
    }
    unknown = {
        name for name in theirs if name.replace("_", "-") not in ours and left_out.reason(name) is None
    }
    assert unknown - {"--help"} == set()
