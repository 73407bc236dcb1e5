"""What ``notebook_launcher`` promises, whichever way the workers are started."""

from __future__ import annotations

import errno
import io
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from contextlib import redirect_stdout
from pathlib import Path

import psutil
import pytest
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

from nbaccel import debug_launcher, notebook_launcher
from nbaccel.config import active_spec
from nbaccel.errors import LaunchTimeout


def _rank() -> int:
    return int(os.environ["RANK"])


def _place():
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
    return tuple(int(os.environ[name]) for name in names)


def _all_reduce_ones():
    dist.init_process_group("gloo")
    ones = torch.ones(3)
    dist.all_reduce(ones)
    return ones


def test_each_rank_knows_its_place_and_returns_its_value(start_method):
    places = notebook_launcher(_place, num_processes=2, returns="all", start_method=start_method)
    assert places == [(0, 0, 2, 2), (1, 1, 2, 2)]


def test_the_main_rank_s_value_comes_back(start_method):
    assert notebook_launcher(_rank, num_processes=2, start_method=start_method) == 0


def test_raw_torch_distributed_works_and_tensors_come_home(start_method):
    value = notebook_launcher(_all_reduce_ones, num_processes=2, start_method=start_method)
    assert torch.equal(value, torch.full((3,), 2.0))


def test_arguments_and_keywords_arrive(start_method):
    def add(a, b, *, c):
        return a + b + c

    value = notebook_launcher(add, [1, 2], kwargs={"c": 3}, start_method=start_method)
    assert value == 6


def test_closures_and_lambdas_travel_by_value(start_method):
    k = 3
    helper = lambda x: x * k  # noqa: E731  # the case
    assert notebook_launcher(
        lambda: helper(4), num_processes=2, returns="all", start_method=start_method
    ) == [
        12,
        12,
    ]


def test_B114_precision_is_in_the_spec_of_the_worker_and_nowhere_else(start_method):
    def look():
        return active_spec().mixed_precision, [n for n in os.environ if "PRECISION" in n]

    before = dict(os.environ)
    assert notebook_launcher(look, mixed_precision="BF16", start_method=start_method) == ("bf16", [])
    assert notebook_launcher(look, start_method=start_method) == ("no", [])

    caller = os.getpid()

    def fail():
        raise ZeroDivisionError

    def be_stopped():
        os.kill(caller, signal.SIGINT)
        threading.Event().wait(30)

    for error, function in ((ZeroDivisionError, fail), (KeyboardInterrupt, be_stopped)):
        with pytest.raises(error):
            notebook_launcher(function, mixed_precision="fp16", start_method=start_method)
        assert notebook_launcher(look, start_method=start_method) == ("no", [])
    assert dict(os.environ) == before


def test_working_directory_path_and_environment_are_the_kernel_s(start_method, tmp_path, monkeypatch):
    (tmp_path / "nbaccel_local_module.py").write_text("def f():\n    return open('here.txt').read()\n")
    (tmp_path / "here.txt").write_text("found")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("NBACCEL_TEST_VALUE", "as of the launch")
    import nbaccel_local_module

    try:
        assert notebook_launcher(nbaccel_local_module.f, start_method=start_method) == "found"  # B038
        get = lambda: (os.environ["NBACCEL_TEST_VALUE"], os.environ["EXTRA"])  # noqa: E731
        assert notebook_launcher(get, start_method=start_method, env={"EXTRA": "1"}) == (
            "as of the launch",
            "1",
        )
    finally:
        del sys.modules["nbaccel_local_module"]


def test_threads_are_shared_out_between_local_processes():
    cores = len(os.sched_getaffinity(0))
    look = lambda: (torch.get_num_threads(), os.environ["OMP_NUM_THREADS"])  # noqa: E731
    for n in (1, 2):
        expected = max(1, cores // n)
        assert notebook_launcher(look, num_processes=n) == (expected, str(expected))


def test_omp_num_threads_of_the_user_holds(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    look = lambda: (torch.get_num_threads(), os.environ["OMP_NUM_THREADS"])  # noqa: E731
    assert notebook_launcher(look, num_processes=2) == (3, "3")


def test_sys_exit_without_a_code_counts_as_none(start_method):
    assert notebook_launcher(sys.exit, start_method=start_method) is None
    assert notebook_launcher(sys.exit, (0,), num_processes=2, start_method=start_method) is None


def test_a_line_says_what_is_launched(capsys):
    notebook_launcher(_rank, num_processes=2, mixed_precision="fp16", cpu=True)
    assert capsys.readouterr().out.splitlines()[0] == "nbaccel: 2 processes on cpu, fp16"


def test_B023_data_loader_workers_work_in_workers_and_end_with_them(start_method):
    def load():
        return [batch.sum().item() for batch in DataLoader(range(8), 4, num_workers=2)]

    values = notebook_launcher(load, num_processes=2, returns="all", start_method=start_method)
    assert values == [[6, 22], [6, 22]]


def test_B016_parallel_work_in_the_kernel_before_the_launch():
    x = torch.randn(600, 600)
    assert (x @ x).shape == (600, 600)
    product = lambda: float((torch.ones(600, 600) @ torch.ones(600, 600))[0, 0])  # noqa: E731
    assert notebook_launcher(product, num_processes=2, timeout=30) == 600.0


def test_B019_a_model_of_the_kernel_as_an_argument():
    model = torch.nn.Linear(2000, 2000)

    def clone_and_multiply(m):
        weight = m.weight.detach().clone()
        return float((weight @ weight)[0, 0])

    expected = float((model.weight @ model.weight)[0, 0])
    values = notebook_launcher(clone_and_multiply, (model,), num_processes=2, returns="all", timeout=60)
    assert values == pytest.approx([expected, expected], rel=1e-3)


def test_B017_fork_warns_of_parallel_work_before_it_starts(capsys):
    x = torch.randn(600, 600)
    assert (x @ x).shape == (600, 600)
    notebook_launcher(_rank, start_method="fork")
    assert "OpenMP" in capsys.readouterr().err


def test_B024_the_usual_port_is_taken():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert notebook_launcher(_rank, num_processes=2) == 0
        with pytest.raises(OSError, match=rf"{port} is in use"):
            notebook_launcher(_rank, num_processes=2, use_port=port)


def test_an_explicit_port_is_used():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    assert notebook_launcher(lambda: os.environ["MASTER_PORT"], use_port=str(port)) == str(port)


def test_B025_two_launches_at_once():
    values: dict[int, torch.Tensor] = {}

    def launch(number: int) -> None:
        values[number] = notebook_launcher(_all_reduce_ones, num_processes=2)

    threads = [threading.Thread(target=launch, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [values[number].tolist() for number in range(2)] == [[2.0] * 3] * 2


def test_B029_a_function_that_never_cleans_up_returns_every_time(capfd):
    for _ in range(20):
        assert notebook_launcher(_all_reduce_ones, num_processes=2, output="all").tolist() == [2.0] * 3
    assert capfd.readouterr().err == ""


def test_B149_a_launch_returns_when_its_processes_are_gone():
    for _ in range(10):
        pids = notebook_launcher(os.getpid, num_processes=2, returns="all")
        assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def test_B181_nothing_listens_beyond_loopback():
    def listening():
        dist.init_process_group("gloo")
        dist.barrier()
        inodes = {
            os.readlink(f"/proc/self/fd/{fd}")
            for fd in os.listdir("/proc/self/fd")
            if os.path.exists(f"/proc/self/fd/{fd}")
        }
        found = []
        for table in ("tcp", "tcp6"):
            for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
                    found.append(fields[1].split(":")[0])
        dist.barrier()
        return found

    loopback = {"0100007F", "00000000000000000000000001000000", "0000000000000000FFFF00000100007F"}
    for addresses in notebook_launcher(listening, num_processes=2, returns="all"):
        assert set(addresses) <= loopback


def test_the_store_listens_on_loopback_only():
    from nbaccel.launch.request.rendezvous import open_rendezvous

    rendezvous = open_rendezvous("127.0.0.1", None, num_nodes=1, node_rank=0)
    try:
        listening = [
            line.split()[1]
            for table in ("tcp", "tcp6")
            for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]
            if line.split()[1].endswith(f":{rendezvous.port:04X}") and line.split()[3] == "0A"
        ]
    finally:
        rendezvous.close()
    assert listening == [f"0100007F:{rendezvous.port:04X}"]


def test_B177_B179_two_launches_of_two_processes_make_one_world_of_four():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    values: dict[int, list[object]] = {}

    def gather():
        dist.init_process_group("gloo")
        found: list[object] = [None] * dist.get_world_size()
        dist.all_gather_object(found, _rank())
        return found

    def launch(node: int) -> None:
        values[node] = notebook_launcher(
            gather, num_processes=2, num_nodes=2, node_rank=node, use_port=port, timeout=60
        )

    threads = [threading.Thread(target=launch, args=(node,)) for node in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert values == {0: [0, 1, 2, 3], 1: [0, 1, 2, 3]}


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def test_B177_a_machine_that_does_not_come_is_named(capsys):
    port = _free_port()
    with pytest.raises(LaunchTimeout) as caught:
        notebook_launcher(_rank, num_processes=2, num_nodes=2, use_port=port, timeout=8)
    text = str(caught.value)
    assert "1 of 2 machines are here, machine 1 has not come" in text
    assert f"127.0.0.1:{port} within 6.4 s" in text
    assert "node_rank" in text
    assert f"waiting at 127.0.0.1:{port}: 1 of 2 machines are here" in capsys.readouterr().err


def test_B178_a_first_machine_that_nobody_hears_is_named_with_the_systems_reason():
    port = _free_port()
    with pytest.raises(LaunchTimeout) as caught:
        notebook_launcher(_rank, num_nodes=2, node_rank=1, use_port=port, timeout=5)
    text = str(caught.value)
    assert f"nobody answered at 127.0.0.1:{port} within 4 s" in text
    assert os.strerror(errno.ECONNREFUSED) in text


def test_B177_functions_without_collectives_wait_for_every_machine():
    port = _free_port()
    values: dict[int, object] = {}

    def launch(node: int) -> None:
        values[node] = notebook_launcher(
            _rank, num_processes=1, num_nodes=2, node_rank=node, use_port=port, timeout=60
        )

    threads = [threading.Thread(target=launch, args=(node,)) for node in (1, 0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert values == {0: 0, 1: 1}


def test_max_restarts_runs_the_function_anew(tmp_path, capsys):
    def fail_once():
        marker = tmp_path / "seen"
        # One rank alone: of two, the second might be stopped before it had left its mark.
        if _rank() == 1 and not marker.exists():
            marker.touch()
            raise ValueError("the first time")
        return "at last"

    assert notebook_launcher(fail_once, num_processes=2, max_restarts=1) == "at last"
    assert "starting anew" in capsys.readouterr().err
    (tmp_path / "seen").unlink()
    with pytest.raises(ValueError, match="the first time"):
        notebook_launcher(fail_once, num_processes=2, max_restarts=0)


def test_debug_launcher_runs_two_processes_on_the_cpu():
    assert debug_launcher(_place) == (0, 0, 2, 2)


def test_workers_are_named_in_process_listings(start_method):
    def look():
        return psutil.Process().name(), psutil.Process().cmdline()

    name, command = notebook_launcher(look, start_method=start_method)
    # Where a process can't rename itself, its command line tells.
    assert "nbaccel rank 0" in (name, command[-1])


def test_standard_output_may_be_replaced():
    text = io.StringIO()
    with redirect_stdout(text):
        notebook_launcher(lambda: print("hello"), num_processes=2)
    lines = sorted(text.getvalue().splitlines())
    assert lines == ["[rank 0] hello", "[rank 1] hello", "nbaccel: 2 processes on cpu"]


def test_a_plain_script_needs_no_guard_and_runs_its_top_level_once(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent("""
        import os
        from nbaccel import notebook_launcher
        print("top level")
        class Thing: pass
        def work():
            return Thing()
        values = notebook_launcher(work, num_processes=2, returns="all")
        print([type(value) is Thing for value in values])
        """)
    )
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
    )
    assert done.stdout.splitlines() == ["top level", "nbaccel: 2 processes on cpu", "[True, True]"]
    assert done.stderr == ""


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_200_launches_leave_no_trace():
    """Descriptors and threads are counted by the leak check; memory is counted here."""
    notebook_launcher(_rank, num_processes=1)
    page = os.sysconf("SC_PAGE_SIZE")

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * page

    for _ in range(20):
        notebook_launcher(_rank, output="none")
    before = resident()
    start = time.monotonic()
    for _ in range(180):
        notebook_launcher(_rank, output="none")
    assert resident() - before < 8 << 20, f"after {time.monotonic() - start:.0f} s"
