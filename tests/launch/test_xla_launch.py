"""Launches on XLA devices: real workers, a TPU host and a torch_xla that are stand-ins.

What is proven here is the launcher's part: which processes and threads there are, what each is told, that
values,
output, failures and ends are those of any launch. That libtpu takes what it is told, isn't.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from nbaccel import notebook_launcher
from nbaccel.config import LaunchSpec
from nbaccel.errors import LaunchError, LaunchTimeout, WorkerDied
from nbaccel.launch import launcher
from nbaccel.launch import session as session_module
from nbaccel.launch.devices import discovery
from nbaccel.launch.devices.discovery import Discovery
from nbaccel.launch.group import xla
from nbaccel.launch.session import Session
from tests.launch.fake_tpu import PACKAGES, V3, V5E, FakeTpuHost, FakeTpuMachine


@pytest.fixture(autouse=True)
def stand_in(monkeypatch):
    """Workers find the stand-in for torch_xla; this process must not import it."""
    monkeypatch.syspath_prepend(PACKAGES)
    yield
    assert "torch_xla" not in sys.modules


@pytest.fixture
def host(tmp_path: Path, monkeypatch) -> FakeTpuHost:
    host = FakeTpuHost(tmp_path / "host")
    monkeypatch.setattr(discovery, "_discovery", Discovery(FakeTpuMachine(host)))
    return host


@pytest.fixture
def rehearsal(monkeypatch):
    """torch_xla's CPU client: ranks that are threads of one process."""

    def arrange(ranks: int) -> None:
        monkeypatch.setenv("PJRT_DEVICE", "CPU")
        monkeypatch.setenv("CPU_NUM_DEVICES", str(ranks))

    monkeypatch.setattr(discovery, "_discovery", Discovery(discovery.ThisMachine()))
    return arrange


def _rank() -> int:
    from nbaccel.runtime.environment import ProcessEnvironment

    return ProcessEnvironment.detect().rank


# --- one process a chip ----------------------------------------------------------------------------


def _told() -> dict[str, str | None]:
    names = ("PJRT_DEVICE", "RANK", "WORLD_SIZE", "LOCAL_RANK")
    prefixes = ("TPU_", "CLOUD_TPU_", "PJRT_LOCAL")
    return {name: value for name, value in os.environ.items() if name in names or name.startswith(prefixes)}


def test_each_process_is_told_of_its_chip_before_torch_xla_is_imported(host, monkeypatch):
    host.plug_in(V5E, 4)
    # Set by images of hosted notebooks, for one process.
    monkeypatch.setenv("TPU_PROCESS_ADDRESSES", "local")
    monkeypatch.setenv("CLOUD_TPU_TASK_ID", "0")
    told = notebook_launcher(_told, returns="all")
    assert [each["TPU_VISIBLE_CHIPS"] for each in told] == ["0", "1", "2", "3"]
    assert [each["CLOUD_TPU_TASK_ID"] for each in told] == ["0", "1", "2", "3"]
    assert [each["RANK"] for each in told] == ["0", "1", "2", "3"]
    ports = [int(each["TPU_PROCESS_PORT"]) for each in told]
    assert ports == list(range(ports[0], ports[0] + 4))
    assert {each["TPU_PROCESS_ADDRESSES"] for each in told} == {",".join(f"localhost:{p}" for p in ports)}
    assert {each["TPU_PROCESS_BOUNDS"] for each in told} == {"2,2,1"}
    assert {each["TPU_CHIPS_PER_PROCESS_BOUNDS"] for each in told} == {"1,1,1"}
    assert {each["PJRT_DEVICE"] for each in told} == {"TPU"}
    assert [each["PJRT_LOCAL_PROCESS_RANK"] for each in told] == ["0", "1", "2", "3"]
    assert {each["WORLD_SIZE"] for each in told} == {"4"}
    assert os.environ["TPU_PROCESS_ADDRESSES"] == "local"  # the kernel's own stays


def test_one_core_is_told_of_no_others(host, monkeypatch):
    host.plug_in(V5E, 4)
    monkeypatch.setenv("TPU_PROCESS_ADDRESSES", "local")
    told = notebook_launcher(_told, num_processes=1)
    assert told["TPU_VISIBLE_CHIPS"] == "0"
    assert told["TPU_PROCESS_BOUNDS"] == "1,1,1"
    assert not {"TPU_PROCESS_ADDRESSES", "TPU_PROCESS_PORT", "CLOUD_TPU_TASK_ID"} & set(told)


def test_the_chip_that_the_user_chose_is_kept(host, monkeypatch):
    host.plug_in(V5E, 4)
    monkeypatch.setenv("TPU_VISIBLE_CHIPS", "2")
    assert notebook_launcher(_told)["TPU_VISIBLE_CHIPS"] == "2"


def _started() -> list[str]:
    import torch_xla
    from torch_xla._internal import pjrt

    return [*map(str, torch_xla.calls), str(pjrt.arguments[0])]


def test_the_runtime_is_started_as_torch_xlas_own_launcher_does(host, monkeypatch):
    host.plug_in(V5E, 4)
    calls = notebook_launcher(_started, returns="all")
    assert [each[0] for each in calls] == ["initialize_multiprocess"] * 4
    assert [each[-1] for each in calls] == [f"({rank}, 4)" for rank in range(4)]
    assert notebook_launcher(_started, num_processes=1)[0] == "initialize_singleprocess"


def test_ranks_are_the_ordinals_that_the_hardware_gives(host, monkeypatch, capsys):
    """Values, labels and failures by ordinal, whatever order the processes were started in."""
    host.plug_in(V5E, 4)
    monkeypatch.setenv("FAKE_XLA_ORDINALS", "2,0,3,1")

    def train():
        print("chip", os.environ["TPU_VISIBLE_CHIPS"])
        return _rank(), os.environ["RANK"], os.environ["TPU_VISIBLE_CHIPS"]

    values = notebook_launcher(train, returns="all")
    assert values == [(0, "0", "1"), (1, "1", "3"), (2, "2", "0"), (3, "3", "2")]
    assert notebook_launcher(train) == values[0]
    lines = capsys.readouterr().out.splitlines()
    for rank, _, chip in values:
        assert lines.count(f"[rank {rank}] chip {chip}") == 2

    def fail():
        if _rank() == 2:
            raise ZeroDivisionError
        time.sleep(30)

    with pytest.raises(ZeroDivisionError) as caught:
        notebook_launcher(fail)
    assert caught.value.rank == 2


def test_cores_of_several_machines_are_refused_with_the_reason(host, monkeypatch):
    host.plug_in(V5E, 4)
    monkeypatch.setenv("FAKE_XLA_ORDINALS", "4,5,6,7")
    with pytest.raises(LaunchError, match="one of several machines of a slice"):
        notebook_launcher(_rank)


def test_B176_a_runtime_that_does_not_start_is_told_with_its_own_words(host, monkeypatch):
    host.plug_in(V5E, 4)
    fault = "TPU initialization failed: open(/dev/vfio/0): Device or resource busy"
    monkeypatch.setenv("FAKE_XLA_FAULT", fault)
    said = "the XLA runtime did not start: TPU init.*another process holds"
    with pytest.raises(LaunchError, match=said) as caught:
        notebook_launcher(_rank)
    assert str(caught.value.__cause__) == fault


def test_B175_a_crash_names_the_signal_and_the_rank(host):
    host.plug_in(V5E, 4)

    def crash():
        if _rank() == 1:
            os.kill(os.getpid(), signal.SIGSEGV)
        time.sleep(30)

    with pytest.raises(WorkerDied, match=r"rank 1 died: .*SIGSEGV") as caught:
        notebook_launcher(crash)
    assert (caught.value.rank, caught.value.signal) == (1, signal.SIGSEGV)


def test_B176_last_words_on_fd_2_are_in_the_message(host):
    host.plug_in(V5E, 4)

    def abort():
        if _rank() == 0:
            os.write(2, b"fatal: xyz\n")
            os.abort()
        time.sleep(30)

    with pytest.raises(WorkerDied, match="fatal: xyz"):
        notebook_launcher(abort)


def test_cells_keep_their_state_where_each_rank_is_a_process(host):
    host.plug_in(V5E, 4)
    session = Session(LaunchSpec(4, device_type="xla", devices=(0, 1, 2, 3), hardware="tpu v5e-4"))
    try:
        session.push(v=1)
        assert session.run(lambda: (_rank(), os.getpid())) == session.run(lambda: (_rank(), os.getpid()))
        with pytest.raises(KeyError):
            session.run(lambda: {}["none"])
        assert session.pull("v") == 1
        assert [row["device"] for row in session.status()] == [f"xla:{rank}" for rank in range(4)]
    finally:
        session.stop()


# --- training on several processes: gloo in place of the chips' network -------------------------------


def _train(steps: int = 6, **options):
    from torch.utils.data import DataLoader, TensorDataset

    from nbaccel import Accelerator

    accelerator = Accelerator(**options)
    x = torch.randn(40, 3, generator=torch.Generator().manual_seed(1))
    model = torch.nn.Linear(3, 1)
    with torch.no_grad():
        model.weight.fill_(0.1 * (accelerator.process_index + 1))  # rank 0's goes to all
        model.bias.zero_()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=2)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for inputs, targets in loader:
        accelerator.backward(((model(inputs) - targets) ** 2).mean())
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    vars(sys.modules["__main__"]).update(accelerator=accelerator, model=model, optimizer=optimizer)
    weights = torch.cat([p.detach().flatten() for p in accelerator.unwrap_model(model).parameters()])
    gathered = accelerator.gather_for_metrics(torch.tensor([accelerator.process_index]))
    return str(accelerator.distributed_type), accelerator.num_processes, weights, gathered.tolist()


def test_several_processes_train_as_gloo_ranks_do(host):
    host.plug_in(V5E, 4)
    on_tpu = notebook_launcher(_train, returns="all")
    on_cpu = notebook_launcher(_train, num_processes=4, cpu=True, returns="all")
    for (kind, world, ours, ranks), (_, _, theirs, _) in zip(on_tpu, on_cpu, strict=True):
        assert (kind, world, ranks) == ("DistributedType.XLA", 4, [0, 1, 2, 3])
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)
        assert torch.equal(ours, on_tpu[0][2])


@pytest.fixture
def cells(host):
    host.plug_in(V5E, 4)
    session = Session(LaunchSpec(4, device_type="xla", devices=(0, 1, 2, 3), hardware="tpu v5e-4"))
    yield session
    session.stop()


def _step_apart(then: str, started: Path | None = None):
    """Steps of a rank's own, as many as its number and one; then it fails, waits, or meets the others."""
    names = vars(sys.modules["__main__"])
    accelerator, model, optimizer = names["accelerator"], names["model"], names["optimizer"]
    data = torch.ones(1, 3)
    for _ in range(accelerator.process_index + 1):
        with accelerator.no_sync(model):
            accelerator.backward(model(data).sum())
            optimizer.step()
            optimizer.zero_grad()
    accelerator.backward(model(data).sum())  # a window of accumulation that is broken off
    if started is not None:
        (started / str(accelerator.process_index)).touch()
    elif accelerator.process_index == 1:
        raise ZeroDivisionError
    if then == "meets":
        accelerator.wait_for_everyone()
    while True:
        time.sleep(0.01)


def _state():
    names = vars(sys.modules["__main__"])
    model, optimizer = names["model"], names["optimizer"]
    parameters = list(model.parameters())
    moments = [optimizer.state[parameter]["exp_avg"] for parameter in parameters]
    steps = [float(optimizer.state[parameter]["step"]) for parameter in parameters]
    return [t.detach().flatten().tolist() for t in (*parameters, *moments)], steps, parameters[0].grad


def _step_together():
    names = vars(sys.modules["__main__"])
    accelerator, model, optimizer = names["accelerator"], names["model"], names["optimizer"]
    accelerator.backward(model(torch.full((1, 3), float(accelerator.process_index))).sum())
    optimizer.step()
    return _state()


def test_cores_are_alike_again_after_a_cell_that_stopped_at_different_places(cells, capsys):
    cells.run(_train)
    pids = cells.run(os.getpid)
    with pytest.raises(ZeroDivisionError):
        cells.run(_step_apart, "waits")
    states = cells.run(_state)
    assert cells.run(os.getpid) == pids
    assert states == [states[0]] * 4
    assert states[0][1:] == ([6.0, 6.0], None)  # five steps of the loader, and rank 0's one
    after = cells.run(_step_together)
    assert [state[:2] for state in after] == [after[0][:2]] * 4
    assert after[0][0] != states[0][0]
    assert not capsys.readouterr().err


def test_cores_are_alike_again_after_an_interrupt(cells, tmp_path, interrupt_when):
    cells.run(_train)
    pids = cells.run(os.getpid)
    interrupt_when("0", "1", "2", "3")
    with pytest.raises(KeyboardInterrupt):
        cells.run(_step_apart, "waits", tmp_path)
    states = cells.run(_state)
    assert cells.run(os.getpid) == pids
    assert states == [states[0]] * 4
    assert states[0][1:] == ([6.0, 6.0], None)


def test_uneven_inputs_are_left_to_even_batches(cells):
    """All ranks must take the same steps: there is nothing to join, and that is said."""

    def join():
        import warnings

        from nbaccel import Accelerator

        accelerator = Accelerator()
        model = accelerator.prepare(torch.nn.Linear(1, 1))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with accelerator.join_uneven_inputs([model]):
                accelerator.backward(model(torch.ones(1, 1)).sum())
        return [str(warning.message).partition(" on ")[0] for warning in caught]

    assert cells.run(join) == [["join_uneven_inputs does nothing"]] * 4


def test_cores_that_wait_in_a_collective_are_ended_in_one_line(cells, capsys):
    cells.run(_train)
    pids = cells.run(os.getpid)
    began = time.monotonic()
    with pytest.raises(ZeroDivisionError):
        cells.run(_step_apart, "meets")
    assert time.monotonic() - began < 20
    assert not cells.is_alive
    assert not set(cells.run(os.getpid)) & set(pids)
    first, second = capsys.readouterr().err.splitlines()
    assert first == "nbaccel: a worker did not stop and was ended: the names on the workers are gone"
    assert second.startswith("nbaccel: the workers were lost (")


def test_cores_that_do_not_come_to_rest_are_ended_in_one_line(cells, monkeypatch, capsys):
    monkeypatch.setattr(session_module, "REGROUP_PATIENCE", 1.0)
    monkeypatch.setenv("FAKE_XLA_STUCK", "2")
    cells.run(_train)
    with pytest.raises(ZeroDivisionError):
        cells.run(_step_apart, "waits")
    cells.start()
    told = capsys.readouterr().err
    assert "the cores were stopped in the middle of a collective" in told
    assert len(told.splitlines()) == 2


# --- ranks that are threads ------------------------------------------------------------------------


def test_two_cores_of_a_chip_are_two_threads_of_its_process(host, monkeypatch, capsys):
    host.plug_in(V3, 4)
    monkeypatch.setenv("FAKE_XLA_CORES", "2")

    def where():
        import torch_xla

        print("is here")
        chip, rank = os.environ["TPU_VISIBLE_CHIPS"], os.environ.get("RANK")
        return _rank(), os.getpid(), str(torch_xla.device()), chip, rank

    values = notebook_launcher(where, returns="all")
    assert [value[0] for value in values] == list(range(8))
    assert [values[rank][1] == values[rank + 1][1] for rank in (0, 2, 4, 6)] == [True] * 4
    assert len({value[1] for value in values}) == 4
    assert [value[2] for value in values] == ["cpu:0", "cpu:1"] * 4
    assert [value[3] for value in values] == ["0", "0", "1", "1", "2", "2", "3", "3"]
    assert {value[4] for value in values} == {None}  # it would be wrong for one of the two
    out = capsys.readouterr().out
    assert "nbaccel: 4 processes of 2 threads on tpu v2/v3-8" in out
    assert sorted(out.splitlines()[1:]) == [f"[rank {rank}] is here" for rank in range(8)]


def test_ordinals_are_found_for_threads_too(host, monkeypatch):
    host.plug_in(V3, 4)
    monkeypatch.setenv("FAKE_XLA_CORES", "2")
    monkeypatch.setenv("FAKE_XLA_ORDINALS", "6,7,0,1,2,3,4,5")
    values = notebook_launcher(lambda: (_rank(), os.environ["TPU_VISIBLE_CHIPS"]), returns="all")
    assert values == [(rank, str((1 + rank // 2) % 4)) for rank in range(8)]


_COUNT = """
def count(rank):
    global total
    for _ in range(2000):
        total += rank
    return total
"""


class Notebook:
    """Its instances must be the same class in all threads."""

    def __init__(self, rank: int) -> None:
        self.rank = rank


def test_each_thread_has_names_of_its_own(rehearsal, monkeypatch):
    rehearsal(4)
    main = sys.modules["__main__"]
    namespace = vars(main)
    exec(compile(_COUNT, "<cell>", "exec"), namespace)  # as a notebook's cell does
    monkeypatch.setattr(main, "total", 0, raising=False)
    try:
        count = namespace["count"]
        assert notebook_launcher(lambda: count(_rank()), returns="all") == [0, 2000, 4000, 6000]
    finally:
        del namespace["count"]


def test_values_of_classes_come_home_from_every_thread(rehearsal):
    rehearsal(3)
    values = notebook_launcher(lambda: Notebook(_rank()), returns="all")
    assert [(type(value), value.rank) for value in values] == [(Notebook, 0), (Notebook, 1), (Notebook, 2)]


def test_streams_of_threads_are_whole_and_in_order(rehearsal, capsys):
    rehearsal(4)

    def chatter():
        for number in range(200):
            print("out", number)
            print("err", number, file=sys.stderr)

    notebook_launcher(chatter)
    text = capsys.readouterr()
    for rank in range(4):
        label = f"[rank {rank}] "
        assert [line for line in text.out.splitlines() if line.startswith(label)] == [
            f"{label}out {number}" for number in range(200)
        ]
        assert [line for line in text.err.splitlines() if line.startswith(label)] == [
            f"{label}err {number}" for number in range(200)
        ]


def test_what_bypasses_python_is_told_as_the_first_rank_of_the_process(rehearsal, capsys):
    rehearsal(3)
    notebook_launcher(lambda: os.write(1, b"from C\n") if _rank() == 2 else None)
    assert capsys.readouterr().out.splitlines()[1:] == ["[rank 0] from C"]


def test_only_the_main_one_is_shown_when_asked(rehearsal, capsys):
    rehearsal(3)
    notebook_launcher(lambda: print("rank", _rank()), output="main")
    assert capsys.readouterr().out.splitlines()[1:] == ["rank 0"]


@pytest.mark.parametrize("rank", [0, 2])
def test_the_failure_of_a_thread_ends_the_others_at_once(rehearsal, rank):
    rehearsal(3)

    def fail():
        if _rank() == rank:
            raise ZeroDivisionError("mine")
        threading.Event().wait(60)

    began = time.monotonic()
    with pytest.raises(ZeroDivisionError, match="mine") as caught:
        notebook_launcher(fail)
    assert caught.value.rank == rank
    assert time.monotonic() - began < 30  # not the minute that the others wait
    others = [other for other in range(3) if other != rank]
    assert any("were stopped" in note for note in caught.value.__notes__), others


def test_a_thread_that_exits_ends_only_its_function(rehearsal):
    rehearsal(2)
    assert notebook_launcher(lambda: sys.exit() if _rank() else 5, returns="all") == [5, None]
    with pytest.raises(WorkerDied, match=r"rank 1 called sys.exit\(3\)") as caught:
        notebook_launcher(lambda: sys.exit(3) if _rank() else None)
    assert caught.value.exitcode == 3


def test_the_end_of_the_process_is_the_end_of_all_its_ranks(rehearsal):
    rehearsal(2)

    def die():
        if _rank() == 1:
            os._exit(9)
        threading.Event().wait(60)

    with pytest.raises(WorkerDied) as caught:
        notebook_launcher(die)
    assert caught.value.exitcode == 9
    assert str(caught.value) == "the process of ranks 0-1 died: exit code 9"
    assert "also" not in "".join(getattr(caught.value, "__notes__", ()))


def test_an_interrupt_reaches_threads(rehearsal, tmp_path, interrupt_when):
    rehearsal(2)
    interrupt_when("0", "1")

    def loop():
        (tmp_path / str(_rank())).touch()
        try:
            while True:
                time.sleep(0.001)
        except KeyboardInterrupt:
            (tmp_path / f"interrupted-{_rank()}").touch()
            raise

    with pytest.raises(KeyboardInterrupt):
        notebook_launcher(loop)
    assert (tmp_path / "interrupted-0").exists()
    assert (tmp_path / "interrupted-1").exists()


def test_B070_stopping_a_launch_that_hangs_leaves_no_process(rehearsal, tmp_path, interrupt_when):
    """No exception reaches a thread that waits for a lock. A fixture sees to it that nobody is left."""
    rehearsal(3)
    interrupt_when("0", "1", "2")

    def hang():
        (tmp_path / str(_rank())).touch()
        threading.Event().wait(100)

    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        notebook_launcher(hang)
    assert time.monotonic() - began < 30  # not what they would wait


def test_a_time_limit_tells_where_each_thread_is(rehearsal):
    rehearsal(2)

    def wait_here():
        threading.Event().wait(60)

    def wait_there():
        threading.Event().wait(60)

    with pytest.raises(LaunchTimeout) as caught:
        notebook_launcher(lambda: wait_there() if _rank() else wait_here(), timeout=4)
    first, second = str(caught.value).split("--- rank 1 ---")
    assert "in wait_here" in first
    assert "in wait_there" not in first
    assert "in wait_there" in second


def test_B150_large_data_is_mapped_and_not_copied(rehearsal):
    """Each rank maps the same memory; only what it writes is its own."""
    import numpy as np

    rehearsal(4)

    def look(data):
        total = int(data.sum())
        if _rank() == 1:
            data[0] = 7
        return total, int(data[0]), _own_kib()

    [*_, (_, _, without)] = notebook_launcher(look, (np.ones(1, dtype=np.uint8),), returns="all")
    data = np.ones(64 << 20, dtype=np.uint8)
    values = notebook_launcher(look, (data,), returns="all")
    assert [value[0] for value in values] == [64 << 20] * 4
    assert [value[1] for value in values] == [1, 7, 1, 1]
    # Against a launch that was given next to nothing: a copy for whoever it may be would be 64 MiB.
    assert max(value[2] for value in values) - without < 32 << 10
    assert data[0] == 1


def _own_kib() -> int:
    """Memory of this process that is its own: pages that were copied, not those that are mapped."""
    text = Path("/proc/self/smaps_rollup").read_text()
    return int(text.split("Anonymous:")[1].split()[0])


def test_again_and_again(rehearsal):
    rehearsal(2)
    assert [notebook_launcher(_rank, returns="all") for _ in range(3)] == [[0, 1]] * 3


def test_cells_need_a_process_a_rank(rehearsal):
    rehearsal(2)
    spec = LaunchSpec(2, device_type="xla", devices=(0, 1), threads_per_process=2, hardware="tpu v3-8")
    with pytest.raises(LaunchError, match=r"tpu v3-8 runs 2 ranks as threads.*notebook_launcher"):
        Session(spec).start()


def test_from_a_fork_of_the_kernel_too(rehearsal):
    rehearsal(2)
    assert notebook_launcher(_rank, returns="all", start_method="fork") == [0, 1]


# --- who holds the device --------------------------------------------------------------------------

TPU = LaunchSpec(8, device_type="xla", devices=tuple(range(8)), hardware="tpu v5e-8")


class _Library:
    """What the kernel has of torch_xla after a cell has imported it."""

    def __init__(self, *, runs: bool) -> None:
        self._XLAC = self
        self.runs = runs

    def _xla_runtime_is_initialized(self) -> bool:
        return self.runs

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        raise AssertionError(f"torch_xla.{name} was used in the kernel")


@pytest.mark.parametrize("environ", [{"PJRT_DEVICE": "TPU"}, {"PJRT_DEVICE": "CPU"}])
def test_B173_a_kernel_that_holds_the_device_is_told_before_anything_starts(monkeypatch, tmp_path, environ):
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "torch_xla", _Library(runs=True))
        with pytest.raises(LaunchError, match=r"this kernel holds the tpu v5e-8 already.*restart the kernel"):
            xla.check_free(TPU, environ, tmp_path)
        patch.setitem(sys.modules, "torch_xla", _Library(runs=False))
        xla.check_free(TPU, environ, tmp_path)


def test_B173_the_launcher_asks_nothing_else_of_torch_xla(rehearsal, monkeypatch):
    rehearsal(2)
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "torch_xla", _Library(runs=False))
        assert notebook_launcher(_rank, returns="all") == [0, 1]
        patch.setitem(sys.modules, "torch_xla", _Library(runs=True))
        patch.setattr(launcher, "WorkerGroup", None)  # nothing may be started any more
        with pytest.raises(LaunchError, match="holds the xla cpu client already"):
            notebook_launcher(_rank)


@pytest.mark.parametrize(
    ("pid", "name", "said"),
    [
        (None, "python", r"this kernel has /dev/accel0 open.*jax and tensorflow"),
        (77, "nbaccel rank 0", r"in use by workers that stay \(process 77.*%accelerate stop"),
        (77, "python3", r"in use by process 77 \(python3\), which has /dev/accel0 open.*shut down"),
    ],
)
def test_B172_whoever_holds_the_chip_is_named(tmp_path, pid, name, said):
    host = FakeTpuHost(tmp_path)
    host.open_in(78, "sshd", "/dev/null")
    host.open_in(79, "qemu", "/dev/vfio/vfio")
    xla.check_free(TPU, {}, tmp_path)
    host.open_in(pid or os.getpid(), name, "/dev/accel0")
    with pytest.raises(LaunchError, match=said):
        xla.check_free(TPU, {}, tmp_path)
    xla.check_free(TPU, {"PJRT_DEVICE": "CPU"}, tmp_path)
    xla.check_free(LaunchSpec(2), {}, tmp_path)


def test_ports_that_are_in_use_are_passed_over():
    import socket

    with socket.socket() as taken:
        taken.bind(("", xla.BASE_PORT + 2))
        taken.listen()
        told, _ = xla.environ_maker(TPU, {})(0)
    assert int(told["TPU_PROCESS_PORT"]) == xla.BASE_PORT + 8
