"""Workers that stay: state, failures that cost nothing, interrupts at the same step."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist

import nbaccel
from nbaccel import Accelerator, LaunchTimeout, WorkerDied
from nbaccel.launch.current import current_session, stop_session
from nbaccel.launch.request.resolve import resolve_spec
from nbaccel.launch.session import Session


@pytest.fixture
def session(capsys) -> Iterator[Session]:
    """Two workers on the CPU."""
    yield nbaccel.session(2, cpu=True)
    stop_session()


def _rank() -> int:
    return int(os.environ["RANK"])


def _set(name, value):
    import __main__

    setattr(__main__, name, value)


def _get(name):
    import __main__

    return getattr(__main__, name)


def _sum_of_ones():
    ones = torch.ones(2)
    dist.all_reduce(ones)
    return ones.tolist()


def _arrive(folder):
    (folder / f"rank{os.environ['RANK']}").touch()


def test_state_stays_from_task_to_task(session):
    pids = session.run(os.getpid)
    session.run(_set, "x", 3)
    assert session.run(_get, "x") == [3, 3]
    assert session.run(os.getpid) == pids


def test_the_process_group_is_up_from_the_first_task(session):
    assert session.run(_sum_of_ones) == [[2.0, 2.0]] * 2


def test_a_group_of_one():
    try:
        assert nbaccel.session(1, cpu=True).run(_sum_of_ones) == [[1.0, 1.0]]
    finally:
        stop_session()


def test_code_of_a_script_that_brings_the_group_up_goes_on(session):
    def pasted():
        dist.init_process_group("gloo")
        return _sum_of_ones()

    assert session.run(pasted) == [[2.0, 2.0]] * 2

    def another_world():
        dist.init_process_group("gloo", rank=0, world_size=7)

    with pytest.raises(ValueError, match="twice"):
        session.run(another_world)


def test_a_group_that_the_user_ended_is_back_in_the_next_task(session):
    session.run(dist.destroy_process_group)
    assert session.run(_sum_of_ones) == [[2.0, 2.0]] * 2


def test_some_ranks_only(session):
    session.run(_set, "x", 0)
    assert session.run(_rank, ranks=[1]) == [1]
    session.run(_set, "x", 5, ranks=[1])
    assert session.run(_get, "x") == [0, 5]
    with pytest.raises(ValueError, match=r"ranks=\[2\]: this session has ranks 0-1"):
        session.run(_rank, ranks=[2])


def test_B164_a_failure_of_one_ends_the_task_and_nothing_else(session):
    session.run(_set, "x", 3)
    pids = session.run(os.getpid)

    def fail():
        if _rank() == 0:
            1 / 0  # noqa: B018
        dist.barrier()

    with pytest.raises(ZeroDivisionError) as caught:
        session.run(fail, timeout=60)
    assert caught.value.rank == 0
    assert session.run(os.getpid) == pids
    assert session.run(_get, "x") == [3, 3]
    assert session.run(_sum_of_ones) == [[2.0, 2.0]] * 2


def test_all_ranks_fail(session):
    def fail():
        raise LookupError("everywhere")

    with pytest.raises(LookupError):
        session.run(fail)
    assert session.run(_sum_of_ones) == [[2.0, 2.0]] * 2


def test_ranks_that_compute_are_stopped_when_another_fails(session):
    def fail():
        if _rank() == 1:
            raise LookupError("one")
        while True:
            sum(range(1000))

    with pytest.raises(LookupError):
        session.run(fail, timeout=60)
    assert session.run(_sum_of_ones) == [[2.0, 2.0]] * 2


def test_B164_a_timeout_stops_the_task(session):
    def mismatch():
        if _rank() == 0:
            dist.barrier()
        else:
            dist.all_reduce(torch.ones(3))
        time.sleep(300)

    session.run(_set, "x", 3)
    with pytest.raises(LaunchTimeout, match="all_reduce"):
        session.run(mismatch, timeout=1)
    assert session.run(_get, "x") == [3, 3]
    assert session.run(_sum_of_ones) == [[2.0, 2.0]] * 2


def test_sys_exit_does_not_end_a_worker(session):
    pids = session.run(os.getpid)
    with pytest.raises(WorkerDied, match=r"called sys.exit\(3\)"):
        session.run(sys.exit, 3)
    assert session.run(sys.exit) == [None, None]
    assert session.run(os.getpid) == pids


def test_a_value_that_cannot_be_sent_costs_nothing(session):
    with pytest.raises(TypeError, match="lock"):
        session.run(threading.Lock)
    assert session.run(_rank) == [0, 1]


@pytest.mark.parametrize("where", ["sleeping", "computing", "in a collective", "ignoring interrupts"])
def test_B068_an_interrupt_stops_the_task_and_keeps_the_workers(session, interrupt_when, tmp_path, where):
    def busy():
        if where == "ignoring interrupts":
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        _arrive(tmp_path)
        if where == "computing":
            while True:
                sum(range(1000))
        if where in ("in a collective", "ignoring interrupts") and _rank() == 0:
            dist.barrier()
        elif where == "ignoring interrupts":
            dist.all_reduce(torch.ones(3))
        time.sleep(300 if where != "ignoring interrupts" else 0)

    session.run(_set, "v", 1)
    pids = session.run(os.getpid)
    interrupt_when("rank0", "rank1")
    expected = KeyboardInterrupt
    with pytest.raises(expected):
        session.run(busy, timeout=60)
    assert session.run(_get, "v") == [1, 1]
    assert session.run(os.getpid) == pids
    assert session.run(_sum_of_ones) == [[2.0, 2.0]] * 2


def test_a_worker_that_cannot_be_stopped_costs_the_group(session, interrupt_when, tmp_path, capsys):
    def stubborn():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        _arrive(tmp_path)
        time.sleep(300)

    pids = session.run(os.getpid)
    interrupt_when("rank0", "rank1")
    with pytest.raises(KeyboardInterrupt):
        session.run(stubborn, timeout=60)
    assert not session.is_alive
    assert "did not stop and was ended: the names on the workers are gone" in capsys.readouterr().err
    assert session.run(os.getpid) != pids
    said = capsys.readouterr().err
    assert "the workers were lost (a worker did not stop at a KeyboardInterrupt)" in said


def test_a_dead_worker_costs_its_group_and_the_next_task_says_so(session, capsys):
    session.run(_set, "x", 3)

    def die():
        if _rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        dist.barrier()

    with pytest.raises(WorkerDied) as caught:
        session.run(die)
    assert caught.value.rank == 1
    with pytest.raises(AttributeError):
        session.run(_get, "x")
    assert "the workers were lost (WorkerDied: rank 1 was killed by SIGKILL" in capsys.readouterr().err
    assert session.run(_sum_of_ones) == [[2.0, 2.0]] * 2


def test_a_worker_that_dies_between_tasks_is_noticed(session, capsys):
    pids = session.run(os.getpid)
    os.kill(pids[1], signal.SIGKILL)
    deadline = time.monotonic() + 10
    while os.path.exists(f"/proc/{pids[1]}") and time.monotonic() < deadline:
        time.sleep(0.01)
    with pytest.raises(WorkerDied):
        session.run(_sum_of_ones, timeout=60)
    assert session.run(_sum_of_ones) == [[2.0, 2.0]] * 2


# --- training goes on -----------------------------------------------------------------------------


def _prepare():
    import __main__

    torch.manual_seed(_rank())
    accelerator = Accelerator(cpu=True)
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 10)
    data = torch.utils.data.DataLoader(torch.randn(64, 4), batch_size=4)
    prepared = accelerator.prepare(model, optimizer, data, schedule)
    __main__.accelerator = accelerator
    __main__.model, __main__.optimizer, __main__.data, __main__.schedule = prepared


def _train(epochs, folder=None, fail_at=None):
    from __main__ import accelerator, data, model, optimizer, schedule

    steps = 0
    for _ in range(epochs):
        for batch in data:
            optimizer.zero_grad()
            accelerator.backward(model(batch).square().mean())
            if fail_at is not None and steps == fail_at and _rank() == 1:
                raise LookupError("in the middle")
            optimizer.step()
            schedule.step()
            steps += 1
            if folder is not None and steps == 3:
                _arrive(folder)
    return steps


def _replica():
    from __main__ import model, optimizer, schedule

    state = [value for entry in optimizer.state.values() for value in entry.values()]
    tensors = [*model.parameters(), *state]
    flat = torch.cat([tensor.detach().float().reshape(-1) for tensor in tensors])
    return flat, schedule.last_epoch, optimizer.steps_taken


def _replicas_are_equal(session) -> bool:
    (first, epoch, _), (second, other_epoch, _) = session.run(_replica)
    return torch.equal(first, second) and epoch == other_epoch


def test_the_first_interrupt_stops_all_ranks_at_the_same_step(session, interrupt_when, tmp_path):
    session.run(_prepare)
    interrupt_when("rank0", "rank1")
    with pytest.raises(KeyboardInterrupt):
        session.run(_train, 1_000_000, tmp_path, timeout=90)
    (first, _, steps), (second, _, other_steps) = session.run(_replica)
    assert steps == other_steps > 3
    assert torch.equal(first, second)
    session.run(_train, 1)
    assert _replicas_are_equal(session)


def test_steps_of_earlier_tasks_are_not_taken_for_training_at_hand(
    session, interrupt_when, tmp_path, monkeypatch
):
    from nbaccel.launch.supervision.task_supervision import TaskSupervisor

    stopped_together = []
    original = TaskSupervisor._stop_at_the_same_step

    def note(self):
        outcome = original(self)
        stopped_together.append([member.steps_before for member in self._group.members])
        stopped_together.append([member.steps for member in self._group.members])
        return outcome

    def sleep():
        _arrive(tmp_path)
        time.sleep(300)

    monkeypatch.setattr(TaskSupervisor, "_stop_at_the_same_step", note)
    session.run(_prepare)
    session.run(_train, 1)
    interrupt_when("rank0", "rank1")
    with pytest.raises(KeyboardInterrupt):
        session.run(sleep, timeout=60)
    before, after = stopped_together
    assert before == after == [8, 8]


def test_after_a_failure_in_the_middle_of_a_step_replicas_are_equal_and_training_goes_on(session):
    session.run(_prepare)
    session.run(_train, 1)
    with pytest.raises(LookupError):
        session.run(_train, 1, None, 2, timeout=60)
    assert _replicas_are_equal(session)
    before = session.run(_replica)[0][0]
    session.run(_train, 1)
    assert _replicas_are_equal(session)
    assert not torch.equal(before, session.run(_replica)[0][0])


def test_two_quick_interrupts_leave_equal_replicas_too(session, interrupt_when, tmp_path):
    session.run(_prepare)
    interrupt_when("rank0", "rank1", times=2)
    try:
        with pytest.raises(KeyboardInterrupt):
            session.run(_train, 1_000_000, tmp_path, timeout=90)
        time.sleep(0.3)  # the second may come when the task is over: it is the test's own then
    except KeyboardInterrupt:
        pass
    assert _replicas_are_equal(session)
    session.run(_train, 1)
    assert _replicas_are_equal(session)


# --- around -------------------------------------------------------------------------------------


def test_changes_around_the_kernel_reach_the_workers(session, tmp_path, monkeypatch):
    session.run(_rank)
    (tmp_path / "nbaccel_later_module.py").write_text("value = 42\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("NBACCEL_TEST_LATER", "set")

    def look():
        import nbaccel_later_module

        return os.getcwd(), os.environ.get("NBACCEL_TEST_LATER"), nbaccel_later_module.value

    assert session.run(look)[0] == (str(tmp_path), "set", 42)
    monkeypatch.delenv("NBACCEL_TEST_LATER")
    assert session.run(look)[0][1] is None


def test_what_a_worker_changed_itself_stays(session, tmp_path):
    session.run(os.chdir, str(tmp_path))
    assert session.run(os.getcwd) == [str(tmp_path)] * 2


def test_output_belongs_to_its_task(session, capsys):
    session.run(print, "first")
    assert sorted(capsys.readouterr().out.splitlines()[-2:]) == ["[rank 0] first", "[rank 1] first"]
    session.run(print, "second", output="main")
    assert capsys.readouterr().out == "second\n"
    session.run(print, "third", output="none")
    assert capsys.readouterr().out == ""


def test_output_of_threads_between_tasks_blocks_nobody_and_is_shown_with_the_next(session, capsys):
    def start_printing():
        threading.Thread(target=lambda: print("x" * 300_000 + "end"), daemon=True).start()

    session.run(start_printing, ranks=[0])
    deadline = time.monotonic() + 20
    shown = ""
    while "end" not in shown and time.monotonic() < deadline:
        session.run(_rank)
        shown += capsys.readouterr().out
    assert "x" * 1000 + "end" in shown.replace("\n", "")


def test_push_and_pull(session):
    session.push(a=torch.arange(3), b={"k": 1})
    assert session.run(_get, "b") == [{"k": 1}] * 2
    assert torch.equal(session.pull("a"), torch.arange(3))
    with pytest.raises(NameError, match="nothing"):
        session.pull("nothing")


def test_pull_takes_off_what_prepare_put_on(session):
    session.run(_prepare)
    assert type(session.pull("model")) is torch.nn.Linear
    assert type(session.pull("optimizer")) is torch.optim.Adam


def test_push_tells_when_it_replaces_what_was_prepared(session, capsys):
    session.run(_prepare)
    session.push(other=1)
    assert capsys.readouterr().err == ""
    session.push(model=torch.nn.Linear(1, 1), other=2)
    assert capsys.readouterr().err == (
        "nbaccel: model on the workers was prepared; the one that was sent is not: accelerator.prepare(...) "
        "it again\n"
    )
    session.push(model=torch.nn.Linear(1, 1))
    assert capsys.readouterr().err == ""


def test_status_tells_of_each_worker(session):
    pids = session.run(os.getpid)
    status = session.status()
    assert [(row["rank"], row["pid"], row["device"], row["doing"]) for row in status] == [
        (0, pids[0], "cpu", "idle"),
        (1, pids[1], "cpu", "idle"),
    ]
    assert all(row["memory"] > 1 << 20 for row in status)
    assert "idle" not in session.stacks() or "rank 1" in session.stacks()


def test_idle_workers_cost_no_processor_time(session):
    import psutil

    pids = session.run(os.getpid)
    before = [sum(psutil.Process(pid).cpu_times()[:2]) for pid in (*pids, os.getpid())]
    time.sleep(1)  # the time that is measured
    after = [sum(psutil.Process(pid).cpu_times()[:2]) for pid in (*pids, os.getpid())]
    assert all(late - early < 0.2 for early, late in zip(before, after, strict=True))


# --- one session a kernel ---------------------------------------------------------------------------


def test_the_running_session_is_reused_and_replaced(session, capsys):
    pids = session.run(os.getpid)
    assert nbaccel.session() is session
    assert nbaccel.session(2, cpu=True) is session
    assert nbaccel.session(mixed_precision="bf16") is session
    assert session.run(lambda: Accelerator(cpu=True).mixed_precision) == ["bf16", "bf16"]
    assert session.run(os.getpid) == pids
    other = nbaccel.session(1, cpu=True)
    assert other is not session
    assert "1 process on cpu, bf16 is asked for" in capsys.readouterr().out
    assert not session.is_alive
    fresh = nbaccel.session(1, cpu=True, fresh=True)
    assert fresh is not other
    assert current_session() is fresh


def test_a_second_task_at_once_is_refused(session, tmp_path):
    def wait():
        _arrive(tmp_path)
        while not (tmp_path / "go").exists():
            time.sleep(0.01)
        return "done"

    values: list[object] = []
    thread = threading.Thread(target=lambda: values.append(session.run(wait, timeout=60)))
    thread.start()
    deadline = time.monotonic() + 30
    while not (tmp_path / "rank0").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    with pytest.raises(RuntimeError, match="busy"):
        session.run(_rank)
    assert "busy" in session.status()[0]["doing"] or session.status()
    (tmp_path / "go").touch()
    thread.join()
    assert values == [["done", "done"]]


def test_B165_after_stop_nothing_is_left(session):
    session.run(_sum_of_ones)
    stop_session()
    assert current_session() is None
    assert not dist.is_initialized()


def test_a_launch_goes_on_beside_a_session(session):
    session.run(_set, "x", 3)
    assert nbaccel.notebook_launcher(_rank, num_processes=2, returns="all") == [0, 1]
    assert session.run(_get, "x") == [3, 3]


def test_spawned_workers_make_a_session_too():
    workers = Session(resolve_spec(num_processes=2, cpu=True), "spawn")
    try:
        assert workers.run(_sum_of_ones) == [[2.0, 2.0]] * 2
    finally:
        workers.stop()
