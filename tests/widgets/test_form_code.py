"""The lines to copy say what the form says: they are read back by those who take them."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from typing import Any

import pytest

from nbaccel import config
from nbaccel.config import SETTINGS, Resolved
from nbaccel.launch.launcher import notebook_launcher
from nbaccel.launch.request.resolve import settings_of
from nbaccel.magics.options import parse_line
from nbaccel.widgets.form_code import cell_line, configure_line, launcher_line

VALUES: list[dict[str, Any]] = [
    {},
    {"num_processes": 2},
    {"num_processes": 2, "mixed_precision": "bf16", "cpu": True},
    {"devices": (0, 2)},
    {"devices": (0, 2), "num_processes": 2, "mixed_precision": "fp16"},
    {"devices": "idle", "num_processes": 2},
    {"output": "main", "start_method": "spawn", "timeout": 60.0, "max_restarts": 2},
    {"gradient_accumulation_steps": 4, "log_dir": 'a "b" \\ c'},
    {"num_nodes": 2, "node_rank": 1, "master_addr": "10.0.0.1", "master_port": 29600},
    {"timeout": 0.5},
]


def resolved(values: dict[str, Any]) -> Resolved:
    return config.resolve(values, environ={}, file=None, session={})


def keywords(line: str) -> dict[str, Any]:
    call = ast.parse(line, mode="eval").body
    assert isinstance(call, ast.Call)
    return {str(each.arg): ast.literal_eval(each.value) for each in call.keywords}


@pytest.mark.parametrize("values", VALUES, ids=str)
def test_a_launch_without_configuration_comes_to_the_same(home: object, values: dict[str, Any]) -> None:
    line = launcher_line(resolved(values))
    assert line.startswith("notebook_launcher(train")
    given = keywords(line)
    inspect.signature(notebook_launcher).bind(None, **given)
    asked = {name: given[name] for name in inspect.signature(settings_of).parameters if name in given}
    got = settings_of(**asked)
    expected = resolved(values)
    for name in SETTINGS:
        told = given.get({"master_port": "use_port"}.get(name, name), got[name])
        told = tuple(told) if isinstance(told, list) else told
        if name == "num_processes" and isinstance(expected["devices"], tuple):
            continue  # the devices say it
        assert told == expected[name], name


@pytest.mark.parametrize("values", VALUES, ids=str)
def test_configure_takes_its_line_back(values: dict[str, Any]) -> None:
    expected, got = resolved(values), resolved(keywords(configure_line(resolved(values))))
    for name in SETTINGS:
        if name != "num_processes" or not isinstance(expected["devices"], tuple):
            assert got[name] == expected[name], name


@pytest.mark.parametrize("values", VALUES, ids=str)
def test_a_cells_line_is_read_by_the_magic(values: dict[str, Any]) -> None:
    line, missing = cell_line(resolved(values))
    options = parse_line(line.removeprefix("%%accelerate"))
    said = {
        "devices": options.gpu_ids,
        "cpu": options.cpu or None,
        "num_processes": options.num_processes,
        "mixed_precision": options.mixed_precision,
        "output": options.output,
        "timeout": options.timeout,
    }
    for name, value in values.items():
        if name in missing or (name == "num_processes" and "devices" in values and options.gpu_ids):
            assert said.get(name) is None
        else:
            assert said[name] == value, name


def test_what_a_cell_cannot_say_is_told() -> None:
    line, missing = cell_line(resolved({"num_processes": 2, "start_method": "spawn", "log_dir": "x"}))
    assert (line, missing) == ("%%accelerate -n 2", ("start_method", "log_dir"))


def test_strings_are_quoted_as_formatters_do() -> None:
    line: Callable[..., str] = lambda **values: launcher_line(resolved(values))  # noqa: E731
    assert line(mixed_precision="bf16") == 'notebook_launcher(train, mixed_precision="bf16")'
    assert line(gradient_accumulation_steps=4) == (
        'notebook_launcher(train, env={"NBACCEL_GRADIENT_ACCUMULATION_STEPS": "4"})'
    )
