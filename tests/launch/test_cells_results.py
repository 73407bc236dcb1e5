"""What a cell has bound, and what of it is plain enough to go home; no worker is needed to tell."""

from __future__ import annotations

import collections
import datetime as dt
import enum
import gc
import pickle
import sys
import types
import weakref
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from nbaccel.launch.cells.results import Watch, is_plain, needs_of, report

LIMIT = 1 << 20


class Pair(NamedTuple):
    a: int
    b: int


class Colour(enum.IntEnum):
    RED = 1


@pytest.fixture
def main(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    module = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", module)
    return vars(module)


def run(namespace: dict[str, Any], text: str, *named: str) -> dict[str, Any]:
    watch = Watch(namespace, named, LIMIT)
    exec(compile(text, "<cell>", "exec"), namespace)
    return report(watch, namespace, sends=True, wanted=(), limit=LIMIT)


@pytest.mark.parametrize(
    "value",
    [
        None, True, 1, 1.5, 2j, "text", b"bytes", ..., range(3), slice(1, 2),
        [1, (2, {"a": {3, 4}})], frozenset({1}), collections.deque([1]), collections.Counter("aab"),
        collections.OrderedDict(a=1), collections.defaultdict(list, a=[1]), Pair(1, 2),
        dt.date(2026, 1, 1), dt.timedelta(1), Decimal("1.5"), Path("a/b"),
        np.float32(1), np.zeros((3, 3)), np.array(["a"]), torch.zeros(3), torch.ones(1).bfloat16(),
        torch.Size([1, 2]), torch.float32, torch.device("cpu"), {"loss": [torch.tensor(1.0)]},
    ],
    ids=repr,
)  # fmt: skip
def test_plain_data(value: object) -> None:
    assert is_plain(value, LIMIT)


@pytest.mark.parametrize(
    "value",
    [
        object(), lambda: 1, int, sys, torch.nn.Linear(1, 1), torch.nn.Parameter(torch.zeros(1)),
        torch.optim.SGD([torch.zeros(1)], lr=1), torch.zeros(1, device="meta"), Colour.RED,
        np.array([object()]), [object()], {"a": lambda: 1}, collections.defaultdict(lambda: 0),
        torch.eye(2).to_sparse(), iter([1]),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_not_plain(value: object) -> None:
    assert not is_plain(value, LIMIT)


def test_a_list_that_holds_itself_is_not_plain() -> None:
    value: list[Any] = []
    value.append(value)
    assert not is_plain(value, LIMIT)


@pytest.mark.parametrize(
    "make", [lambda n: "x" * n, bytes, lambda n: np.zeros(n, np.uint8), lambda n: [0] * n]
)
def test_the_limit_holds_for_all_kinds(make: Any) -> None:
    assert is_plain(make(1000), LIMIT)
    assert not is_plain(make(2 << 20), LIMIT)
    assert is_plain(make(2 << 20), 1 << 28)


def test_data_frames() -> None:
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"loss": [1.0, 2.0], "name": ["a", "b"]})
    assert is_plain(frame, LIMIT)
    assert is_plain(frame["loss"], LIMIT)
    assert not is_plain(pd.DataFrame({"x": np.zeros(1_000_000)}), LIMIT)


# --- what was bound -----------------------------------------------------------------------------------


def test_new_and_rebound_names(main: dict[str, Any]) -> None:
    main.update(a=1, b=[1], c=2.5)
    found = run(main, "a = 2\nnew = 'text'\ndel c")
    assert found["home"] == {"a": 2, "new": "text"}
    assert found["unbound"] == {"c"}
    assert set(found["bound"]) == {"a", "new"}


@pytest.mark.parametrize("value", [1.5, "a", None, [1], {"k": [1]}, np.zeros(3)])
def test_a_name_that_was_left_alone_is_not_told(main: dict[str, Any], value: object) -> None:
    main["x"] = value
    assert run(main, "if False: x = 3", "x")["bound"] == {}


def test_a_number_that_takes_the_old_one_s_place_in_memory_is_seen(main: dict[str, Any]) -> None:
    for step in range(200):
        main["x"] = float(step)
        assert run(main, f"x = None\nx = {step}.5\n")["home"] == {"x": step + 0.5}


@pytest.mark.parametrize(
    ("before", "change"),
    [
        ([1], "x.append(2)"),
        ({"loss": []}, "x['loss'].append(1)"),
        (np.zeros(3), "x[1] = 5"),
        (torch.zeros(3), "x[1] = 5"),
    ],
)
def test_plain_data_that_was_changed_in_place_goes_home(
    main: dict[str, Any], before: Any, change: str
) -> None:
    main["x"] = before
    assert run(main, change, "x")["home"]["x"] is before


def test_names_bound_by_functions_and_star_imports(main: dict[str, Any]) -> None:
    found = run(main, "def f():\n    global g\n    g = 3\nf()\nfrom math import *")
    assert found["home"]["g"] == 3
    assert found["imported"]["sqrt"] == ("math", "sqrt")


def test_what_stays_is_named_with_its_kind(main: dict[str, Any]) -> None:
    main["torch"] = torch
    found = run(main, "model = torch.nn.Linear(1, 1); optimizer = torch.optim.SGD(model.parameters(), 1)")
    assert found["stays"] == {"model": "Linear", "optimizer": "SGD"}
    assert found["home"] == {}


def test_a_loss_goes_home_without_its_graph(main: dict[str, Any]) -> None:
    main["torch"] = torch
    found = run(
        main, "w = torch.ones(2, requires_grad=True)\nloss = w.sum()\nhistory = [loss]\nboth = {'l': loss}"
    )
    assert not found["home"]["loss"].requires_grad
    assert not found["home"]["history"][0].requires_grad
    assert not found["home"]["both"]["l"].requires_grad
    assert found["home"]["w"].requires_grad
    assert main["loss"].requires_grad


def test_imports_are_told_by_name(main: dict[str, Any]) -> None:
    found = run(main, "import math\nfrom torch import nn\nfrom torch.nn import Linear")
    assert found["imported"] == {
        "math": ("math", ""),
        "nn": ("torch.nn", ""),
        "Linear": ("torch.nn.modules.linear", "Linear"),
    }


def test_functions_and_classes_of_the_cell_are_packed(main: dict[str, Any]) -> None:
    found = run(main, "big = 'x' * 100\ndef f(): return big\nclass A:\n    def go(self): return f()")
    function = pickle.loads(found["code"]["f"])
    assert function.__globals__ is main
    assert function() == "x" * 100
    assert "A" in found["code"]
    assert found["bound"]["f"] == {"big"}
    assert "f" in found["bound"]["A"]


def test_a_function_that_cannot_be_packed_stays_silently(main: dict[str, Any]) -> None:
    found = run(
        main, "def make():\n    lock = __import__('threading').Lock()\n    return lambda: lock\nf = make()"
    )
    assert "f" not in found["code"]
    assert "f" in found["bound"]


def test_watching_keeps_no_memory(main: dict[str, Any]) -> None:
    main["model"] = torch.nn.Linear(1, 1)
    gone = weakref.ref(main["model"])
    watch = Watch(main, ["model"], LIMIT)
    del main["model"]
    gc.collect()
    assert gone() is None
    assert watch.unbound() == {"model"}


def test_needs_of_instances_and_models(main: dict[str, Any]) -> None:
    main["torch"] = torch
    exec(
        "def act(x): return scale * x\n"
        "class Net(torch.nn.Module):\n    def forward(self, x): return act(x)\n"
        "class Plain:\n    @property\n    def p(self): return limit\n"
        "    @staticmethod\n    def s(): return other\n"
        "model = torch.nn.Sequential(Net())\nplain = Plain()\n",
        main,
    )
    assert "act" in needs_of(main["model"])
    assert {"limit", "other"} <= needs_of(main["plain"])
    assert needs_of(main["act"]) == {"scale"}
    assert needs_of(3) == frozenset()
