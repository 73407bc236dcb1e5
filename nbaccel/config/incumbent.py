"""Hugging Face Accelerate's config files: what their keys mean here.

Three kinds of keys: those that are a setting under another name, those that say nothing here (a network's
layout, a name of a function), and those of features that are left out, which are worth a word when they are
switched on. ``num_processes`` in these files counts the processes of all machines together.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass

from nbaccel.errors import ConfigError

_RENAMED = {
    "use_cpu": "cpu",
    "gpu_ids": "devices",
    "machine_rank": "node_rank",
    "num_machines": "num_nodes",
    "main_process_ip": "master_addr",
    "main_process_port": "master_port",
    "num_cpu_threads_per_process": "num_cpu_threads",
}

_SILENT = frozenset({"same_network", "main_training_function", "debug", "rdzv_conf", "role"})
_SILENT |= {"commands", "command_file", "tpu_env", "tpu_name", "tpu_zone"}

_LEFT_OUT = {
    "deepspeed_config": "DeepSpeed",
    "fsdp_config": "fully sharded data parallelism",
    "megatron_lm_config": "Megatron-LM",
    "parallelism_config": "tensor, context and sequence parallelism",
    "fp8_config": "the choice of an fp8 library",
    "dynamo_config": "compiling the model (call torch.compile on it)",
    "dynamo_backend": "compiling the model (call torch.compile on it)",
    "mpirun_config": "starting by mpirun",
    "ipex_config": "Intel's extension of torch",
    "enable_cpu_affinity": "pinning processes to cores",
    "downcast_bf16": "bf16 by XLA's environment variables",
    "tpu_use_cluster": "TPU pods from the command line",
    "tpu_use_sudo": "TPU pods from the command line",
    "ec2_instance_type": "SageMaker",
    "iam_role_name": "SageMaker",
    "image_uri": "SageMaker",
    "profile": "SageMaker",
    "py_version": "SageMaker",
    "pytorch_version": "SageMaker",
    "transformers_version": "SageMaker",
    "region": "SageMaker",
    "sagemaker_inputs_file": "SageMaker",
    "sagemaker_metrics_file": "SageMaker",
    "additional_args": "SageMaker",
    "base_job_name": "SageMaker",
}

_MARKS = frozenset({"compute_environment", "distributed_type"})
_OFF = frozenset({"no", "none", "false", "off", ""})
_PLACES = frozenset({"local_machine"})
_KINDS = frozenset({"no", "multi_cpu", "multi_gpu", "multi_xpu", "multi_npu", "mps", "xla", "tpu"})


@dataclass(frozen=True)
class Translated:
    """What a key of theirs comes to."""

    name: str | None
    """The setting; None when there is none for it."""

    value: object = None
    known: bool = True
    refused: str = ""
    """Why it has no effect here, when somebody would expect one."""


def is_one(entries: Mapping[str, object]) -> bool:
    """Whether a file's entries are in Accelerate's format."""
    return "version" not in entries and not _MARKS.isdisjoint(entries)


def translate(key: str, value: object) -> Translated:
    """The setting that a key stands for."""
    if key in _RENAMED:
        return Translated(_RENAMED[key], value)
    if key == "distributed_type":
        kind = str(value).lower() if value is not None and value is not False else "no"
        if kind == "multi_cpu":
            return Translated("cpu", value=True)
        return Translated(
            None, refused="" if kind in _KINDS else f"{value}: nbaccel trains data-parallel only"
        )
    if key == "compute_environment":
        local = str(value).lower() in _PLACES
        return Translated(None, refused="" if local else f"{value}: nbaccel runs on this machine only")
    if key in _SILENT:
        return Translated(None)
    if key in _LEFT_OUT:
        is_on = bool(value) and str(value).lower() not in _OFF
        return Translated(
            None, refused=f"has no effect: nbaccel leaves out {_LEFT_OUT[key]}" if is_on else ""
        )
    return Translated(key, value, known=False)


def count_per_machine(values: MutableMapping[str, object], places: Mapping[str, str]) -> None:
    """Turn the number of all processes into that of each machine.

    Raises:
        ConfigError: it can't be shared out equally.
    """
    total, machines = values.get("num_processes"), values.get("num_nodes", 1)
    if not isinstance(total, int) or not isinstance(machines, int):
        return
    if total % machines:
        raise ConfigError(
            f"{places['num_processes']}: num_processes={total} (all machines together) can't be shared out "
            f"equally among num_machines={machines}; correct one of them"
        )
    values["num_processes"] = total // machines
