"""What the notebook sees when a worker fails, and that control comes back."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import traceback

import pytest
import torch
import torch.distributed as dist

import nbaccel
from nbaccel import LaunchTimeout, WorkerDied, WorkerError, notebook_launcher
from nbaccel.launch import failures


def _rank() -> int:
    return int(os.environ["RANK"])


class OwnError(Exception):
    def __init__(self, code, *, hint):
        super().__init__(f"code {code}")
        self.hint = hint


def _fail_on_one_wait_on_others():
    dist.init_process_group("gloo")
    if _rank() == 1:
        raise ZeroDivisionError("the line of the user")
    dist.barrier()


def test_B053_the_worker_s_own_exception_arrives(start_method):
    with pytest.raises(ZeroDivisionError) as caught:
        notebook_launcher(_fail_on_one_wait_on_others, num_processes=2, start_method=start_method)
    error = caught.value
    assert error.rank == 1
    text = "".join(traceback.format_exception(error))
    assert 'raise ZeroDivisionError("the line of the user")' in text
    assert "raised by rank 1" in text
    assert 'raise ZeroDivisionError("the line of the user")' in error.remote_traceback
    # Frames of the worker are frames of the exception, with file and line; none of the launcher's.
    frames = traceback.extract_tb(error.__traceback__)
    assert frames[-1].name == "_fail_on_one_wait_on_others"
    assert frames[-1].filename == __file__
    assert not [frame for frame in frames if "supervision" in frame.filename]


def test_B056_the_failure_of_one_ends_the_others_wait(start_method):
    notebook_launcher(_rank, num_processes=2, start_method=start_method)  # nothing cold is timed
    start = time.monotonic()
    with pytest.raises(ZeroDivisionError):
        notebook_launcher(_fail_on_one_wait_on_others, num_processes=2, start_method=start_method, timeout=60)
    assert time.monotonic() - start < 30  # a bound for hanging, not for speed


def test_an_exception_with_an_init_of_its_own(start_method):
    def fail():
        raise OwnError(7, hint="try 8")

    with pytest.raises(OwnError, match="code 7") as caught:
        notebook_launcher(fail, start_method=start_method)
    assert caught.value.hint == "try 8"


def test_cause_and_context_travel_too():
    def fail():
        try:
            {}["missing"]
        except KeyError as error:
            raise ValueError("outer") from error

    with pytest.raises(ValueError, match="outer") as caught:
        notebook_launcher(fail)
    assert isinstance(caught.value.__cause__, KeyError)
    assert '{}["missing"]' in "".join(traceback.format_exception(caught.value))


def test_an_exception_that_can_t_be_pickled_is_told():
    def fail():
        error = RuntimeError("has a lock")
        error.lock = threading.Lock()
        raise error

    with pytest.raises(WorkerError, match="RuntimeError: has a lock") as caught:
        notebook_launcher(fail)
    assert caught.value.rank == 0
    assert "raise error" in caught.value.remote_traceback
    assert "raise error" in "".join(traceback.format_exception(caught.value))


def test_an_exception_that_can_t_be_rebuilt_is_told():
    class Refuses(Exception):
        def __reduce__(self):
            return (_refuse, ())

    def fail():
        raise Refuses("no way home")

    with pytest.raises(WorkerError, match="Refuses: no way home"):
        notebook_launcher(fail)


def _refuse():
    raise RuntimeError("not rebuilt")


def test_the_first_in_time_is_raised_and_the_others_are_told(tmp_path):
    def fail_in_order():
        if _rank() == 2:
            (tmp_path / "go").touch()
            raise KeyError("the first")
        deadline = time.monotonic() + 30
        while not (tmp_path / "go").exists() and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(0.02)
        raise ValueError("the same on both")

    with pytest.raises(KeyError) as caught:
        notebook_launcher(fail_in_order, num_processes=3)
    assert caught.value.rank == 2
    assert "ranks 0-1 also failed: ValueError: the same on both" in caught.value.__notes__[-1]


def test_a_consequence_never_hides_the_cause():
    def die_silently():
        dist.init_process_group("gloo")
        dist.barrier()
        if _rank() == 0:
            os._exit(9)
        dist.barrier()

    with pytest.raises(WorkerDied) as caught:
        notebook_launcher(die_silently, num_processes=2)
    assert (caught.value.rank, caught.value.exitcode) == (0, 9)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT])
def test_B057_B175_a_worker_killed_by_a_signal(start_method, number):
    def die():
        if _rank() == 1:
            os.kill(os.getpid(), number)
        time.sleep(60)

    with pytest.raises(WorkerDied) as caught:
        notebook_launcher(die, num_processes=2, start_method=start_method)
    error = caught.value
    assert (error.rank, error.signal, error.exitcode) == (1, number, -number)
    assert "rank 1" in str(error)
    assert number.name in str(error)
    assert ("memory" in str(error)) == (number == signal.SIGKILL)


def test_B176_the_last_lines_of_stderr_are_told(start_method):
    def die():
        os.write(2, b"fatal: xyz\n")
        os.abort()

    with pytest.raises(WorkerDied, match="fatal: xyz") as caught:
        notebook_launcher(die, start_method=start_method)
    assert caught.value.stderr_tail == "fatal: xyz"


def test_sys_exit_with_a_code(start_method):
    def leave():
        if _rank() == 1:
            sys.exit(3)
        time.sleep(60)

    with pytest.raises(WorkerDied, match=r"rank 1 called sys.exit\(3\)") as caught:
        notebook_launcher(leave, num_processes=2, start_method=start_method)
    assert caught.value.exitcode == 3


def test_sys_exit_with_a_text(capfd):
    with pytest.raises(WorkerDied, match=r"rank 0 called sys.exit\('out of luck'\)") as caught:
        notebook_launcher(sys.exit, ("out of luck",))
    assert caught.value.exitcode == 1


def test_timeout_tells_where_every_rank_is(start_method):
    def hang():
        dist.init_process_group("gloo")
        if _rank() == 0:
            dist.barrier()
        time.sleep(60)

    notebook_launcher(_rank, num_processes=2, start_method=start_method)
    with pytest.raises(LaunchTimeout) as caught:
        notebook_launcher(
            hang,
            num_processes=2,
            start_method=start_method,
            timeout=12 if start_method in ("spawn", "auto") else 4,
        )
    text = str(caught.value)
    assert isinstance(caught.value, TimeoutError)
    assert isinstance(caught.value, WorkerError)
    assert "dist.barrier()" in text.split("--- rank 1 ---", maxsplit=1)[0]
    assert "time.sleep(60)" in text.split("--- rank 1 ---")[1]
    assert "zygote.py" not in text


def test_B184_a_value_that_can_t_be_sent(start_method):
    def make():
        return {"loss": 1.0, "lock": threading.Lock()}

    with pytest.raises(TypeError, match=r"\['lock'\]: cannot pickle '_thread.lock' object") as caught:
        notebook_launcher(make, num_processes=2, start_method=start_method)
    assert caught.value.rank == 0


def test_a_value_of_another_rank_that_can_t_be_sent_matters_only_when_asked_for():
    def make():
        return threading.Lock() if _rank() == 1 else "fine"

    assert notebook_launcher(make, num_processes=2) == "fine"
    with pytest.raises(TypeError) as caught:
        notebook_launcher(make, num_processes=2, returns="all")
    assert caught.value.rank == 1


def test_a_task_that_can_t_be_unpickled_fails_in_the_worker():
    class Bomb:
        def __reduce__(self):
            return (_refuse, ())

    with pytest.raises(RuntimeError, match="not rebuilt"):
        notebook_launcher(lambda bomb: None, (Bomb(),), num_processes=2)


def test_a_task_that_kills_its_process_while_it_is_unpickled():
    class Killer:
        def __reduce__(self):
            return (os._exit, (5,))

    with pytest.raises(WorkerDied) as caught:
        notebook_launcher(lambda killer: None, (Killer(),), num_processes=2)
    assert caught.value.exitcode == 5


def test_a_value_that_kills_its_process_while_it_is_pickled():
    class Killer:
        def __reduce__(self):
            os._exit(6)

    with pytest.raises(WorkerDied) as caught:
        notebook_launcher(lambda: Killer(), num_processes=2)  # noqa: PLW0108  # made in the worker
    assert caught.value.exitcode == 6


def test_grandchildren_end_with_their_worker(start_method, tmp_path):
    def leave_some():
        import subprocess

        child = subprocess.Popen(["sleep", "300"])
        (tmp_path / "pid").write_text(str(child.pid))
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(WorkerDied):
        notebook_launcher(leave_some, start_method=start_method)
    assert not _is_alive(int((tmp_path / "pid").read_text()))


def test_grandchildren_end_with_a_launch_that_went_well(start_method):
    def leave_some():
        import subprocess

        return subprocess.Popen(["sleep", "300"]).pid

    assert not _is_alive(notebook_launcher(leave_some, start_method=start_method))


def _is_alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_thread_that_never_ends_is_reported_and_stopped(capsys, monkeypatch):
    from nbaccel.launch.supervision import supervision

    monkeypatch.setattr(supervision, "SHUTDOWN_PATIENCE", 1.0)

    def leave_a_thread():
        threading.Thread(target=lambda: time.sleep(300)).start()
        return "done"

    assert notebook_launcher(leave_a_thread) == "done"
    err = capsys.readouterr().err
    assert "rank 0 did not end within 1 s" in err
    assert "time.sleep(300)" in err


def test_a_crash_after_the_function_had_returned_is_told_and_the_value_kept(capsys):
    def crash_later():
        import atexit

        atexit.register(os._exit, 4)
        return "value"

    assert notebook_launcher(crash_later) == "value"
    assert "exit code 4" in capsys.readouterr().err


def test_what_a_rank_printed_before_it_failed_is_shown_first(capsys):
    def fail():
        print("before")
        raise ValueError("after")

    with pytest.raises(ValueError, match="after"):
        notebook_launcher(fail)
    assert "before" in capsys.readouterr().out  # B051


def test_output_that_was_not_shown_is_shown_when_its_rank_fails(capsys):
    def fail():
        print(f"rank {_rank()} speaks")
        if _rank() == 1:
            raise ValueError

    with pytest.raises(ValueError):
        notebook_launcher(fail, num_processes=2, output="main")
    err = capsys.readouterr().err
    assert "rank 1 speaks" in err
    assert "rank 0 speaks" not in err


def test_last_failure_has_frames_with_source_and_locals():
    def inner(x):
        y = x * 2
        big = torch.zeros(1000)
        raise LookupError(f"{y.sum()}, {big.shape}")

    def outer(n):
        inner(torch.ones(n))

    with pytest.raises(LookupError) as caught:
        notebook_launcher(outer, (3,), num_processes=2)
    report = nbaccel.last_failure()
    assert report is not None
    assert type(report.exception) is LookupError
    assert str(report.exception) == str(caught.value)
    assert report.rank == caught.value.rank
    assert [frame.name for frame in report.frames] == ["outer", "inner"]
    assert report.frames[0].locals["n"] == "3"
    assert report.frames[1].locals["y"] == "tensor([2., 2., 2.])"
    assert report.frames[1].locals["big"] == "<Tensor (1000,), torch.float32, cpu>"
    assert any("raise LookupError" in text for _, text in report.frames[1].source)
    assert "raise LookupError" in str(report)


class _Wrong(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 4)

    def forward(self, x):
        hidden = self.layer(x)
        return hidden @ x


def test_an_error_in_a_model_s_forward_shows_its_lines_and_torch_s_but_not_ours():
    def train():
        accelerator = nbaccel.Accelerator(cpu=True, mixed_precision="bf16")
        data = torch.utils.data.DataLoader(torch.ones(8, 3), batch_size=2)
        model, data = accelerator.prepare(_Wrong(), data)
        for batch in data:
            model(batch)

    with pytest.raises(RuntimeError, match="shapes") as caught:
        notebook_launcher(train, num_processes=2, cpu=True)
    package = os.path.dirname(nbaccel.__file__)
    frames = traceback.extract_tb(caught.value.__traceback__)
    names = [frame.name for frame in frames]
    assert not [frame for frame in frames if frame.filename.startswith(package)]
    assert names[-1] == "forward"
    assert frames[-1].line == "return hidden @ x"
    assert "_call_impl" in names[names.index("train") :]
    # All of them are in the text, for who looks for the fault in this package.
    assert package in caught.value.remote_traceback
    told = str(nbaccel.last_failure())
    assert package not in told
    assert "nn/modules/module.py" in told
    assert "forward_call" not in told
    assert told.index("hidden = tensor(") < told.index("self = _Wrong( (layer): Linear(")


def test_hang_help_says_who_waits_where(capsys, monkeypatch):
    from nbaccel.launch.supervision import hang

    monkeypatch.setattr(hang, "LOOK_EVERY", 0.4)

    def mismatch():
        dist.init_process_group("gloo")
        if _rank() == 1:
            dist.barrier()  # nobody else comes here

    with pytest.raises(LaunchTimeout):
        notebook_launcher(mismatch, num_processes=2, timeout=8)
    line = mismatch.__code__.co_firstlineno + 3
    expected = f"rank 1 waits in barrier at test_failures.py, line {line}; rank 0 has finished"
    assert capsys.readouterr().err.count(expected) == 1


def test_hang_help_keeps_quiet_while_one_rank_works(capsys, monkeypatch):
    from nbaccel.launch.supervision import hang

    monkeypatch.setattr(hang, "LOOK_EVERY", 0.2)

    def evaluate_on_the_main_rank():
        dist.init_process_group("gloo")
        if _rank() == 0:
            time.sleep(3)  # as good as a download: not in a collective
        dist.barrier()

    notebook_launcher(evaluate_on_the_main_rank, num_processes=2, timeout=60)
    assert "wait" not in capsys.readouterr().err


def test_consequences_are_told_from_causes():
    assert failures.is_consequence(RuntimeError("[x/pair.cc:553] Connection closed by peer [127.0.0.1]:1"))
    assert not failures.is_consequence(ValueError("Connection closed by peer"))
    assert not failures.is_consequence(RuntimeError("shape mismatch"))


@pytest.mark.parametrize(
    ("ranks", "text"),
    [([3], "rank 3"), ([0, 1, 2, 5], "ranks 0-2, 5"), ([4, 2, 0], "ranks 0, 2, 4"), ([1, 0], "ranks 0-1")],
)
def test_ranks_are_described_in_short(ranks, text):
    assert failures.describe_ranks(ranks) == text


def test_a_daemon_that_left_its_worker_s_session_ends_with_the_launch():
    def leave_a_daemon():
        import subprocess

        return subprocess.Popen(["sleep", "300"], start_new_session=True).pid

    pid = notebook_launcher(leave_a_daemon)
    deadline = time.monotonic() + 5
    while _is_alive(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not _is_alive(pid)
