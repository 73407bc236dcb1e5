"""``notebook_launcher`` takes what isn't written from the configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from nbaccel import Accelerator, config, notebook_launcher
from nbaccel.errors import LaunchTimeout


@pytest.fixture(autouse=True)
def nothing_configured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for each in config.SETTINGS.values():
        monkeypatch.delenv(each.variable, raising=False)
    monkeypatch.setenv("NBACCEL_CONFIG_FILE", str(tmp_path / "c.yaml"))
    (tmp_path / "c.yaml").write_text(
        "num_processes: 2\ncpu: true\nmixed_precision: bf16\ngradient_accumulation_steps: 3\n"
    )


def facts() -> tuple[int, str, int, int]:
    accelerator = Accelerator()
    given = Accelerator(gradient_accumulation_steps=1).gradient_accumulation_steps
    return (
        accelerator.num_processes,
        accelerator.mixed_precision,
        accelerator.gradient_accumulation_steps,
        given,
    )


def test_B115_the_file_holds_where_the_call_says_nothing() -> None:
    assert notebook_launcher(facts) == (2, "bf16", 3, 1)


def test_B027_one_argument_leaves_the_others_to_the_file() -> None:
    assert notebook_launcher(facts, num_processes=1) == (1, "bf16", 3, 1)
    assert notebook_launcher(facts, mixed_precision="no") == (2, "no", 3, 1)


def test_the_sessions_values_come_before_the_file() -> None:
    config.set_session_values({"num_processes": 1, "cpu": True, "mixed_precision": "no"})
    try:
        assert notebook_launcher(facts) == (1, "no", 3, 1)
    finally:
        config.set_session_values({})


def test_options_of_the_launch_are_configured_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NBACCEL_OUTPUT", "none")
    notebook_launcher(print, ("a word",), num_processes=1)
    assert "a word" not in capsys.readouterr().out
    # An option that is written wins, even when it is the default.
    notebook_launcher(print, ("a word",), num_processes=1, output="all")
    assert "a word" in capsys.readouterr().out


def test_a_configured_time_limit_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    monkeypatch.setenv("NBACCEL_TIMEOUT", "1")
    with pytest.raises(LaunchTimeout):
        notebook_launcher(time.sleep, (100,), num_processes=1)


def test_a_configured_value_that_cannot_be_names_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NBACCEL_MIXED_PRECISION", "fp32")
    with pytest.raises(ValueError, match=r"NBACCEL_MIXED_PRECISION.*no, fp16, bf16, fp8"):
        notebook_launcher(facts)


def test_devices_that_are_not_there_name_the_place_that_asks_for_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("NBACCEL_CPU", "false")
    monkeypatch.setenv("NBACCEL_DEVICES", "98,99")
    with pytest.raises(ValueError, match=r"98, 99.*devices comes from NBACCEL_DEVICES"):
        notebook_launcher(facts)
