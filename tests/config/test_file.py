"""Config files: this package's, and Hugging Face Accelerate's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nbaccel import config
from nbaccel.config import file
from nbaccel.errors import ConfigError

INCUMBENTS = """\
compute_environment: LOCAL_MACHINE
debug: false
distributed_type: MULTI_GPU
downcast_bf16: 'no'
enable_cpu_affinity: false
gpu_ids: 0,1
machine_rank: 1
main_process_ip: 10.0.0.1
main_process_port: 29501
main_training_function: main
mixed_precision: fp16
num_machines: 2
num_processes: 4
rdzv_backend: static
same_network: true
tpu_env: []
tpu_use_cluster: false
tpu_use_sudo: false
use_cpu: false
"""

ANSWERS = {
    "num_processes": st.integers(1, 10_000),
    "mixed_precision": st.sampled_from(config.PRECISIONS),
    "cpu": st.booleans(),
    "devices": st.one_of(st.just("idle"), st.lists(st.integers(0, 99), min_size=1, unique=True).map(tuple)),
    "gradient_accumulation_steps": st.integers(1, 1000),
    "start_method": st.sampled_from(config.START_METHODS),
    "output": st.sampled_from(config.OUTPUT_MODES),
    "progress": st.sampled_from(config.PROGRESS_MODES),
    "timeout": st.floats(0.1, 1e6),
    "log_dir": st.sampled_from(["logs", "/var/log/x y", "ünï", "no", "1"]),
    "num_nodes": st.integers(1, 100),
    "node_rank": st.integers(0, 99),
    "master_addr": st.sampled_from(["10.0.0.1", "host.example", "::1", "1", "no"]),
    "master_port": st.integers(0, 65535),
    "rdzv_backend": st.sampled_from(config.RENDEZVOUS_BACKENDS),
    "max_restarts": st.integers(0, 100),
    "num_cpu_threads": st.integers(1, 1000),
}


def write(folder: Path, text: str) -> Path:
    path = folder / "c.yaml"
    path.write_text(text)
    return path


def test_the_round_trip_covers_every_setting() -> None:
    assert set(ANSWERS) == set(config.SETTINGS)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(st.fixed_dictionaries({}, optional=ANSWERS))
def test_B159_what_is_saved_is_loaded(tmp_path: Path, values: dict[str, object]) -> None:
    path = file.save(values, tmp_path / "c.yaml")
    assert dict(file.load(path).values) == values


def test_saving_is_whole_or_not_at_all(tmp_path: Path) -> None:
    path = file.save({"num_processes": 2}, tmp_path / "deep" / "c.yaml")
    assert [entry.name for entry in path.parent.iterdir()] == ["c.yaml"]
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(ConfigError, match=r"can't be written"):
        file.save({}, blocked / "c.yaml")


@pytest.mark.parametrize("word", ["no", "off", "false", "No", "'no'", "OFF"])
def test_no_is_a_precision_whatever_yaml_makes_of_it(tmp_path: Path, word: str) -> None:
    assert file.load(write(tmp_path, f"mixed_precision: {word}")).values["mixed_precision"] == "no"


def test_B154_an_unknown_key_is_a_warning_with_the_nearest_or_an_error_if_strict(
    tmp_path: Path,
) -> None:
    path = write(tmp_path, "version: 1\nmixed_precison: bf16\nnum_processes: 2\n")
    loaded = file.load(path)
    assert dict(loaded.values) == {"num_processes": 2}
    (warning,) = loaded.warnings
    assert f"{path}, line 2" in warning
    assert "'mixed_precison'" in warning
    assert "did you mean 'mixed_precision'?" in warning
    with pytest.raises(ConfigError, match="mixed_precison"):
        file.load(path, strict=True)


def test_B154_a_file_of_a_newer_format_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"format 99.*update nbaccel"):
        file.load(write(tmp_path, "version: 99\n"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("num_processes: many\n", ["line 1", "num_processes='many'", "whole number"]),
        ("cpu: true\nmixed_precision: fp32\n", ["line 2", "'fp32'", "no, fp16, bf16, fp8"]),
        ("use_cpu: maybe\n", ["use_cpu", "'maybe'", "true or false"]),
        ("cpu: true\nuse_cpu: false\n", ["line 2 (use_cpu)", "second time", "line 1"]),
        ("- a\n- b\n", ["holds no settings"]),
        ("a: [1\n", ["is no YAML"]),
        ("!!python/object/apply:os.system ['true']\n", ["is no YAML"]),
    ],
)
def test_a_wrong_file_names_file_line_key_and_choices(tmp_path: Path, text: str, words: list[str]) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        file.load(path)
    assert all(word in str(caught.value) for word in [str(path), *words]), caught.value


@pytest.mark.parametrize("text", ["", "# nothing\n", "version: 1\n", "num_processes:\n"])
def test_an_empty_file_says_nothing(tmp_path: Path, text: str) -> None:
    loaded = file.load(write(tmp_path, text))
    assert dict(loaded.values) == {}
    assert loaded.warnings == ()


def test_an_incumbents_file_is_read_silently(tmp_path: Path) -> None:
    loaded = file.load(write(tmp_path, INCUMBENTS))
    assert loaded.is_incumbents
    assert loaded.warnings == ()
    assert dict(loaded.values) == {
        "devices": (0, 1),
        "node_rank": 1,
        "master_addr": "10.0.0.1",
        "master_port": 29501,
        "mixed_precision": "fp16",
        "num_nodes": 2,
        "num_processes": 2,  # of each machine
        "rdzv_backend": "static",
        "cpu": False,
    }


def test_an_incumbents_file_for_cpu_processes(tmp_path: Path) -> None:
    text = "distributed_type: MULTI_CPU\nnum_processes: 2\nmixed_precision: no\n"
    loaded = file.load(write(tmp_path, text))
    assert dict(loaded.values) == {"cpu": True, "num_processes": 2, "mixed_precision": "no"}


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("distributed_type: FSDP", "FSDP"),
        ("distributed_type: DEEPSPEED", "DEEPSPEED"),
        ("compute_environment: AMAZON_SAGEMAKER", "AMAZON_SAGEMAKER"),
        ("compute_environment: LOCAL_MACHINE\nfsdp_config: {fsdp_version: 2}", "fsdp_config"),
        ("compute_environment: LOCAL_MACHINE\ndynamo_config: {dynamo_backend: INDUCTOR}", "torch.compile"),
        ("compute_environment: LOCAL_MACHINE\nenable_cpu_affinity: true", "enable_cpu_affinity"),
    ],
)
def test_features_that_are_left_out_are_told(tmp_path: Path, line: str, word: str) -> None:
    (warning,) = file.load(write(tmp_path, line + "\n")).warnings
    assert word in warning


def test_processes_that_cannot_be_shared_out_among_machines(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"num_processes=3.*num_machines=2"):
        file.load(write(tmp_path, "distributed_type: MULTI_GPU\nnum_machines: 2\nnum_processes: 3\n"))


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="can't be read"):
        file.load(tmp_path)
    path = tmp_path / "c.yaml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=os.fspath(path)):
        file.load(path)
