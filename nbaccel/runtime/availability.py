"""``is_<something>_available``: whether a package is installed, or a kind of hardware is there."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec

import torch

from nbaccel.runtime.devices import DEVICES, detect_device
from nbaccel.runtime.surroundings import compare_versions

# The part of the name between is_ and _available -> package. Where both are the same it isn't listed.
_OTHER_NAMES = {"bnb": "bitsandbytes", "pynvml": "pynvml", "torchdata_stateful_dataloader": "torchdata"}
_DEVICE_NAMES = {"torch_xla": "xla"}
_PACKAGES = (
    "aim", "bnb", "boto3", "clearml", "comet_ml", "datasets", "dvclive", "matplotlib", "mlflow",
    "numpy", "pandas", "peft", "pynvml", "pytest", "rich", "schedulefree", "swanlab", "tensorboard", "timm",
    "torchao", "torchdata", "torchdata_stateful_dataloader", "torchvision", "tqdm", "trackio", "transformers",
    "triton", "wandb",
)  # fmt: skip
# Hardware and libraries that nbaccel doesn't drive: what it can't use isn't available to it.
_NEVER = ("deepspeed", "hpu", "megatron_lm", "mlu", "musa", "neuron", "npu", "sagemaker", "sdaa")


def availability_check(name: str) -> Callable[..., bool] | None:
    """The function called ``name``; None when there is no such check."""
    if not (name.startswith("is_") and name.endswith("_available")):
        return None
    subject = name.removeprefix("is_").removesuffix("_available")
    if subject in _PACKAGES:
        return partial(_is_installed, _OTHER_NAMES.get(subject, subject))
    if (device := _DEVICE_NAMES.get(subject, subject)) in DEVICES:
        return lambda *_, **__: DEVICES[device].is_available()
    if subject == "torch_distributed":
        return torch.distributed.is_available
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(subject)
    if dtype is not None:
        return lambda *_, **__: detect_device().supports_amp(dtype)
    if subject in _NEVER:
        return lambda *_, **__: False
    return None


def _is_installed(package: str, min_version: str | None = None) -> bool:
    if find_spec(package) is None:
        return False
    return min_version is None or compare_versions(package, ">=", min_version)
