"""Who wins, key by key, and where each value says it came from."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from nbaccel import config
from nbaccel.config import Origin
from nbaccel.errors import ConfigError

VALUES = {
    Origin.EXPLICIT: 5,
    Origin.SESSION: 4,
    Origin.ENVIRONMENT: 3,
    Origin.FILE: 2,
}


@pytest.mark.parametrize(
    "said", [set(some) for n in range(5) for some in itertools.combinations(VALUES, n)], ids=str
)
def test_the_first_source_that_says_something_wins(said: set[Origin], tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("max_restarts: 2\n" if Origin.FILE in said else "")
    if Origin.SESSION in said:
        config.set_session_values({"max_restarts": 4})
    resolved = config.resolve(
        {"max_restarts": 5 if Origin.EXPLICIT in said else None},
        environ={"NBACCEL_MAX_RESTARTS": "3"} if Origin.ENVIRONMENT in said else {},
        file=path,
    )
    strongest = min(said, default=Origin.DEFAULT)
    assert resolved.origin("max_restarts") is strongest
    assert resolved["max_restarts"] == VALUES.get(strongest, 0)


def test_B027_one_flag_leaves_the_other_keys_to_the_file(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("num_processes: 1\nmixed_precision: bf16\n")
    resolved = config.resolve({"master_port": 5555}, file=path, environ={})
    assert (resolved["num_processes"], resolved["mixed_precision"], resolved["master_port"]) == (
        1,
        "bf16",
        5555,
    )


def test_B115_no_on_the_command_line_wins_over_the_files_precision(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("mixed_precision: bf16\n")
    assert config.resolve({"mixed_precision": None}, file=path, environ={})["mixed_precision"] == "bf16"
    assert config.resolve({"mixed_precision": "no"}, file=path, environ={})["mixed_precision"] == "no"


def test_B153_nothing_is_configured_and_nothing_is_written(nothing_configured: Path) -> None:
    resolved = config.resolve()
    assert resolved.file is None
    assert resolved.warnings == ()
    assert resolved.stated() == {}
    assert list(nothing_configured.iterdir()) == []


def test_the_users_file_is_found_and_the_variable_wins_over_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from nbaccel.config import file

    usual = file.save({"num_processes": 3})
    assert config.resolve()["num_processes"] == 3
    assert config.resolve().file == usual
    other = file.save({"num_processes": 7}, tmp_path / "other.yaml")
    monkeypatch.setenv("NBACCEL_CONFIG_FILE", str(other))
    assert config.resolve()["num_processes"] == 7
    assert config.resolve(file=None)["num_processes"] is None


def test_B152_a_file_that_is_not_there_is_an_error_that_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NBACCEL_CONFIG_FILE", "/nowhere/c.yaml")
    with pytest.raises(ConfigError, match=r"there is no config file /nowhere/c\.yaml"):
        config.resolve()


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"NBACCEL_NUM_PROCESSES": "two"}, ["NBACCEL_NUM_PROCESSES", "num_processes='two'", "whole number"]),
        ({"NBACCEL_NUM_PROCESSES": "0"}, ["NBACCEL_NUM_PROCESSES", "at least 1"]),
        ({"NBACCEL_MIXED_PRECISION": "fp32"}, ["NBACCEL_MIXED_PRECISION", "'fp32'", "no, fp16, bf16, fp8"]),
        ({"NBACCEL_CPU": "perhaps"}, ["NBACCEL_CPU", "true or false"]),
        ({"NBACCEL_DEVICES": "0,0"}, ["NBACCEL_DEVICES", "twice"]),
        ({"NBACCEL_OUTPUT": "some"}, ["NBACCEL_OUTPUT", "all, main, none"]),
        ({"NBACCEL_MASTER_PORT": "70000"}, ["NBACCEL_MASTER_PORT", "at most 65535"]),
        ({"NBACCEL_TIMEOUT": "-1"}, ["NBACCEL_TIMEOUT", "positive"]),
    ],
)
def test_a_wrong_value_names_place_key_value_and_choices(environ: dict[str, str], words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        config.resolve(environ=environ)
    assert all(word in str(caught.value) for word in words), caught.value


def test_a_misspelt_variable_is_told_and_a_strange_one_is_not() -> None:
    resolved = config.resolve(environ={"NBACCEL_MIXED_PRECISON": "bf16", "NBACCEL_TEST_RUN": "1"})
    assert len(resolved.warnings) == 1
    assert "NBACCEL_MIXED_PRECISON" in resolved.warnings[0]
    assert "NBACCEL_MIXED_PRECISION?" in resolved.warnings[0]


def test_an_unknown_explicit_setting_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"no setting 'num_procs'; did you mean 'num_processes'\?"):
        config.resolve({"num_procs": 2}, environ={})


# --- contradictions ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("explicit", "sides"),
    [
        ({"cpu": True, "devices": (0,)}, ["cpu=true", "devices=0"]),
        ({"num_processes": 3, "devices": (0, 1)}, ["num_processes=3", "devices=0,1"]),
        ({"num_nodes": 2, "node_rank": 2}, ["num_nodes=2", "node_rank=2"]),
    ],
)
def test_one_source_that_contradicts_itself_names_both_sides(
    explicit: dict[str, object], sides: list[str]
) -> None:
    with pytest.raises(ConfigError) as caught:
        config.resolve(explicit, environ={})
    assert all(side in str(caught.value) for side in sides), caught.value
    as_text = {
        f"NBACCEL_{key.upper()}": config.setting(key, "").shown(value) for key, value in explicit.items()
    }
    with pytest.raises(ConfigError) as caught:
        config.resolve(environ=as_text)
    assert all(side in str(caught.value) for side in sides), caught.value


def test_a_stronger_source_wins_over_what_contradicts_it() -> None:
    resolved = config.resolve({"cpu": True}, environ={"NBACCEL_DEVICES": "0,1"})
    assert (resolved["cpu"], resolved["devices"]) == (True, None)
    assert "devices=0,1 (NBACCEL_DEVICES) is not used, because of cpu=true" in resolved.notes[0]
    resolved = config.resolve({"devices": (2, 3)}, environ={"NBACCEL_CPU": "1", "NBACCEL_NUM_PROCESSES": "4"})
    assert (resolved["cpu"], resolved["devices"], resolved["num_processes"]) == (False, (2, 3), None)


def test_fewer_processes_than_configured_devices_take_the_first_and_more_are_an_error() -> None:
    assert config.resolve({"num_processes": 1}, environ={"NBACCEL_DEVICES": "2,3"})["devices"] == (2,)
    with pytest.raises(ConfigError, match=r"num_processes=3.*NBACCEL_DEVICES"):
        config.resolve({"num_processes": 3}, environ={"NBACCEL_DEVICES": "2,3"})


# --- the session and what a process is told ---------------------------------------------------------


def test_wrong_session_values_change_nothing() -> None:
    config.set_session_values({"num_processes": 2})
    with pytest.raises(ConfigError):
        config.set_session_values({"num_processes": 3, "mixed_precision": "fp32"})
    with pytest.raises(ConfigError, match="contradict"):
        config.set_session_values({"cpu": True, "devices": (0,)})
    assert config.session_values() == {"num_processes": 2}


def test_a_process_is_told_by_launch_then_session_then_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert config.ambient("mixed_precision") is None
    monkeypatch.setenv("NBACCEL_MIXED_PRECISION", "fp16")
    assert config.ambient("mixed_precision") == "fp16"
    config.set_session_values({"mixed_precision": "bf16"})
    assert config.ambient("mixed_precision") == "bf16"
    config.set_active_spec(config.LaunchSpec(mixed_precision="no"))
    try:
        assert config.ambient("mixed_precision") == "no"
    finally:
        config.set_active_spec(None)


def test_an_unwritten_default_can_be_told_from_the_same_value_written() -> None:
    resolved = config.resolve(environ={"NBACCEL_OUTPUT": "main", "NBACCEL_NUM_NODES": "2"})
    assert resolved.prefer("output", config.UnsaidText("all")) == "main"
    assert resolved.prefer("output", "all") == "all"
    assert resolved.prefer("num_nodes", config.UnsaidInt(1)) == 2
    assert resolved.prefer("num_nodes", 1) == 1
    assert repr(config.UnsaidInt(1)) == "1"


def test_every_default_is_a_value_of_its_setting() -> None:
    for each in config.SETTINGS.values():
        if each.default is not None:
            assert each.check(each.default, "default") == each.default
            assert each.check(each.shown(each.default), "text") == each.default
