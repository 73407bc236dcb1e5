"""Jobs run from Python: what is raised, and that the process is as before."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from nbaccel.cli.script import job
from nbaccel.config import LaunchSpec
from nbaccel.errors import WorkerDied


@pytest.fixture(scope="module", autouse=True)
def libraries_are_loaded(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What the agent's first use opens and starts for good is no test's leak."""
    path = tmp_path_factory.mktemp("warm") / "s.py"
    path.write_text("")
    run(path)


def run(path: Path, processes: int = 1, **options: object) -> None:
    command = job.script_command(str(path), [], is_module=False, is_program=False)
    job.run(job.Job(command, LaunchSpec(num_processes=processes, cpu=True), **options))  # type: ignore[arg-type]


def test_B054_the_exception_has_the_last_lines_of_stderr_and_they_were_shown(
    script: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(WorkerDied) as caught:
        run(script('raise ValueError("xyz")\n'))
    assert "xyz" in str(caught.value)
    assert (caught.value.rank, caught.value.exitcode, caught.value.signal) == (0, 1, None)
    assert "ValueError: xyz" in caught.value.stderr_tail
    assert "ValueError: xyz" in capsys.readouterr().err


def test_B054_the_rank_to_blame_is_the_one_whose_words_are_kept(script: Callable[..., Path]) -> None:
    text = (
        "import os, sys, signal, time\n"
        "print('I am', os.environ['RANK'], file=sys.stderr)\n"
        "if os.environ['RANK'] == '1': os.kill(os.getpid(), signal.SIGSEGV)\n"
        "time.sleep(100)\n"
    )
    with pytest.raises(WorkerDied) as caught:
        run(script(text), 2)
    assert (caught.value.rank, caught.value.signal) == (1, signal.SIGSEGV)
    assert "I am 1" in caught.value.stderr_tail


def test_a_job_leaves_handlers_environment_and_descriptors_as_they_were(
    script: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    # The check itself is the autouse fixture that looks for leaks.
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    run(
        script("import os\nprint('told', os.environ['NBACCEL_TEST_WORD'])\n"),
        2,
        environ={"NBACCEL_TEST_WORD": "x"},
    )
    assert sorted(capsys.readouterr().out.splitlines()) == ["[rank 0] told x", "[rank 1] told x"]
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == before


def test_large_output_of_several_ranks_is_whole(
    script: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    text = "import os\nfor i in range(20000): print(os.environ['RANK'], i, 'x' * 40)\n"
    run(script(text), 2)
    lines = capsys.readouterr().out.splitlines()
    for rank in range(2):
        mine = [line.split()[3] for line in lines if line.startswith(f"[rank {rank}] ")]
        assert mine == [str(i) for i in range(20000)]


def test_the_program_of_a_script_is_this_python() -> None:
    command = job.script_command("s.py", ["a"], is_module=False, is_program=False)
    assert command == [sys.executable, "-u", "s.py", "a"]
