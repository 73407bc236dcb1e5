"""``nbaccel env``: what it shows, and that it comes out whatever is broken."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from nbaccel import config
from nbaccel.cli.app import application
from nbaccel.diagnosis import report


def call(*words: str) -> Result:
    return CliRunner().invoke(application, ["env", *words], catch_exceptions=False)


def test_B153_it_works_in_an_empty_home_and_writes_nothing(home: Path) -> None:
    result = call()
    assert result.exit_code == 0, result.output
    assert "Would run" in result.output
    assert list(home.rglob("*")) == []


def test_B115_each_value_is_shown_with_its_origin(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("mixed_precision: bf16\nnum_processes: 2\n")
    monkeypatch.setenv("NBACCEL_CONFIG_FILE", "c.yaml")
    monkeypatch.setenv("NBACCEL_NUM_PROCESSES", "3")
    monkeypatch.setenv("NBACCEL_CPU", "1")
    rows = {row[0]: row[1:] for row in json.loads(call("--json").stdout)["Settings"]}
    assert rows["config file"][0] == "c.yaml"
    assert rows["mixed_precision"] == ["bf16", "c.yaml, line 1"]
    assert rows["num_processes"] == ["3", "NBACCEL_NUM_PROCESSES"]
    assert rows["output"] == ["all", "default"]
    assert set(rows) == {"config file", *config.SETTINGS}
    assert "3 processes on cpu, bf16" in call().output


def test_a_broken_configuration_is_told_and_the_rest_still_comes(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("mixed_precision: fp32\n")
    result = call("--config-file", "c.yaml")
    assert result.exit_code == 2
    assert "problem: c.yaml, line 1: mixed_precision='fp32'" in result.output
    assert "torch" in result.output


def test_what_is_not_used_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("devices: 0\n")
    monkeypatch.setenv("NBACCEL_CPU", "1")
    assert "is not used, because of cpu=true (NBACCEL_CPU)" in call("--config-file", "c.yaml").output


def test_secrets_of_the_environment_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hush")
    monkeypatch.setenv("TORCH_API_KEY", "hush")
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    text = report.make_report().text()
    assert "hush" not in text
    assert "NCCL_DEBUG" in text
