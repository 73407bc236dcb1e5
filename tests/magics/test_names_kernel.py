"""Names between a real kernel and its workers: what travels, what stays, what comes home."""

from __future__ import annotations

import pytest

from tests.kernel import Kernel
from tests.magics.conftest import Notebook

MODEL = """
from nbaccel import Accelerator
torch.manual_seed(0)
data = torch.utils.data.TensorDataset(torch.randn(64, 4), torch.randint(0, 2, (64,)))
loader = torch.utils.data.DataLoader(data, batch_size=8)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""

EPOCH = """
for x, y in loader:
    loss = torch.nn.functional.cross_entropy(model(x), y)
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
"""


# --- from the notebook to the workers -----------------------------------------------------------------


def test_B163_names_and_imports_of_the_notebook_are_there(notebook: Notebook) -> None:
    notebook.run("import numpy as np; k = 3")
    shown = notebook.on_workers("print(np.arange(k).sum())")
    assert sorted(shown.stdout.splitlines()) == ["[rank 0] 3", "[rank 1] 3"]


def test_B163_a_name_error_tells_when_the_notebook_has_the_name(notebook: Notebook) -> None:
    notebook.run("secret = 1")
    error = notebook.on_workers("eval('secret')", may_fail=True).error
    assert error.ename == "NameError"
    assert "The notebook has secret" in error.text
    assert "%accelerate push secret" in error.text
    notebook.run("%accelerate push secret")
    assert notebook.values("eval('secret')") == [1, 1]
    assert "The notebook has" not in notebook.on_workers("nowhere", may_fail=True).error.text


def test_a_name_error_tells_why_the_name_was_not_sent(notebook: Notebook) -> None:
    notebook.run("import threading\nlock = threading.Lock()\ndef use():\n    return lock")
    error = notebook.on_workers("use()", may_fail=True).error
    assert error.ename == "NameError"
    assert "The notebook has lock, but it can't be sent" in error.text
    error = notebook.on_workers("lock", may_fail=True).error
    assert error.ename == "TypeError"
    assert "lock can't be sent to the workers" in error.evalue


def test_a_name_error_tells_which_ranks_have_it(notebook: Notebook) -> None:
    notebook.on_workers("only = object()", "--ranks 1")
    error = notebook.on_workers("only", "--ranks 0", may_fail=True).error
    assert "rank 1 has only" in error.text


def test_only_what_is_used_is_sent(notebook: Notebook) -> None:
    notebook.run("used, unused, big = 1, 2, torch.zeros(1_000_000)\ndef f():\n    return used")
    notebook.on_workers("f()")
    assert (
        notebook.values("('used' in globals(), 'unused' in globals(), 'big' in globals())")
        == [(True, False, False)] * 2
    )


@pytest.mark.parametrize(
    ("make", "change", "expression", "expected"),
    [
        ("x = 1", "x = 2", "x", 2),
        ("x = [1]", "x.append(2)", "x", [1, 2]),
        ("x = torch.zeros(2)", "x[0] = 5", "x.tolist()", [5, 0]),
        ("def x(): return 1", "def x(): return 2", "x()", 2),
        ("class x:\n    v = 1", "class x:\n    v = 2", "x.v", 2),
        ("class x:\n    v = 1", "x.v = 2", "x.v", 2),
        ("k = 1\ndef x(): return k", "k = 2", "x()", 2),
    ],
)
def test_a_change_arrives(
    notebook: Notebook, make: str, change: str, expression: str, expected: object
) -> None:
    notebook.run(make)
    notebook.on_workers(expression)
    notebook.run(change)
    assert notebook.values(expression) == [expected] * 2


def test_a_name_that_the_workers_bound_later_stays_theirs(notebook: Notebook) -> None:
    notebook.run("model = torch.nn.Linear(1, 1)")
    notebook.on_workers("model = (model, 'theirs', int(os.environ['RANK']))")
    assert notebook.values("model[1:]") == [("theirs", 0), ("theirs", 1)]
    notebook.run("model = 'new'")
    assert notebook.values("model") == ["new", "new"]


def test_a_plain_name_of_each_rank_stays_its_own(notebook: Notebook) -> None:
    notebook.on_workers("mine = int(os.environ['RANK'])")
    assert notebook.value("mine") == 0
    assert notebook.values("mine") == [0, 1]
    notebook.run("mine += 7")
    assert notebook.values("mine") == [7, 7]


def test_code_defined_on_the_workers_sees_later_changes_of_the_notebook(notebook: Notebook) -> None:
    notebook.run("rate = 1")
    notebook.on_workers("class Trainer:\n    def go(self): return rate\ntrainer = Trainer()")
    notebook.run("rate = 2")
    assert notebook.values("trainer.go()") == [2, 2]


def test_model_and_optimizer_of_different_cells_share_parameters(notebook: Notebook) -> None:
    notebook.run(MODEL)
    notebook.on_workers("before = model.weight.sum().item()")
    notebook.on_workers("model(torch.ones(1, 4)).sum().backward(); optimizer.step()")
    assert notebook.values("model.weight.sum().item() != before") == [True, True]
    assert notebook.values("optimizer.param_groups[0]['params'][0] is model.weight") == [True, True]
    assert notebook.value("model.weight.sum().item()") == notebook.value("before")  # the notebook's own


def test_a_large_array_is_sent_once(notebook: Notebook) -> None:
    notebook.run("import numpy as np\nbig = np.ones(25_000_000)\nbox = {'big': big}")
    notebook.on_workers("big.shape")
    again = notebook.on_workers("same = box['big'] is big and float(big[7])")
    assert notebook.values("same") == [1.0, 1.0]
    assert again.seconds < 1


def test_one_element_of_a_large_array_counts(notebook: Notebook) -> None:
    notebook.run("import numpy as np, pandas as pd\nlabels = np.zeros(2_000_000)")
    notebook.run("table = pd.DataFrame({'y': np.zeros(200_000)})")
    notebook.on_workers("labels, table")
    notebook.run("labels[123_457] = 1; table.loc[123_457, 'y'] = 1")
    assert notebook.values("(float(labels.sum()), float(table.y.sum()))") == [(1.0, 1.0)] * 2


def test_large_data_that_a_cell_changes_in_place_stays_and_is_named(notebook: Notebook) -> None:
    notebook.run("import numpy as np, pandas as pd\nnumbers = list(range(300_000))")
    notebook.run("weights = torch.zeros(500_000); scores = np.zeros((500, 1000)); wide = np.zeros(400_000)")
    notebook.run("table = pd.DataFrame({'y': np.zeros(200_000)})")
    shown = notebook.on_workers("numbers.append(7); weights += 1; scores[:] = 1; wide.sum(); table['w'] = 2")
    assert "on the workers: numbers, scores, table, weights (pull" in shown.stdout
    assert notebook.value("(len(numbers), weights[0].item(), float(scores[0, 0]))") == (300_000, 0.0, 0.0)
    assert (
        notebook.values("(len(numbers), weights[0].item(), float(scores[0, 0]))") == [(300_001, 1.0, 1.0)] * 2
    )


def test_a_name_that_has_gone_with_its_workers_is_told_from_one_that_never_was(notebook: Notebook) -> None:
    notebook.on_workers("net = torch.nn.Linear(2, 2)")
    notebook.run("%accelerate restart")
    error = notebook.on_workers("net", may_fail=True).error
    assert "net lived on workers that have ended: run the cell again that makes it" in error.text
    notebook.on_workers("net = torch.nn.Linear(2, 2)", "--fresh")
    error = notebook.on_workers("net", "--fresh", may_fail=True).error
    assert "net lived on workers that have ended" in error.text
    assert "lived on" not in notebook.on_workers("nowhere", may_fail=True).error.text


def test_an_object_that_the_workers_have_let_go_is_sent_anew(notebook: Notebook) -> None:
    notebook.run(MODEL)
    notebook.on_workers("model")
    notebook.on_workers("import gc\ndel model\n_ = Out.clear(); gc.collect();")
    assert notebook.values("len(optimizer.param_groups[0]['params'])") == [2, 2]
    assert notebook.values("type(model).__name__") == ["Linear", "Linear"]
    assert notebook.values("optimizer.param_groups[0]['params'][0] is model.weight") == [True, True]


def test_B038_B167_local_modules_also_after_a_later_change_of_the_path(notebook: Notebook) -> None:
    notebook.run(
        "os.makedirs('later', exist_ok=True)\n"
        "open('later/deco.py', 'w').write(\n"
        "    'import functools\\n'\n"
        "    'def twice(f):\\n    @functools.wraps(f)\\n'\n"
        "    '    def g(*a):\\n        return 2 * f(*a)\\n    return g\\n')\n"
        "sys.path.insert(0, os.path.abspath('later'))\n"
        "import deco\n@deco.twice\ndef f(x): return x + 1"
    )
    try:
        assert notebook.values("f(1)") == [4, 4]
    finally:
        notebook.run("sys.path.pop(0); del sys.modules['deco']; import shutil; shutil.rmtree('later')")


def test_B039_an_edited_and_reloaded_module_runs_its_new_code(notebook: Notebook) -> None:
    notebook.run(
        "sys.dont_write_bytecode = True\nsys.path.insert(0, os.getcwd())\n"
        "open('mymod.py', 'w').write('def f(): return 1\\n')\nimport mymod"
    )
    try:
        assert notebook.values("mymod.f()") == [1, 1]
        notebook.run(
            "open('mymod.py', 'w').write('def f(): return 22\\n')\nimport importlib; importlib.reload(mymod)"
        )
        assert notebook.values("mymod.f()") == [22, 22]
    finally:
        notebook.run("sys.path.pop(0); del sys.modules['mymod']; os.remove('mymod.py')")


# --- from the workers to the notebook -----------------------------------------------------------------


def test_plain_data_comes_home(notebook: Notebook) -> None:
    notebook.on_workers(
        "import numpy as np\nnumber, text, table = 1.5, 'a', {'loss': [1, 2]}\n"
        "array, tensor, rank = np.arange(3), torch.ones(2), int(os.environ['RANK'])"
    )
    assert notebook.value("(number, text, table, array.tolist(), tensor.tolist(), rank)") == (
        1.5,
        "a",
        {"loss": [1, 2]},
        [0, 1, 2],
        [1.0, 1.0],
        0,
    )


def test_B036_plain_data_that_a_cell_changes_in_place_comes_home(notebook: Notebook) -> None:
    notebook.run("losses = []")
    notebook.on_workers("for step in range(3):\n    losses.append(step)")
    assert notebook.value("losses") == [0, 1, 2]
    notebook.run("losses.append('notebook')")
    assert notebook.values("losses") == [[0, 1, 2, "notebook"]] * 2


def test_heavy_objects_stay_and_are_named_once(notebook: Notebook) -> None:
    shown = notebook.on_workers("net = torch.nn.Linear(1, 1); opt = torch.optim.SGD(net.parameters(), 1)")
    assert shown.stdout == "nbaccel: on the workers: net, opt (pull with %accelerate pull NAME)\n"
    assert notebook.on_workers("net = torch.nn.Linear(1, 1)").stdout == ""
    assert notebook.value("'net' in globals()") is False
    hint = notebook.run("net", may_fail=True)
    assert hint.error.ename == "NameError"
    assert "%accelerate pull net" in hint.stderr
    assert "pull" not in notebook.run("nowhere", may_fail=True).stderr


def test_nothing_of_the_notebook_is_replaced_by_a_stand_in(notebook: Notebook) -> None:
    notebook.run("model = torch.nn.Linear(1, 1); kept = model")
    notebook.on_workers("model = torch.nn.Linear(3, 3)")
    assert notebook.value("model is kept") is True


def test_large_data_stays_unless_it_is_asked_for(notebook: Notebook) -> None:
    shown = notebook.on_workers("big = torch.zeros(1_000_000)")
    assert "on the workers: big" in shown.stdout
    assert notebook.value("'big' in globals()") is False
    notebook.on_workers("other = torch.ones(1_000_000); small = 1", "-o other,small")
    assert notebook.value("(other.sum().item(), small)") == (1_000_000.0, 1)


def test_what_cannot_come_home_is_an_error_that_names_it(notebook: Notebook) -> None:
    error = notebook.on_workers("import threading; lock = threading.Lock()", "-o lock", may_fail=True).error
    assert error.ename == "TypeError"
    assert "lock" in error.evalue
    error = notebook.on_workers("pass", "-o nothing", may_fail=True).error
    assert "name 'nothing' is not defined on the workers" in error.evalue


def test_functions_classes_and_imports_of_cells_come_home(notebook: Notebook) -> None:
    notebook.run("k = 1")
    notebook.on_workers("import json\ndef f(): return k\nclass A:\n    x = 1")
    notebook.run("k = 2")
    assert notebook.value("(f(), A.x, json.dumps([1]))") == (2, 1, "[1]")
    notebook.on_workers("def f(): return 'second'")
    assert notebook.value("f()") == "second"
    notebook.run("def f(): return 'own'")
    notebook.on_workers("def f(): return 'third'")
    assert notebook.value("f()") == "own"
    assert notebook.values("f()") == ["third", "third"]


def test_what_a_failed_cell_did_until_then_counts(notebook: Notebook) -> None:
    notebook.run("x = 1")
    notebook.on_workers("x = 2\nmodel = torch.nn.Linear(1, 1)\n1 / 0", may_fail=True)
    assert notebook.value("x") == 2
    assert notebook.values("(x, type(model).__name__)") == [(2, "Linear")] * 2


def test_B068_an_interrupted_cell_keeps_its_names(notebook: Notebook) -> None:
    cell = notebook.submit("%%accelerate\nv = [1]\nprint('sleeps', flush=True)\ntime.sleep(60)\nv = 2")
    cell.wait_for_text("sleeps")
    notebook.kernel.interrupt()
    assert cell.wait(10).error.ename == "KeyboardInterrupt"
    assert notebook.value("v") == [1]
    assert notebook.values("v") == [[1], [1]]


# --- commands -----------------------------------------------------------------------------------------


def test_pull_brings_a_prepared_model_unwrapped(notebook: Notebook) -> None:
    notebook.run(MODEL)
    notebook.on_workers(
        "accelerator = Accelerator()\n"
        "model, optimizer, loader = accelerator.prepare(model, optimizer, loader)"
    )
    notebook.on_workers(EPOCH)
    pulled = notebook.run("untrained = model\n%accelerate pull model")
    assert pulled.stdout == "nbaccel: model is here now: rank 0's, on the CPU\n"
    assert notebook.value("type(model).__name__") == "Linear"
    notebook.on_workers("weights = accelerator.unwrap_model(model).weight.detach().clone()")
    assert notebook.value("torch.equal(model.weight, weights) and model is not untrained") is True
    assert "Linear" not in notebook.values("type(model).__name__")
    notebook.on_workers(EPOCH)


def test_push_sends_what_the_workers_have_changed(notebook: Notebook) -> None:
    notebook.run("x = 'notebook'; m = torch.nn.Linear(1, 1)")
    notebook.on_workers("m = torch.nn.Linear(2, 2); x")
    pushed = notebook.run("%accelerate push x, m")
    assert pushed.stdout == "nbaccel: x, m are on ranks 0-1 now\n"
    assert notebook.run("%accelerate push x").stdout == "nbaccel: x is on ranks 0-1 now\n"
    assert notebook.run("%accelerate pull x").stdout == "nbaccel: x is here now: rank 0's\n"
    assert notebook.values("(x, m.in_features)") == [("notebook", 1)] * 2
    error = notebook.run("%accelerate push nowhere", may_fail=True).error
    assert "nowhere" in error.evalue


def test_replacing_what_was_prepared_is_told(notebook: Notebook) -> None:
    notebook.run(MODEL)
    prepare = "model, optimizer = accelerator.prepare(model, optimizer)"
    first = notebook.on_workers(
        f"accelerator = Accelerator()\n{prepare}\nloader = accelerator.prepare(loader)"
    )
    assert "prepared" not in first.stderr
    pushed = notebook.run("%accelerate push model, optimizer")
    assert pushed.stderr == (
        "nbaccel: model, optimizer on the workers were prepared; those that were sent are not: "
        "accelerator.prepare(...) them again\n"
    )
    assert notebook.run("%accelerate push model, optimizer").stderr == ""
    # The cell that makes the model is run again: fine when the next one prepares it, or doesn't use it.
    notebook.on_workers(prepare)
    notebook.run("model = torch.nn.Linear(4, 2); optimizer = torch.optim.SGD(model.parameters(), lr=0.1)")
    assert "prepared" not in notebook.on_workers("print(type(loader).__name__)").stderr
    assert "prepared" not in notebook.on_workers(f"{prepare}\n{EPOCH}").stderr
    notebook.run("model = torch.nn.Linear(4, 2)")
    failed = notebook.on_workers("model(torch.ones(1, 4)).sum(); 1 / 0", may_fail=True)
    assert failed.error.ename == "ZeroDivisionError"
    assert "nbaccel: model on the workers was prepared; the one that was sent is not" in failed.stderr
    assert "prepared" not in notebook.on_workers("model(torch.ones(1, 4)).sum()").stderr


def test_status_is_a_table(notebook: Notebook) -> None:
    shown = notebook.run("%accelerate status").displays[0]
    assert "rank" in shown.text
    assert len(shown.text.splitlines()) == 4
    assert "<table>" in shown.data["text/html"]
    pids = set(notebook.values("os.getpid()"))
    assert all(str(pid) in shown.text for pid in pids)


def test_stacks(notebook: Notebook) -> None:
    assert "--- rank 1 ---" in notebook.run("%accelerate stacks").stdout


def test_restart_and_stop(notebook: Notebook) -> None:
    notebook.run("k = 5")
    notebook.on_workers("mine = object(); k")
    notebook.run("%accelerate restart")
    assert notebook.kernel.workers() == []
    assert notebook.values("('mine' in globals(), k)") == [(False, 5)] * 2
    assert "have ended" in notebook.run("%accelerate stop").stdout
    assert "no workers run" in notebook.run("%accelerate stop").stdout
    assert "no workers run" in notebook.run("%accelerate status").stdout
    error = notebook.run("%accelerate pull k", may_fail=True).error
    assert "no workers run" in error.evalue


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ("optimizer.param_groups[0]['lr'] = 0.01", "optimizer"),
        ("torch.nn.init.zeros_(model.weight)", "model"),
    ],
)
def test_a_change_in_place_of_what_is_prepared_on_the_workers_is_told_once(
    notebook: Notebook, change: str, name: str
) -> None:
    notebook.run(MODEL)
    prepare = "accelerator = Accelerator(); model, optimizer = accelerator.prepare(model, optimizer)"
    notebook.on_workers(f"{prepare}\n{EPOCH}")
    notebook.run(change)
    look = "type(model), type(optimizer)"
    assert notebook.on_workers(look).stderr == (
        f"nbaccel: {name} was changed in the notebook; the workers go on with the one that they have: "
        f"%accelerate push {name} sends the notebook's\n"
    )
    assert notebook.on_workers(look).stderr == ""
    notebook.run(change.replace("0.01", "0.02"))
    assert "was changed" in notebook.on_workers(look).stderr


@pytest.mark.parametrize("how", ["stop", "fresh"])
def test_new_workers_are_as_many_as_before_until_something_else_is_configured(
    notebook: Notebook, how: str
) -> None:
    notebook.on_workers("pass", "--bf16")
    shown = "print(os.environ['WORLD_SIZE'], nbaccel.Accelerator().mixed_precision)"

    def anew() -> list[str]:
        if how == "stop":
            notebook.run("%accelerate stop")
        result = notebook.on_workers(shown, "--fresh" if how == "fresh" else "")
        return sorted(line for line in result.stdout.splitlines() if not line.startswith("nbaccel: "))

    assert anew() == ["[rank 0] 2 bf16", "[rank 1] 2 bf16"]
    notebook.run("os.environ['NBACCEL_NUM_PROCESSES'] = '1'")
    try:
        assert anew() == ["1 no"]
    finally:
        notebook.run("del os.environ['NBACCEL_NUM_PROCESSES']")


def test_options_after_a_stop_describe_the_new_workers_wholly(notebook: Notebook) -> None:
    notebook.on_workers("pass", "--bf16")
    notebook.run("%accelerate stop")
    result = notebook.on_workers("print(nbaccel.Accelerator().mixed_precision)", "--cpu -n 1")
    assert result.stdout.splitlines()[-1] == "no"


def test_names_that_end_with_the_workers_are_told(notebook: Notebook) -> None:
    """Another number, by intent or by a slip, costs what lived on the workers."""
    notebook.on_workers("mine = object()")
    lines = notebook.on_workers("pass", "-n 1").stdout.splitlines()
    assert lines[0] == "nbaccel: the session of 2 processes on cpu ends: 1 process on cpu is asked for"
    assert lines[1] == "nbaccel: with its workers went mine: run the cells again that made them"


def test_B165_stopping_leaves_nothing_and_the_kernel_never_joins(notebook: Notebook) -> None:
    notebook.run(MODEL)
    notebook.on_workers("accelerator = Accelerator(); model = accelerator.prepare(model)")
    assert notebook.values("torch.distributed.is_initialized()") == [True, True]
    assert notebook.value("torch.distributed.is_initialized()") is False
    notebook.run("%accelerate stop")
    assert notebook.kernel.workers() == []
    assert notebook.value("torch.distributed.is_initialized()") is False
    notebook.run(f"accelerator = Accelerator(cpu=True)\nmodel.train()\n{EPOCH}")


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ("%accelerate stauts", "did you mean status?"),
        ("%accelerate pull", "needs names"),
        ("%accelerate stop now", "leave out now"),
        ("%accelerate --gpus 2", "%%accelerate --gpus 2"),
    ],
)
def test_commands_that_mean_nothing(notebook: Notebook, line: str, part: str) -> None:
    assert part in notebook.run(line, may_fail=True).error.evalue


def test_help_alone_and_env(notebook: Notebook) -> None:
    assert "%accelerate pull NAME" in notebook.run("%accelerate").stdout
    assert "num_processes" in notebook.run("%accelerate env").stdout


def test_unloading_ends_the_workers(fresh_kernel: Kernel) -> None:
    fresh_kernel.run("%load_ext nbaccel\n%load_ext nbaccel")
    fresh_kernel.run("%%accelerate --cpu -n 2\npass")
    fresh_kernel.run("%unload_ext nbaccel")
    assert fresh_kernel.workers() == []
    fresh_kernel.run("%%accelerate\npass", may_fail=True)
    fresh_kernel.run("%load_ext nbaccel")
    fresh_kernel.run("%%accelerate --cpu -n 1\npass")
    fresh_kernel.run("%accelerate stop")


# --- B164 ---------------------------------------------------------------------------------------------


def test_B164_one_rank_fails_before_a_barrier(notebook: Notebook) -> None:
    notebook.on_workers("import torch.distributed as dist\nkept = 1")
    failed = notebook.on_workers(
        "if int(os.environ['RANK']) == 0: 1 / 0\nelse: dist.barrier()", may_fail=True
    )
    assert failed.error.ename == "ZeroDivisionError"
    assert failed.seconds < 10
    notebook.on_workers("total = torch.ones(1); dist.all_reduce(total)")
    assert notebook.values("(total.item(), kept)") == [(2.0, 1)] * 2


def test_B164_a_cell_that_takes_too_long(notebook: Notebook) -> None:
    failed = notebook.on_workers("kept = 1\ntime.sleep(60)", "--timeout 1", may_fail=True)
    assert failed.error.ename == "LaunchTimeout"
    assert failed.seconds < 10
    assert "time.sleep(60)" in failed.error.text
    assert "cell_shell.py" not in failed.error.text
    assert notebook.values("kept") == [1, 1]
