"""Every argument of ``notebook_launcher``: a bad value is told with reason and remedy, and starts nothing."""

from __future__ import annotations

import functools
import inspect
import os
import subprocess
from enum import Enum
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch

from nbaccel import notebook_launcher
from nbaccel.launch import launcher
from nbaccel.launch.request import arguments
from nbaccel.launch.request.options import check_options
from nbaccel.launch.zygotes import zygote_client


class Called(Exception):
    """The checks let it pass: something would have been started."""


def _train(rate=0.1):
    return rate


async def _coroutine():
    return 1


class Colour(Enum):
    RED = 1


@pytest.fixture(autouse=True)
def nothing_may_start(monkeypatch):
    """Every way to a process is closed, and so is the port: who gets there has passed the checks."""

    def forbidden(*_args, **_kwargs):
        raise Called

    monkeypatch.setattr(subprocess.Popen, "__init__", forbidden)
    monkeypatch.setattr(os, "fork", forbidden)
    monkeypatch.setattr(zygote_client, "current_zygote", forbidden)
    monkeypatch.setattr(launcher, "open_rendezvous", forbidden)


BAD = [
    # B006: the result of calling the function, or something else that can't be called
    (
        {"function": None},
        TypeError,
        r"function=None can't be called; pass the function itself.*not .*train\(\.\.\.\)\)",
    ),
    ({"function": 0.5}, TypeError, r"function=0.5 can't be called"),
    ({"function": _coroutine}, TypeError, r"_coroutine.* is a coroutine function.*asyncio\.run"),
    # B006: a single argument without its comma
    ({"args": 5}, TypeError, r"args=5 is not a tuple or list.*one-element tuple, args=\(5,\)"),
    ({"args": "text"}, TypeError, r"args='text' is not a tuple or list.*args=\('text',\)"),
    ({"args": torch.zeros(1000)}, TypeError, r"args=<Tensor of shape \(1000,\)> is not a tuple"),
    ({"args": None}, TypeError, r"args=None is not a tuple or list"),
    ({"args": {"rate": 1}}, TypeError, r"args=\{'rate': 1\} is not a tuple or list"),
    (
        {"args": (1, 2)},
        TypeError,
        r"_train\(rate=0\.1\) can't be called with args=\(1, 2\): too many positional",
    ),
    (
        {"kwargs": {"speed": 1}},
        TypeError,
        r"_train.*args=\(\), kwargs=\{'speed': 1\}: got an unexpected .*'speed'",
    ),
    ({"kwargs": [1]}, TypeError, r"kwargs=\[1\] is not a mapping"),
    ({"kwargs": {1: 2}}, TypeError, r"kwargs has the key 1, which is no name"),
    ({"num_processes": 0}, ValueError, r"num_processes=0 is too small; it must be at least 1"),
    ({"num_processes": -2}, ValueError, r"num_processes=-2 is too small"),
    (
        {"num_processes": 2.0},
        TypeError,
        r"num_processes=2\.0 is not a whole number; write e\.g\. num_processes=2",
    ),
    ({"num_processes": "2"}, TypeError, r"num_processes='2' is not a whole number"),
    ({"num_processes": True}, TypeError, r"num_processes=True is not a whole number"),
    (
        {"mixed_precision": "fp61"},
        ValueError,
        r"mixed_precision='fp61' is not known; choose one of no, fp16, bf16, fp8",
    ),
    ({"mixed_precision": 16}, ValueError, r"mixed_precision=16 is not known"),
    ({"devices": "cpu"}, ValueError, r"devices='cpu' names no accelerators; for the CPU write cpu=True"),
    ({"use_port": "http"}, ValueError, r"use_port='http' is not a port number, 1 to 65535; leave it out"),
    ({"use_port": 65536}, ValueError, r"use_port=65536 is not a port"),
    ({"use_port": -1}, ValueError, r"use_port=-1 is not a port"),
    ({"use_port": 29500.0}, TypeError, r"use_port=29500\.0 is not a port"),
    ({"use_port": [29500]}, TypeError, r"use_port=\[29500\] is not a port"),
    ({"use_port": True}, TypeError, r"use_port=True is not a port"),
    ({"master_addr": ""}, ValueError, r"master_addr='' is not a host; write the first machine's"),
    ({"master_addr": "http://host"}, ValueError, r"master_addr='http://host' is not a host"),
    ({"master_addr": 127}, TypeError, r"master_addr=127 is not a text"),
    (
        {"num_nodes": 2, "node_rank": 2},
        ValueError,
        r"node_rank=2 lies outside num_nodes=2.*from 0 to 1; correct",
    ),
    ({"node_rank": 1}, ValueError, r"node_rank=1 lies outside the number of machines, which is 1"),
    ({"node_rank": -1}, ValueError, r"node_rank=-1 is too small; it must be at least 0"),
    ({"node_rank": "0"}, TypeError, r"node_rank='0' is not a whole number"),
    ({"num_nodes": 0}, ValueError, r"num_nodes=0 is too small"),
    ({"num_nodes": 1.5}, TypeError, r"num_nodes=1\.5 is not a whole number"),
    ({"rdzv_backend": "etcd"}, ValueError, r"rdzv_backend='etcd' is not known; choose one of static, c10d"),
    ({"rdzv_backend": None}, TypeError, r"rdzv_backend=None is not a text; choose one of static"),
    (
        {"rdzv_backend": "c10d", "num_nodes": 2},
        ValueError,
        r"rdzv_backend='c10d' and num_nodes=2 don't go together.*rdzv_backend='static'",
    ),
    ({"rdzv_endpoint": "host:x"}, ValueError, r"rdzv_endpoint='host:x' is not a port number"),
    (
        {"rdzv_endpoint": "host:"},
        ValueError,
        r"rdzv_endpoint='host:' ends without a port; add one, e.g. host:29500",
    ),
    ({"rdzv_endpoint": ":29500"}, ValueError, r"rdzv_endpoint=':29500' is not a host"),
    ({"rdzv_endpoint": "::1"}, ValueError, r"rdzv_endpoint='::1': which colon.*\[::1\]:29500"),
    ({"rdzv_endpoint": 29500}, TypeError, r"rdzv_endpoint=29500 is not a text"),
    (
        {"rdzv_endpoint": "a:29500", "master_addr": "b"},
        ValueError,
        r"rdzv_endpoint='a:29500' and master_addr='b' contradict each other; leave one out",
    ),
    (
        {"rdzv_endpoint": "a:29500", "use_port": 29501},
        ValueError,
        r"rdzv_endpoint='a:29500' and use_port=29501 contradict each other",
    ),
    ({"rdzv_conf": "timeout=3"}, TypeError, r"rdzv_conf='timeout=3' is not a mapping"),
    ({"rdzv_id": None}, TypeError, r"rdzv_id=None is not a text"),
    ({"max_restarts": -1}, ValueError, r"max_restarts=-1 is too small; it must be at least 0"),
    ({"monitor_interval": -0.1}, ValueError, r"monitor_interval=-0\.1 must be a number of seconds"),
    ({"monitor_interval": "fast"}, TypeError, r"monitor_interval='fast' is not a number"),
    (
        {"log_line_prefix_template": 3},
        TypeError,
        r"log_line_prefix_template=3 is not a text; it may name \$\{role_name\}",
    ),
    (
        {"log_line_prefix_template": "${node}"},
        ValueError,
        r"\$\{node\} in it is not known; it may name .*\$\{rank\}",
    ),
    ({"log_line_prefix_template": "5 $ "}, ValueError, r"='5 \$ '.*a plain \$ is written \$\$"),
    ({"log_line_prefix_template": "a\nb"}, ValueError, r"no one-line template"),
    ({"devices": []}, ValueError, r"devices=\[\] names no device; leave devices out"),
    ({"devices": 1}, TypeError, r"devices=1 is a number; write a list, devices=\[1\]"),
    ({"devices": "0,1"}, ValueError, r"devices='0,1' is not known; write 'idle', or a list"),
    ({"devices": ["0"]}, TypeError, r"devices=\['0'\] holds '0', which is no whole number"),
    ({"devices": [True]}, TypeError, r"holds True, which is no whole number"),
    ({"devices": {0, 1}}, TypeError, r"devices=\{0, 1\} is not a list of numbers"),
    ({"devices": b"01"}, TypeError, r"is not a list of numbers"),
    ({"devices": [0], "cpu": True}, ValueError, r"cpu=True and devices=\[0\] contradict each other"),
    ({"devices": "idle", "cpu": True}, ValueError, r"cpu=True and devices='idle' contradict"),
    ({"devices": [], "cpu": True}, ValueError, r"devices=\[\] names no device"),
    ({"cpu": "false"}, TypeError, r"cpu='false' is neither True nor False"),
    ({"cpu": 1}, TypeError, r"cpu=1 is neither True nor False"),
    (
        {"start_method": "thread"},
        ValueError,
        r"start_method='thread' is not known; choose one of auto, zygote, spawn, fork",
    ),
    ({"output": "rank0"}, ValueError, r"output='rank0' is not known; choose one of all, main, none"),
    ({"progress": "always"}, ValueError, r"progress"),
    ({"progress": 3.5}, TypeError, r"progress"),
    ({"output": ["all"]}, TypeError, r"output=\['all'\] is not a text"),
    ({"returns": "both"}, ValueError, r"returns='both' is not known; choose one of main, all"),
    ({"timeout": 0}, ValueError, r"timeout=0 leaves no time; write a positive number of seconds, or None"),
    ({"timeout": -1.5}, ValueError, r"timeout=-1\.5 leaves no time"),
    ({"timeout": float("nan")}, ValueError, r"timeout=nan must be a number of seconds"),
    ({"timeout": "5"}, TypeError, r"timeout='5' is not a number; write seconds"),
    ({"timeout": True}, TypeError, r"timeout=True is not a number"),
    ({"env": "A=1"}, TypeError, r"env='A=1' is not a mapping; write env=\{'NAME': 'value'\}"),
    ({"env": {1: "a"}}, TypeError, r"env has the name 1, which is no text; write '1'"),
    (
        {"env": {"A": None}},
        TypeError,
        r"env sets A=None, which is no text, number or path.*leave the name out",
    ),
    ({"env": {"A": b"x"}}, TypeError, r"env sets A=b'x', which is no text"),
    ({"env": {"A": ["x"]}}, TypeError, r"env sets A=\['x'\], which is no text"),
    ({"env": {"A": Colour.RED}}, TypeError, r"env sets A=<Colour.RED: 1>, which is no text"),
    ({"env": {"A": "x\0"}}, ValueError, r"env sets A=.*zero byte: remove it"),
    ({"env": {"A=B": "x"}}, ValueError, r"env has the name 'A=B'; names can't"),
    ({"env": {"": "x"}}, ValueError, r"env has the name ''"),
    (
        {"env": {"WORLD_SIZE": 4}},
        ValueError,
        r"env sets WORLD_SIZE=4, but the launcher sets WORLD_SIZE.*num_processes",
    ),
]


@pytest.mark.parametrize(("arguments_given", "kind", "message"), BAD)
def test_a_bad_value_is_told_and_nothing_starts(arguments_given, kind, message):
    given = dict(arguments_given)
    with pytest.raises(kind, match=message):
        notebook_launcher(given.pop("function", _train), **given)


def test_B180_a_machine_outside_the_number_of_machines():
    with pytest.raises(ValueError, match=r"node_rank=2 lies outside num_nodes=2.*from 0 to 1"):
        notebook_launcher(_train, num_nodes=2, node_rank=2)


def test_every_argument_has_a_bad_value_here():
    tried = {name for given, _, _ in BAD for name in given}
    assert set(inspect.signature(notebook_launcher).parameters) <= tried | {"function"}


GOOD = [
    {"args": [0.1]},
    {"args": (), "kwargs": {"rate": 1}},
    {"num_processes": np.int64(2)},
    {"num_processes": 2, "node_rank": 1, "num_nodes": 2, "rdzv_endpoint": "10.0.0.1:29500"},
    {"rdzv_backend": "c10d", "rdzv_conf": {"timeout": 3}, "rdzv_id": 7},
    {"use_port": "29500"},
    {"num_nodes": None, "rdzv_backend": "c10d"},
    {"use_port": 0},
    {"use_port": ""},
    {"timeout": np.float32(3)},
    {"timeout": Fraction(1, 2)},
    {"timeout": float("inf")},
    {"mixed_precision": "BF16"},
    {"mixed_precision": False},
    {"env": {"A": 1, "B": 0.5, "C": Path("/tmp"), "D": True, "E": ""}},
    {"cpu": True, "num_processes": 300},
    {"log_line_prefix_template": "[$rank]: "},
]


@pytest.mark.parametrize("given", GOOD)
def test_good_values_pass(given):
    with pytest.raises(Called):
        notebook_launcher(_train, **given)


def test_values_are_brought_into_one_form():
    options = check_options(use_port=" 29500 ", timeout=float("inf"), rdzv_endpoint="[::1]")
    assert (options.port, options.timeout, options.master_addr) == (29500, None, "::1")
    options = check_options(rdzv_endpoint="[fe80::1]:1234")
    assert (options.master_addr, options.port) == ("fe80::1", 1234)
    assert arguments.check_env({"A": 1, "B": 0.5, "C": Path("/tmp")}) == {"A": "1", "B": "0.5", "C": "/tmp"}
    assert arguments.check_devices(range(2)) == (0, 1)
    assert arguments.check_devices([np.int32(3)]) == (3,)


def test_labels_count_local_ranks_from_this_machine_s_first():
    options = check_options(log_line_prefix_template="${rank}.${local_rank} ")
    assert options.labels(range(4, 6)) == {4: "4.0 ", 5: "5.1 "}
    assert check_options().labels(range(2)) is None


def _with_a_size(function):
    """A decorator that passes an argument of its own, as batch-size finders do."""

    @functools.wraps(function)
    def call(*args):
        return function(128, *args)

    return call


def test_a_signature_that_may_lie_is_not_held_against_the_caller():
    @_with_a_size
    def train(size, rate):
        return size, rate

    class Trainer:
        def fit(self, rate):
            return rate

        def __call__(self):
            return 1

    arguments.check_call(train, (0.1,))
    arguments.check_call(Trainer().fit, (0.1,))
    arguments.check_call(Trainer(), (1, 2, 3))  # not a plain function: it is called and will tell itself
    arguments.check_call(max, (1, 2))
    arguments.check_call(functools.partial(train, 1), ())
    with pytest.raises(
        TypeError, match=r"fit\(rate\) can't be called with args=\(\): missing a required argument: 'rate'"
    ):
        arguments.check_call(Trainer().fit, ())
