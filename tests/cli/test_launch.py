"""``nbaccel launch`` with real processes."""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.cli.conftest import Done, Running

Run = Callable[..., Done]
Start = Callable[..., Running]
Script = Callable[..., Path]

SAY_RANK = "import os\nprint(f\"rank {os.environ['RANK']}/{os.environ['WORLD_SIZE']}\")\n"
SAY_ARGV = "import sys\nprint(sys.argv[1:])\n"
SAY_PRECISION = "import nbaccel\nprint(nbaccel.Accelerator().mixed_precision)\n"


def test_B015_two_processes_on_the_cpu(run: Run, script: Script) -> None:
    done = run("launch", "--cpu", "--num-processes", "2", script(SAY_RANK))
    assert done.code == 0, done.err
    assert done.lines == ["[rank 0] rank 0/2", "[rank 1] rank 1/2"]
    assert "nbaccel: 2 processes on cpu" in done.out


def test_B157_nothing_is_said_on_stderr_when_every_value_is_explicit(run: Run, script: Script) -> None:
    done = run(
        *(
            "launch",
            "--cpu",
            "--num_processes=1",
            "--num_machines=1",
            "--machine_rank=0",
            "--dynamo_backend=no",
        ),
        *("--mixed_precision", "no", "--num_cpu_threads_per_process=1", "--same_network", script(SAY_RANK)),
    )
    assert (done.code, done.lines, done.err) == (0, ["rank 0/1"], "")


def test_B162_everything_after_the_script_is_the_scripts(run: Run, script: Script) -> None:
    words = [
        "--mixed_precision",
        "fp16",
        "--num_processes",
        "9",
        "--config",
        "c.yaml",
        "--",
        "-m",
        "--help",
        "-x=1",
    ]
    done = run("launch", "-q", "--cpu", script(SAY_ARGV), *words)
    assert (done.code, done.out, done.err) == (0, f"{words}\n", "")


@pytest.mark.parametrize("processes", [1, 2])
def test_B055_the_exit_code_is_the_scripts_own(run: Run, script: Script, processes: int) -> None:
    text = f"import os, sys, time\nif os.environ['RANK'] == '{processes - 1}': sys.exit(7)\ntime.sleep(100)\n"
    started = time.monotonic()
    done = run("launch", "--cpu", "--num-processes", processes, script(text))
    assert done.code == 7
    assert f"nbaccel: rank {processes - 1} ended with exit code 7" in done.err
    assert time.monotonic() - started < 60


def test_B055_a_signal_is_128_plus_its_number_and_a_stubborn_peer_is_ended(run: Run, script: Script) -> None:
    text = (
        "import os, signal, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "if os.environ['RANK'] == '1': os.kill(os.getpid(), signal.SIGKILL)\n"
        "time.sleep(100)\n"
    )
    done = run("launch", "--cpu", "--num-processes", "2", script(text))
    assert done.code == 128 + signal.SIGKILL
    assert "rank 1 was ended by SIGKILL" in done.err
    assert "memory" in done.err


def test_B055_the_rank_that_is_to_blame_gives_the_code(run: Run, script: Script) -> None:
    # The other one fails as well, in its collective: with exit code 1, at about the same time.
    text = (
        "import sys, torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "if dist.get_rank() == 1: sys.exit(3)\n"
        "dist.all_reduce(torch.ones(1))\n"
    )
    assert run("launch", "--cpu", "--num-processes", "2", script(text)).code == 3


@pytest.mark.parametrize("processes", [1, 2])
def test_B064_an_interrupt_is_handed_on_once_and_the_script_decides(
    start: Start, script: Script, processes: int
) -> None:
    text = (
        "import signal, sys, time\n"
        "def handle(*_):\n"
        "    print('caught', flush=True)\n"
        "    time.sleep(1)\n"
        "    print('saved', flush=True)\n"
        "    sys.exit(0)\n"
        "signal.signal(signal.SIGINT, handle)\n"
        "print('ready', flush=True)\n"
        "time.sleep(100)\n"
    )
    running = start("launch", "--cpu", "--num-processes", processes, script(text))
    running.wait_for("ready", processes)
    running.send(signal.SIGINT)
    done = running.finish()
    assert done.code == 0, done.err
    assert done.out.count("caught") == processes
    assert done.out.count("saved") == processes


def test_B064_without_a_handler_the_code_is_130_and_the_launcher_shows_no_traceback(
    start: Start, script: Script
) -> None:
    path = script("import time\nprint('ready', flush=True)\ntime.sleep(100)\n")
    running = start("launch", "--cpu", path)
    running.wait_for("ready")
    running.send(signal.SIGINT)
    done = running.finish()
    assert done.code == 130
    assert done.err.count("Traceback") == 1  # the script's own
    assert f'File "{path}"' in done.err
    assert "nbaccel" not in done.err


def test_B064_a_second_interrupt_ends_a_script_that_ignores_the_first(start: Start, script: Script) -> None:
    text = "import signal, time\nsignal.signal(signal.SIGINT, lambda *_: print('no', flush=True))\n"
    text += "print('ready', flush=True)\nwhile True: time.sleep(1)\n"
    running = start("launch", "--cpu", script(text))
    running.wait_for("ready")
    running.send(signal.SIGINT)
    running.wait_for("no")
    running.send(signal.SIGINT)
    assert running.finish().code == 128 + signal.SIGTERM


def test_a_killed_launcher_leaves_nobody(start: Start, script: Script) -> None:
    running = start(
        "launch",
        "--cpu",
        "--num-processes",
        "2",
        script("import time\nprint('ready', flush=True)\ntime.sleep(100)\n"),
    )
    running.wait_for("ready", 2)
    children = psutil.Process(running.process.pid).children(recursive=True)
    assert len(children) == 2
    running.process.kill()
    _, alive = psutil.wait_procs(children, timeout=5)
    assert not alive


def test_workers_leave_no_helpers_behind(run: Run, script: Script) -> None:
    text = "import subprocess\nprint(subprocess.Popen(['sleep', '100'], stdout=subprocess.DEVNULL).pid)\n"
    done = run("launch", "-q", "--cpu", script(text))
    assert done.code == 0
    assert not psutil.pid_exists(int(done.out)) or psutil.Process(int(done.out)).status() == "zombie"


def test_bytes_of_a_single_process_pass_as_they_are(start: Start, script: Script) -> None:
    running = start(
        "launch", "-q", "--cpu", script("import os\nos.write(1, b'a\\xff\\x00\\rb')\nos.write(2, b'\\xfe')\n")
    )
    running.finish()
    assert running.raw == (b"a\xff\x00\rb", b"\xfe")


def test_a_failed_run_is_started_anew_as_often_as_asked(run: Run, script: Script) -> None:
    text = (
        "import os, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "dist.barrier()\n"
        "count = os.environ['TORCHELASTIC_RESTART_COUNT']\n"
        "print('attempt', count)\n"
        "assert count == '1'\n"
        "dist.destroy_process_group()\n"
    )
    path = script(text)
    done = run("launch", "--cpu", "--num-processes", "2", "--max-restarts", "1", path)
    assert done.code == 0, done.err
    assert done.lines.count("[rank 0] attempt 1") == 1
    assert done.lines.count("[rank 0] attempt 0") == 1


def test_modules_and_programs_of_any_kind(run: Run, script: Script) -> None:
    script(SAY_ARGV, "job.py")
    assert run("launch", "-q", "--cpu", "-m", "job", "--lr", "1").lines == ["['--lr', '1']"]
    program = script('#!/bin/sh\necho "shell $RANK $1"\n', "job.sh")
    program.chmod(0o755)
    assert run("launch", "-q", "--cpu", "--no_python", "job.sh", "x").lines == ["shell 0 x"]
    done = run("launch", "-q", "--cpu", "--no_python", "./nowhere")
    assert done.code == 127
    assert "nowhere can't be run: No such file" in done.err


def test_B027_one_flag_leaves_the_config_files_number_of_processes(
    run: Run, script: Script, tmp_path: Path
) -> None:
    (tmp_path / "c.yaml").write_text("num_processes: 1\nuse_cpu: true\n")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    done = run("launch", "--config_file", "c.yaml", "--main_process_port", port, script(SAY_RANK))
    assert done.lines == ["rank 0/1"]


def test_B115_the_files_precision_holds_until_a_flag_says_no(
    run: Run, script: Script, tmp_path: Path
) -> None:
    (tmp_path / "c.yaml").write_text("mixed_precision: bf16\nnum_processes: 1\ncpu: true\n")
    path = script(SAY_PRECISION)
    done = run("launch", path, NBACCEL_CONFIG_FILE="c.yaml")
    assert done.lines == ["bf16"]
    assert (
        "bf16 (num_processes: c.yaml, line 2; cpu: c.yaml, line 3; mixed_precision: c.yaml, line 1)"
        in done.out
    )
    assert run("launch", "--mixed-precision", "no", path, NBACCEL_CONFIG_FILE="c.yaml").lines == ["no"]


def test_B153_B156_without_any_config_the_defaults_hold_and_nothing_is_written(
    run: Run, script: Script, home: Path
) -> None:
    done = run("launch", "--cpu", script(SAY_RANK))
    assert (done.code, done.lines, done.err) == (0, ["rank 0/1"], "")
    assert list(home.iterdir()) == []


def test_one_machine_listens_on_loopback_only(start: Start, script: Script) -> None:
    text = (
        "import time, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "dist.barrier()\n"
        "print('ready', flush=True)\n"
        "time.sleep(100)\n"
    )
    running = start("launch", "--cpu", "--num-processes", "2", script(text))
    running.wait_for("ready", 2)
    launcher = psutil.Process(running.process.pid)
    addresses = {
        connection.laddr.ip
        for process in [launcher, *launcher.children(recursive=True)]
        for connection in (getattr(process, "net_connections", None) or process.connections)("inet")
        if connection.status == psutil.CONN_LISTEN
    }
    assert addresses
    assert addresses <= {"127.0.0.1", "::1"}


def test_a_port_that_is_in_use_is_named(run: Run, script: Script) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        done = run("launch", "--cpu", "--main-process-port", port, script(SAY_RANK))
    assert done.code == 2
    assert f"port {port} is in use" in done.err


def test_output_of_the_main_rank_and_log_files(run: Run, script: Script, tmp_path: Path) -> None:
    done = run(
        "launch",
        "-q",
        "--cpu",
        "--num-processes",
        "2",
        "--output",
        "main",
        "--log-dir",
        "logs",
        script(SAY_RANK),
    )
    assert done.lines == ["rank 0/2"]
    assert "rank 1/2" in (tmp_path / "logs" / "rank-1.log").read_text()


@pytest.mark.parametrize(
    ("backend", "rank", "option", "told"),
    [
        ("static", 0, "timeout=2", "1/2 clients joined"),
        ("static", 1, "timeout=2", "127.0.0.1"),
        ("c10d", 0, "join_timeout=2", "RendezvousTimeoutError"),
    ],
)
def test_B177_B178_machines_that_do_not_meet_are_told_in_one_line(
    start: Start, script: Script, backend: str, rank: int, option: str, told: str
) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ended = start(
        *("launch", "--cpu", "--num-machines", "2", "--num-processes", "2", "--machine-rank", rank),
        *("--main-process-ip", "127.0.0.1", "--main-process-port", port, "--rdzv-backend", backend),
        *("--rdzv-id", "job", "--rdzv-conf", option, script("print('never')\n")),
    ).finish()
    assert ended.code == 2
    assert "never" not in ended.lines
    [line] = [line for line in ended.err.splitlines() if line.startswith("nbaccel: error: ")]
    assert f"2 machines were to meet at 127.0.0.1:{port}, and did not: " in line
    assert told in line
    assert "--machine-rank" in line
    assert "Traceback" not in ended.err


@pytest.mark.parametrize("backend", ["static", "c10d"])
def test_two_agents_meet_on_loopback(start: Start, script: Script, backend: str) -> None:
    text = (
        "import torch, nbaccel\n"
        "acc = nbaccel.Accelerator()\n"
        "ranks = acc.gather(torch.tensor([acc.process_index])).tolist()\n"
        "print('sees', ranks, 'as', acc.process_index, acc.local_process_index)\n"
        "acc.end_training()\n"
    )
    path = script(text)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    agents = [
        start(
            *("launch", "--cpu", "--num-machines", "2", "--num-processes", "4", "--machine-rank", rank),
            *("--main-process-ip", "127.0.0.1", "--main-process-port", port, "--rdzv-backend", backend),
            *("--rdzv-id", "job", path),
        )
        for rank in range(2)
    ]
    ended = [agent.finish() for agent in agents]
    assert [each.code for each in ended] == [0, 0], [each.err for each in ended]
    said = sorted(line.split("sees ")[1] for each in ended for line in each.lines if "sees " in line)
    expected = [f"[0, 1, 2, 3] as {rank} {rank % 2}" for rank in range(4)]
    assert said == expected
