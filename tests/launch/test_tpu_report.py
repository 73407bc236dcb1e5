"""What is said of a TPU: in the report, by the command line, by the self test's plan."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from nbaccel import config
from nbaccel.cli.app import application
from nbaccel.diagnosis.report import make_report
from nbaccel.launch.devices import abilities, discovery
from nbaccel.launch.devices.discovery import Discovery
from nbaccel.runtime.devices import device_named
from tests.launch.fake_tpu import V3, V5E, FakeTpuHost, FakeTpuMachine


@pytest.fixture
def host(tmp_path: Path, monkeypatch) -> FakeTpuHost:
    host = FakeTpuHost(tmp_path)
    monkeypatch.setattr(discovery, "_discovery", Discovery(FakeTpuMachine(host)))
    monkeypatch.setitem(sys.modules, "torch_xla", None)  # an import of it fails
    monkeypatch.setenv("TPU_ACCELERATOR_TYPE", "")
    return host


def _rows(title: str) -> list[list[str]]:
    return make_report().data()[title]


def test_B171_the_report_names_the_tpu_and_what_would_run(host, monkeypatch):
    host.plug_in(V5E, 8)
    monkeypatch.setenv("NBACCEL_MIXED_PRECISION", "bf16")
    monkeypatch.setenv("TPU_PROCESS_ADDRESSES", "local")
    assert _rows("Devices") == [["tpu v5e-8", "8 cores, 8 processes, by torch_xla; not opened"]]
    assert _rows("Would run") == [["8 processes on tpu v5e-8, bf16"]]
    assert ["TPU_PROCESS_ADDRESSES", "local"] in _rows("Environment")


def test_threads_are_told(host):
    host.plug_in(V3, 4)
    [[name, text]] = _rows("Devices")
    assert (name, text) == ("tpu v2/v3-8", "8 cores, 4 processes of 2 threads, by torch_xla; not opened")


def test_a_tpu_that_cannot_be_used_is_told_with_the_reason(host):
    host.packages = {}
    host.plug_in(V5E, 1)
    [[kind, text]] = _rows("Devices")
    assert kind == "cpu"
    assert "a TPU v5e-1 is here, but neither torch_xla nor torch_tpu is installed" in text


def test_torch_tpu_is_marked_as_not_run(host):
    host.packages = {"torch_tpu": "0.2.0"}
    host.plug_in(V5E, 4)
    assert _rows("Devices") == [
        ["tpu v5e-4", "4 cores, 4 processes, by torch_tpu, with which nbaccel was never run; not opened"]
    ]


def test_a_precision_that_a_tpu_lacks_is_a_problem_of_the_report(host, monkeypatch):
    host.plug_in(V5E, 8)
    monkeypatch.setenv("NBACCEL_MIXED_PRECISION", "fp16")
    report = make_report()
    assert ["nothing, see the problem below"] in report.data()["Would run"]
    remedy = "use mixed_precision='bf16' (mixed_precision comes from NBACCEL_MIXED_PRECISION)"
    assert remedy in report.problems[0]


def test_the_command_line_says_how_scripts_run_there(host, tmp_path):
    host.plug_in(V5E, 8)
    script = tmp_path / "train.py"
    script.write_text("")
    result = CliRunner().invoke(application, ["launch", str(script)])
    assert result.exit_code != 0
    assert "8 processes on tpu v5e-8: a script starts its own workers there" in result.output


def test_the_env_command_as_json(host):
    host.plug_in(V5E, 1)
    result = CliRunner().invoke(application, ["env", "--json"], catch_exceptions=False)
    devices = json.loads(result.stdout)["Devices"]
    assert devices == [["tpu v5e-1", "1 core, 1 process, by torch_xla; not opened"]]


def test_precisions_that_are_offered(host):
    host.plug_in(V5E, 8)
    found = discovery.visible_accelerators({})
    assert "bf16" not in abilities.lacking(found)
    assert config.PRECISIONS == ("no", "fp16", "bf16", "fp8")


def test_the_device_of_torch_tpu_is_asked_for_nothing_without_it(monkeypatch):
    """Its published interface, on a stand-in: torch_tpu can't even be imported without a TPU."""
    device = device_named("tpu")
    assert device.count() == 0
    calls: list[str] = []
    module = SimpleNamespace(
        device_count=lambda: 1,
        distributed=SimpleNamespace(set_tpu_launch_env=lambda: calls.append("set_tpu_launch_env")),
    )
    monkeypatch.setitem(sys.modules, "torch_tpu", SimpleNamespace())
    monkeypatch.setattr(type(device), "module", property(lambda _: module))
    assert device.count() == 1
    unit = SimpleNamespace()  # torch of this environment knows no device of that type
    device.activate(unit)
    assert calls == []  # alone there is nothing to be told
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "2")
    device.activate(unit)
    assert calls == ["set_tpu_launch_env"]
