"""What is sent to workers and what isn't: the ledger, without any worker. Payloads are loaded right here."""

from __future__ import annotations

import gc
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from cloudpickle import cloudpickle as _cp

from nbaccel.launch.shipping import store
from nbaccel.launch.shipping.shipping import Plan, Sent, Shipping

CLASS_TABLES = ("_DYNAMIC_CLASS_TRACKER_BY_ID", "_DYNAMIC_CLASS_TRACKER_BY_CLASS")


class Notebook:
    """A ``__main__`` with cells in it, and workers that are this process."""

    def __init__(self, ranks: int = 2) -> None:
        self.main = types.ModuleType("__main__")
        self.names = vars(self.main)
        self.shipping = Shipping(range(ranks))
        self.received: dict[str, Any] = {}
        self._worker_classes = {name: type(getattr(_cp, name))() for name in CLASS_TABLES}

    def cell(self, text: str) -> None:
        exec(compile(text, "<cell>", "exec"), self.names)

    def plan(self, *names: str, bound: frozenset[str] = frozenset(), force: bool = False) -> Plan:
        return self.shipping.plan(dict.fromkeys(names, bound), self.names, force=force)

    def send(self, *names: str, force: bool = False) -> set[str]:
        """Send what these names need; returns the names that were sent."""
        plan = self.plan(*names, force=force)
        gone = store.pin(plan.references())
        if gone:
            self.shipping.lost(gone)
            plan = self.plan(*names, force=force)
        self.load(plan)
        self.shipping.arrived(plan)
        return set(plan.roots)

    def load(self, plan: Plan) -> Sent | None:
        with self.shipping.pack(plan, _take, None) as call:
            self.written = call.contents.written
            with self._as_a_worker():
                _, (_, sent), _ = call.load()
        if sent is not None:
            store.receive(sent.number, sent.objects, sent.forgotten)
            self.received |= sent.names
        return sent

    @contextmanager
    def _as_a_worker(self) -> Iterator[None]:
        """A worker has classes of its own; here it must not take them for the notebook's."""
        kept = {name: getattr(_cp, name) for name in CLASS_TABLES}
        for name in CLASS_TABLES:
            setattr(_cp, name, self._worker_classes[name])
        try:
            yield
        finally:
            for name, table in kept.items():
                setattr(_cp, name, table)


def _take(task: object, sent: object) -> None:
    raise AssertionError("only packed here")


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> Iterator[Notebook]:
    book = Notebook()
    monkeypatch.setitem(sys.modules, "__main__", book.main)
    yield book
    store._kept.clear()
    store._pinned.clear()


def test_a_name_is_sent_once_and_again_when_it_is_bound_anew(notebook: Notebook) -> None:
    notebook.cell("k = 3")
    assert notebook.send("k") == {"k"}
    assert notebook.send("k") == set()
    notebook.cell("k = 3")
    assert notebook.send("k") == set()  # the same value
    notebook.cell("k = 4")
    assert notebook.send("k") == {"k"}
    assert notebook.received["k"] == 4


@pytest.mark.parametrize(
    ("make", "change"),
    [
        ("v = [1, 2]", "v.append(3)"),
        ("v = {'lr': 0.1}", "v['lr'] = 0.2"),
        ("v = {1, 2}", "v.add(3)"),
        ("class C: pass\nv = C(); v.x = 1", "v.x = 2"),
        ("v = np.zeros(10)", "v[3] = 1"),
        ("v = np.zeros(1_000_000)", "v[:] = 1"),
        ("v = torch.zeros(10)", "v[3] = 1"),
        ("v = torch.zeros(1_000_000)", "v[17] = 1"),
        ("v = torch.zeros(10)", "v.numpy()[3] = 1"),
        ("v = [torch.zeros(10)]", "v[0][3] = 1"),
        ("v = torch.nn.Linear(2, 2)", "v.weight.data.zero_()"),
        ("v = torch.nn.Sequential(torch.nn.Linear(2, 2))", "v[0].extra = 1"),
        ("v = torch.nn.Sequential(torch.nn.Dropout())", "v.eval()"),
        ("def v(): return 1", "v.note = 2"),
        ("def v(): return 1", "def v(): return 2"),
        ("class v:\n    x = 1", "v.x = 2"),
        ("class v:\n    def f(self): return 1", "v.f = lambda self: 2"),
    ],
)
def test_a_change_in_place_is_sent_and_nothing_without_one(
    notebook: Notebook, make: str, change: str
) -> None:
    notebook.names.update(np=np, torch=torch)
    notebook.cell(make)
    assert "v" in notebook.send("v")
    assert notebook.send("v") == set()
    notebook.cell(change)
    assert "v" in notebook.send("v")
    assert notebook.send("v") == set()


def test_names_that_functions_use_go_along_and_no_others(notebook: Notebook) -> None:
    notebook.cell(
        "k = 3; unrelated = object(); lock = __import__('threading').Lock()\n"
        "def scale(x): return x * k\n"
        "class Model:\n    def go(self): return scale(1)\n"
        "def train():\n    def inner(): return Model().go()\n    return inner()"
    )
    assert notebook.send("train") == {"train", "Model", "scale", "k"}
    notebook.cell("k = 4")
    assert notebook.send("train") == {"k"}  # the functions stay as they are


def test_an_instance_brings_its_class_and_what_that_uses(notebook: Notebook) -> None:
    notebook.cell("k = 3\nclass Model:\n    def go(self): return k\nm = Model()")
    assert notebook.send("m") == {"m", "Model", "k"}
    assert type(notebook.received["m"]) is notebook.received["Model"]


def test_what_the_cell_has_bound_before_a_function_is_called_is_not_sent(notebook: Notebook) -> None:
    notebook.cell("k = 3\ndef f(): return k")
    plan = notebook.plan("f", bound=frozenset({"k"}))
    assert set(plan.roots) == {"f"}


def test_functions_are_sent_without_the_values_of_their_globals(notebook: Notebook) -> None:
    notebook.cell("import numpy as np\nbig = np.zeros(1_000_000)\ndef f(): return big")
    notebook.send("f")
    assert (
        "big" not in notebook.received["f"].__globals__
        or notebook.received["f"].__globals__ is notebook.names
    )
    notebook.cell("def g(): return big.sum()")
    notebook.send("g")
    assert notebook.written < 10_000


def test_objects_stay_the_same_across_shipments(notebook: Notebook) -> None:
    notebook.cell(
        "import torch\nmodel = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)\n"
        "first = model[0]\nweights = list(model.parameters())\n"
    )
    notebook.names.pop("torch")
    for name in ("model", "optimizer", "scheduler", "first", "weights"):
        assert notebook.send(name) == {name}
    got = notebook.received
    assert got["optimizer"].param_groups[0]["params"][0] is got["model"][0].weight
    assert got["scheduler"].optimizer is got["optimizer"]
    assert got["first"] is got["model"][0]
    assert got["weights"][2] is got["model"][1].weight
    assert got["model"] is not notebook.names["model"]


def test_a_large_array_that_is_sent_under_two_names_costs_once(notebook: Notebook) -> None:
    notebook.cell("import numpy as np\na = np.ones(2_000_000)\nb = {'data': a}")
    notebook.send("a")
    assert notebook.written > 16_000_000
    notebook.send("b")
    assert notebook.written < 10_000
    assert notebook.received["b"]["data"] is notebook.received["a"]


def test_a_change_is_sent_with_all_that_leads_to_it(notebook: Notebook) -> None:
    notebook.cell(
        "import torch\ninner = torch.nn.Linear(2, 2)\nouter = torch.nn.Sequential(inner, torch.nn.ReLU())"
    )
    notebook.send("outer", "inner")
    relu = notebook.received["outer"][1]
    notebook.cell("inner.weight.data.fill_(7)")
    assert notebook.send("outer", "inner") == {"outer", "inner"}
    assert notebook.received["outer"][0] is notebook.received["inner"]
    assert float(notebook.received["inner"].weight[0, 0]) == 7
    assert notebook.received["outer"][1] is relu  # it was not changed, and leads to nothing that was
    # Sent in two cells, they still meet.
    notebook.cell("inner.weight.data.fill_(8)")
    notebook.send("inner")
    notebook.send("outer")
    assert notebook.received["outer"][0] is notebook.received["inner"]


def test_objects_in_a_circle_change_together(notebook: Notebook) -> None:
    notebook.cell(
        "class Part: pass\nhead, tail = Part(), Part()\nhead.other, tail.other = tail, head\nhead.x = 1"
    )
    notebook.send("head", "tail")
    assert notebook.send("head", "tail") == set()
    assert notebook.received["head"].other.other is notebook.received["head"]
    notebook.cell("tail.x = 2")
    assert notebook.send("head") == {"head"}
    assert notebook.received["head"].other.x == 2
    assert notebook.received["head"].other.other is notebook.received["head"]


def test_what_the_workers_bound_later_stays_theirs(notebook: Notebook) -> None:
    notebook.cell("import torch\nmodel = torch.nn.Linear(2, 2)\nlosses = [1]")
    notebook.send("model", "losses")
    for name in ("model", "losses"):
        notebook.shipping.bound_by_workers(name, [0, 1], notebook.names)
    assert notebook.send("model", "losses") == set()
    notebook.cell("losses.append(2)")
    assert notebook.send("model", "losses") == {"losses"}
    notebook.cell("model = torch.nn.Linear(2, 2)")
    assert notebook.send("model") == {"model"}


def test_a_name_that_only_the_workers_have_is_theirs_until_the_kernel_binds_it(notebook: Notebook) -> None:
    notebook.shipping.bound_by_workers("x", [0, 1], notebook.names)
    assert notebook.send("x") == set()
    notebook.cell("x = 1")
    assert notebook.send("x") == {"x"}


def test_names_that_the_workers_own_code_uses_are_sent_when_they_change(notebook: Notebook) -> None:
    notebook.cell("rate = 1")
    notebook.shipping.bound_by_workers("train", [0, 1], notebook.names, needs={"rate"})
    assert notebook.send("train") == {"rate"}
    assert notebook.send("train") == set()
    notebook.cell("rate = 2")
    assert notebook.send("train") == {"rate"}


def test_a_rank_that_lacks_a_name_gets_it_alone(notebook: Notebook) -> None:
    notebook.cell("x = 5")
    notebook.shipping.bound_by_workers("x", [0], notebook.names)
    plan = notebook.plan("x")
    assert plan.targets == {"x": {1}}
    notebook.shipping.arrived(plan)
    assert notebook.plan("x").is_empty


def test_a_deleted_name_is_sent_again(notebook: Notebook) -> None:
    notebook.cell("x = 5")
    notebook.send("x")
    notebook.shipping.unbound_by_workers("x", [0, 1])
    assert notebook.send("x") == {"x"}


def test_force_sends_what_is_theirs(notebook: Notebook) -> None:
    notebook.cell("x = 5")
    notebook.shipping.bound_by_workers("x", [0, 1], notebook.names)
    assert notebook.send("x", force=True) == {"x"}
    assert notebook.send("x") == set()


def test_a_shipment_that_never_arrived_is_made_again(notebook: Notebook) -> None:
    notebook.cell("import torch\nmodel = torch.nn.Linear(2, 2)")
    notebook.load(notebook.plan("model"))
    assert notebook.send("model") == {"model"}


def test_objects_that_a_worker_has_let_go_are_sent_anew(notebook: Notebook) -> None:
    notebook.cell("import torch\nmodel = torch.nn.Linear(2, 2)\nbox = {'model': model}")
    notebook.send("model")
    notebook.received.clear()
    gc.collect()
    assert notebook.send("box") == {"box"}
    assert isinstance(notebook.received["box"]["model"], torch.nn.Linear)


def test_the_store_lets_go_of_what_the_kernel_has_let_go(notebook: Notebook) -> None:
    notebook.cell("def f(): pass")
    notebook.send("f")
    kept = len(store._kept)
    notebook.cell("def f(): return 1")
    notebook.send("f")
    notebook.cell("x = 1")
    gc.collect()
    notebook.send("x")
    assert len(store._kept) == kept


def test_what_cannot_be_sent_is_told_with_the_way_to_it(notebook: Notebook) -> None:
    notebook.cell("import threading\nclass C: pass\nc = C(); c.lock = threading.Lock()\nok = 1")
    plan = notebook.plan("c", "ok")
    assert set(plan.roots) == {"ok"}
    assert ".lock" in plan.refused["c"]
    assert "cannot pickle" in plan.refused["c"]


def test_a_large_container_is_not_pickled_anew_at_each_look(notebook: Notebook) -> None:
    from nbaccel.launch.shipping import graph

    notebook.cell("data = ['text %d' % n for n in range(1_000_000)]")
    notebook.send("data")
    assert list(notebook.shipping._table.large) == [id(notebook.names["data"])]
    assert notebook.send("data") == set()
    notebook.cell("data = list(data) + ['one more']")
    assert notebook.send("data") == {"data"}
    notebook.cell("del data")
    notebook.plan("data")
    assert notebook.shipping._table.large == {}
    assert graph.LARGE == 8 << 20


def test_shells_own_names_are_not_sent(notebook: Notebook) -> None:
    notebook.cell("In = ['']; Out = {}; _ = 1; get_ipython = print; x = 1")
    assert notebook.send("In", "Out", "_", "get_ipython", "__builtins__", "x") == {"x"}


def test_looking_leaves_the_namespace_alone(notebook: Notebook) -> None:
    notebook.cell("import torch\nk = 1\ndef f(): return k\nmodel = torch.nn.Linear(1, 1)")
    before = dict(notebook.names)
    notebook.send("f", "model", "k")
    assert notebook.names == before
    assert all(notebook.names[name] is value for name, value in before.items())
