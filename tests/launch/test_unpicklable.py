"""What can't be sent is named, with the way to it, at once and before anything was started."""

from __future__ import annotations

import functools
import os
import socket
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from nbaccel import notebook_launcher
from nbaccel.launch.payload import payload

LOCK = "cannot pickle '_thread.lock' object"


def sent(function, *args, **kwargs):
    with pytest.raises(TypeError) as caught:
        payload.dump_call((function, args, kwargs))
    text = str(caught.value)
    prefix = "can't be sent to another process: "
    assert text.startswith(prefix)
    return text.removeprefix(prefix)


def by_value(function):
    """As if it had been defined in a notebook: not to be found by its name."""
    function.__module__ = "__main__"
    return function


class Config:
    def __init__(self):
        self.lr = 0.1
        self.lock = threading.Lock()


def make(cfg: Any = None):
    def train(x=None, *rest, **more):
        return cfg

    return train


def test_closure_and_attribute():
    assert sent(make(Config())) == f"make.<locals>.train → closure 'cfg' → .lock: {LOCK}"


def test_arguments_by_their_names():
    train = make()
    lock = threading.Lock()
    assert sent(train, lock).startswith("argument 'x': ")
    assert sent(train, x={"a": [1, lock]}).startswith("argument 'x' → ['a'] → [1]: ")
    assert sent(train, 1, 2, lock).startswith("argument '*rest'[1]: ")
    assert sent(train, option=lock).startswith("argument 'option': ")
    assert sent(print, lock) == f"argument '*args'[0]: {LOCK}" or sent(print, lock).startswith("args")


def test_arguments_that_do_not_fit_are_still_named():
    def none():
        return None

    assert sent(by_value(none), 1, threading.Lock()).startswith("args[1]: ")


def test_globals_of_the_function_and_of_those_it_calls():
    namespace = {"__name__": "__main__", "guard": threading.Lock()}
    code = "def inner():\n    return guard\ndef outer():\n    return inner()\n"
    exec(code, namespace)
    assert sent(namespace["outer"]) == f"outer → global 'inner' → global 'guard': {LOCK}"


def test_defaults():
    lock = threading.Lock()

    def positional(a, b=1, c=lock):
        return c

    def named(*, only=lock):
        return only

    assert " → default 'c': " in sent(positional)
    assert " → default 'only': " in sent(named)


def test_partials_methods_and_decorated_functions():
    config = Config()

    class Trainer:
        def __init__(self):
            self.config = config

        def fit(self):
            return self.config

    assert ".fit → self → .config → .lock: " in sent(Trainer().fit)
    assert sent(functools.partial(make(), Config())).startswith("functools.partial(")
    assert "argument 'x' → .lock" in sent(functools.partial(make(), Config()))

    @functools.lru_cache
    def cached():
        return config

    assert "closure 'config' → .lock: " in sent(cached)


def test_containers_fields_slots_and_classes():
    @dataclass
    class Record:
        inner: list = field(default_factory=lambda: [threading.Lock()])

    class Slotted:
        __slots__ = ("handle",)

        def __init__(self):
            self.handle = threading.Lock()

    class Shared:
        lock = threading.Lock()

    train = make()
    assert "argument 'x' → .inner → [0]: " in sent(train, Record())
    assert "argument 'x' → .handle: " in sent(train, Slotted())
    assert "argument 'x' → class 'Shared' → .lock: " in sent(train, Shared())
    assert "argument 'x' → .lock: " in sent(train, Shared)


@pytest.mark.parametrize(
    ("make_it", "reason"),
    [
        (lambda: (i for i in range(3)), "cannot pickle 'generator' object"),
        (socket.socket, "socket"),
        (lambda: Path(os.devnull).open("w"), "files that are not opened for reading"),  # noqa: SIM115
        (threading.Event, "_thread.lock"),
    ],
    ids=["generator", "socket", "file", "event"],
)
def test_other_things_that_can_not_be_sent(make_it, reason):
    thing = make_it()
    try:
        told = sent(make(), [thing])
    finally:
        if hasattr(thing, "close"):
            thing.close()
    assert told.startswith("argument 'x' → [0]")
    assert reason in told


def test_cycles_end():
    ring: list[Any] = []
    ring.append(ring)
    ring.append(threading.Lock())
    assert sent(make(), ring) == f"argument 'x' → [1]: {LOCK}"


def test_an_object_whose_attributes_misbehave():
    class Odd:
        def __init__(self):
            self.lock = threading.Lock()

        @property
        def __dict__(self):
            raise RuntimeError("no")

        def __reduce_ex__(self, protocol):
            raise ValueError("won't")

    assert sent(make(), Odd()) == "argument 'x': won't"


def test_a_wide_container_is_searched_within_a_budget():
    many = [object() for _ in range(20_000)]
    many.append(threading.Lock())
    start = time.monotonic()
    told = sent(make(), many)
    assert time.monotonic() - start < 10
    assert told.startswith("argument 'x'")
    assert LOCK in told


def test_large_data_beside_it_is_not_copied_to_find_out():
    data = torch.zeros(200 << 20 >> 2)
    start = time.monotonic()
    assert sent(make(), {"data": data, "lock": threading.Lock()}).startswith("argument 'x' → ['lock']: ")
    assert time.monotonic() - start < 2


def test_B041_a_model_wrapped_for_a_process_group():
    class Wrapper(torch.nn.parallel.DistributedDataParallel):
        def __init__(self, module):  # the real one wants a process group
            torch.nn.Module.__init__(self)
            self.module = module

    told = sent(make(), {"model": Wrapper(torch.nn.Linear(1, 1))})
    assert told.startswith(
        "argument 'x' → ['model']: cannot pickle a Wrapper: it belongs to the process group"
    )
    assert "accelerator.unwrap_model(model)" in told
    with payload.dump_result(Wrapper(torch.nn.Linear(1, 1))) as packed:
        assert type(packed.load()) is torch.nn.Linear


def test_the_launcher_says_so_before_anything_starts(monkeypatch):
    from nbaccel.launch import launcher

    monkeypatch.setattr(launcher, "_launch_once", None)
    with pytest.raises(TypeError, match=r"closure 'cfg' → \.lock"):
        notebook_launcher(make(Config()), (), 2, cpu=True)


@pytest.mark.parametrize("returns", ["main", "all"])
def test_B184_a_value_that_can_not_come_home(returns):
    def work():
        import os

        rank = int(os.environ["RANK"])
        if rank == (1 if returns == "all" else 0):
            return {"model": [1, (i for i in range(2))]}
        time.sleep(0 if returns == "main" else 60)
        return None

    rank = 1 if returns == "all" else 0
    start = time.monotonic()
    with pytest.raises(TypeError) as caught:
        notebook_launcher(work, (), 2, cpu=True, returns=returns)
    assert time.monotonic() - start < 20
    assert caught.value.rank == rank
    assert str(caught.value) == (
        f"the value that rank {rank} returned can't be sent to the notebook: "
        "['model'] → [1]: cannot pickle 'generator' object; "
        "return the rest without that part, e.g. plain values, tensors or a state_dict()"
    )


def test_B184_values_that_stay_in_their_worker_may_be_anything():
    def work():
        import os

        return "main" if os.environ["RANK"] == "0" else threading.Lock()

    assert notebook_launcher(work, (), 2, cpu=True) == "main"
