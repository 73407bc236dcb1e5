"""In a real kernel: launches work whatever earlier cells did, values come back, nothing else changes."""

from __future__ import annotations

import pytest

from tests.kernel import Kernel

SETUP = """
import enum, os, signal, socket, sys, tempfile, threading, time
import torch
from torch.utils.data import DataLoader
from nbaccel import Accelerator, notebook_launcher

def launch(function, *args, n=2, **options):
    return notebook_launcher(function, args, num_processes=n, cpu=True, returns="all", **options)
"""


@pytest.fixture
def notebook(kernel: Kernel) -> Kernel:
    kernel.run(SETUP)
    return kernel


def value(kernel: Kernel, expression: str, **options: float) -> object:
    """What the expression is in the kernel; for plain values."""
    text = kernel.run(f"print('=>', repr({expression}))", **options).stdout
    return eval(text.rsplit("=> ", 1)[1])


# --- whatever earlier cells did -------------------------------------------------------------------


def test_B001_B007_B010_B016_parallel_work_in_an_earlier_cell(notebook: Kernel) -> None:
    notebook.run("x = torch.randn(600, 600); y = x @ x")
    assert (
        value(notebook, "launch(lambda: float((torch.ones(600, 600) @ torch.ones(600, 600))[0, 0]))")
        == [600.0] * 2
    )


def test_B001_workers_are_no_copies_of_the_kernel(notebook: Kernel) -> None:
    notebook.run("import json\njson.changed_in_the_kernel = True\nkernel_pid = os.getpid()")
    assert value(notebook, "launch(lambda: hasattr(json, 'changed_in_the_kernel'))") == [False, False]
    assert value(notebook, "launch(lambda: os.getppid() == kernel_pid)") == [False, False]


def test_B003_an_accelerator_in_an_earlier_cell(notebook: Kernel) -> None:
    notebook.run("accelerator = Accelerator(cpu=True)\nmodel = accelerator.prepare(torch.nn.Linear(2, 2))")
    notebook.run("def world():\n    a = Accelerator()\n    return a.process_index, a.num_processes")
    assert value(notebook, "launch(world)") == [(0, 2), (1, 2)]


def test_B021_a_loader_made_in_an_earlier_cell(notebook: Kernel) -> None:
    notebook.run(
        "loader = DataLoader(range(8), 2)\nfirst = next(iter(loader))\n"
        "def read():\n    return [batch.tolist() for batch in Accelerator().prepare(loader)]"
    )
    assert value(notebook, "launch(read)") == [[[0, 1], [4, 5]], [[2, 3], [6, 7]]]


def test_B031_an_accelerator_outside_workers_is_a_world_of_one(notebook: Kernel) -> None:
    notebook.run("accelerator = Accelerator(cpu=True); accelerator.wait_for_everyone()")
    assert value(notebook, "accelerator.gather(torch.tensor([1.0])).tolist()") == [1.0]
    assert value(notebook, "torch.distributed.is_initialized()") is False


# --- how many, and on what ------------------------------------------------------------------------


@pytest.mark.parametrize("marker", ["KAGGLE_KERNEL_RUN_TYPE", "COLAB_GPU", "COLAB_RELEASE_TAG"])
def test_B012_B014_never_fewer_than_asked(notebook: Kernel, marker: str) -> None:
    notebook.run(f"os.environ[{marker!r}] = 'Interactive'")
    try:
        assert value(notebook, "launch(lambda: os.environ['WORLD_SIZE'])") == ["2", "2"]
    finally:
        notebook.run(f"del os.environ[{marker!r}]")


def test_B013_no_number_and_no_accelerator_is_one_process_and_says_so(fresh_kernel: Kernel) -> None:
    fresh_kernel.run("import os; os.environ['CUDA_VISIBLE_DEVICES'] = ''")
    fresh_kernel.run("from nbaccel import Accelerator, notebook_launcher")
    shown = fresh_kernel.run(
        "notebook_launcher(lambda: print(Accelerator().num_processes, Accelerator().device))"
    )
    assert shown.stdout == "nbaccel: 1 process on cpu\n1 cpu\n"


@pytest.mark.parametrize(
    ("call", "hint"),
    [
        ("notebook_launcher(None, num_processes=2)", "pass the function itself"),
        ("notebook_launcher(print('called'), num_processes=2)", "pass the function itself"),
        ("notebook_launcher(print, (5), num_processes=2)", "(5,)"),
        ("notebook_launcher(print, 'text', num_processes=2)", "('text',)"),
    ],
)
def test_B006_a_call_that_cannot_be_meant_is_refused_at_once(notebook: Kernel, call: str, hint: str) -> None:
    before = notebook.relatives()
    result = notebook.run(call, may_fail=True)
    assert result.error.ename == "TypeError"
    assert hint in result.error.evalue
    assert result.seconds < 1
    assert set(notebook.relatives()) <= set(before)


def test_B024_the_usual_port_may_be_in_use_and_a_port_that_was_asked_for_may_not(notebook: Kernel) -> None:
    notebook.run("taken = socket.create_server(('127.0.0.1', 0)); port = taken.getsockname()[1]")
    port = value(notebook, "port")
    assert value(notebook, "launch(lambda: os.environ['MASTER_PORT'] != str(port))") == [True, True]
    result = notebook.run("launch(print, use_port=port)", may_fail=True)
    assert isinstance(port, int)
    assert str(port) in result.error.evalue
    assert "in use" in result.error.evalue
    assert result.seconds < 5
    assert notebook.workers() == []
    notebook.run("taken.close()")


def test_B025_two_launches_at_once(notebook: Kernel) -> None:
    notebook.run(
        "def add():\n"
        "    a = Accelerator()\n"
        "    return a.reduce(torch.ones(1), reduction='sum').item()\n"
        "results = {}\n"
        "def keep(k):\n    results[k] = launch(add)\n"
        "threads = [threading.Thread(target=keep, args=(k,)) for k in range(2)]\n"
        "for t in threads: t.start()\n"
        "for t in threads: t.join()"
    )
    assert value(notebook, "results") == {0: [2.0, 2.0], 1: [2.0, 2.0]}


# --- functions of the notebook, and their values --------------------------------------------------


def test_B032_functions_lambdas_closures_and_classes_of_cells(notebook: Kernel) -> None:
    notebook.run("k = 3\nclass C:\n    v = 4\ndef helper(x):\n    return x * k")
    assert value(notebook, "launch(lambda: helper(C.v))") == [12, 12]
    notebook.run("def adder(n):\n    def add(x):\n        return x + n + k\n    return add")
    assert value(notebook, "launch(adder(10), 1)") == [14, 14]


def test_B035_instances_come_back_as_the_kernel_s_own_classes(notebook: Kernel) -> None:
    notebook.run(
        "class Point:\n    def __init__(self, x):\n        self.x = x\n"
        "class Colour(enum.Enum):\n    RED = 1\n"
        "point, colour = launch(lambda: (Point(2), Colour.RED))[1]"
    )
    assert value(notebook, "(isinstance(point, Point), point.x, colour is Colour.RED)") == (True, 2, True)


def test_B036_workers_change_a_snapshot(notebook: Kernel) -> None:
    notebook.run("D = {}")
    assert value(notebook, "launch(lambda: D.setdefault('x', 1))") == [1, 1]
    assert value(notebook, "D") == {}


def test_B037_what_a_function_does_not_use_is_not_shipped(notebook: Kernel) -> None:
    # A lock can't be pickled: shipping the namespace as a whole would fail.
    notebook.run("unrelated = threading.Lock()\nbig = torch.zeros(5_000_000)")
    assert value(notebook, "launch(lambda: 'big' in sys.modules['__main__'].__dict__)") == [False, False]
    assert value(notebook, "launch(lambda: len(big))") == [5_000_000] * 2


def test_B038_local_modules_and_the_working_directory(notebook: Kernel) -> None:
    notebook.run(
        "os.makedirs('local'); os.makedirs('data')\n"
        "open('local/mymod.py', 'w').write('def f():\\n    return open(\"here.txt\").read()\\n')\n"
        "open('data/here.txt', 'w').write('found')\n"
        "sys.path.insert(0, os.path.abspath('local')); os.chdir('data')\n"
        "import mymod"
    )
    try:
        assert value(notebook, "launch(mymod.f)") == ["found", "found"]
    finally:
        notebook.run("os.chdir('..'); sys.path.pop(0); del sys.modules['mymod']")
        notebook.run("import shutil; shutil.rmtree('local'); shutil.rmtree('data')")


def test_B023_data_loader_workers_in_workers(notebook: Kernel) -> None:
    notebook.run("def read():\n    return [b.sum().item() for b in DataLoader(range(8), 4, num_workers=2)]")
    assert value(notebook, "launch(read)") == [[6, 22], [6, 22]]
    notebook.wait_until_alone(0)


def test_B029_a_function_that_never_cleans_up_succeeds_silently_every_time(notebook: Kernel) -> None:
    notebook.run(
        "def untidy():\n"
        "    torch.distributed.init_process_group('gloo')\n"
        "    total = torch.ones(1)\n"
        "    torch.distributed.all_reduce(total)\n"
        "    return total.item()"
    )
    result = notebook.run("print('=>', [launch(untidy) for _ in range(20)])")
    assert result.stdout.endswith(f"=> {[[2.0, 2.0]] * 20}\n")
    assert result.stderr == ""


# --- the kernel afterwards ------------------------------------------------------------------------

STATE = """
def state():
    return {
        "environment": dict(os.environ),
        "handlers": {int(s): repr(signal.getsignal(s)) for s in signal.valid_signals()},
        "rng": torch.get_rng_state().tolist(),
        "group": torch.distributed.is_initialized(),
        "temporary": sorted(os.listdir(tempfile.gettempdir())),
        "threads": sorted(t.name for t in threading.enumerate()),
        "cwd": os.getcwd(),
        "path": list(sys.path),
        "main": sys.modules["__main__"] is __import__("__main__"),
    }
"""


@pytest.mark.parametrize("outcome", ["value", "error", "death"])
def test_a_launch_leaves_the_kernel_as_it_found_it(notebook: Kernel, outcome: str) -> None:
    notebook.run(STATE)
    notebook.run(
        "def work(outcome):\n"
        "    os.environ['SET_BY_A_WORKER'] = '1'\n"
        "    torch.manual_seed(7)\n"
        "    accelerator = Accelerator()\n"
        "    accelerator.wait_for_everyone()\n"
        "    if outcome == 'error': raise ValueError('on purpose')\n"
        "    if outcome == 'death' and accelerator.is_main_process: os._exit(3)\n"
    )
    notebook.run("launch(work, 'value')")  # what the first launch of a kernel opens for good
    notebook.run("before = state()")
    files = notebook.open_files()
    failed = notebook.run(f"launch(work, {outcome!r})", may_fail=True).errors
    assert bool(failed) == (outcome != "value")
    notebook.wait_until_alone(0)
    notebook.run("after = state()")
    assert value(notebook, "{k: (before[k], after[k]) for k in before if before[k] != after[k]}") == {}
    assert len(notebook.open_files()) <= len(files)
