"""Choices that users make by name, as enums whose members are equal to their names."""

from __future__ import annotations

from enum import Enum


class Choice(str, Enum):  # noqa: UP042  # a StrEnum, but for the method below
    """A text with a limited number of values."""

    def __str__(self) -> str:
        return str(self.value)

    @classmethod
    def list(cls) -> list[str]:
        """All values."""
        return [member.value for member in cls]


class DistributedType(str, Enum):  # noqa: UP042  # printed as what it is, not as its value
    """What kind of processes train together."""

    NO = "NO"
    MULTI_CPU = "MULTI_CPU"
    MULTI_GPU = "MULTI_GPU"
    MULTI_NPU = "MULTI_NPU"
    MULTI_MLU = "MULTI_MLU"
    MULTI_SDAA = "MULTI_SDAA"
    MULTI_MUSA = "MULTI_MUSA"
    MULTI_XPU = "MULTI_XPU"
    MULTI_HPU = "MULTI_HPU"
    MULTI_NEURON = "MULTI_NEURON"
    DEEPSPEED = "DEEPSPEED"
    FSDP = "FSDP"
    XLA = "XLA"
    MEGATRON_LM = "MEGATRON_LM"


class PrecisionType(Choice):
    """Choices of ``mixed_precision``."""

    NO = "no"
    FP8 = "fp8"
    FP16 = "fp16"
    BF16 = "bf16"


class RNGType(Choice):
    """Random number generators that can be synchronised."""

    TORCH = "torch"
    CUDA = "cuda"
    XPU = "xpu"
    XLA = "xla"
    GENERATOR = "generator"


class LoggerType(Choice):
    """Trackers."""

    ALL = "all"
    AIM = "aim"
    TENSORBOARD = "tensorboard"
    WANDB = "wandb"
    TRACKIO = "trackio"
    COMETML = "comet_ml"
    MLFLOW = "mlflow"
    CLEARML = "clearml"
    DVCLIVE = "dvclive"
    SWANLAB = "swanlab"
    JSONL = "jsonl"


class DDPCommunicationHookType(Choice):
    """How gradients are packed for their way between the ranks."""

    NO = "no"
    FP16 = "fp16"
    BF16 = "bf16"
    POWER_SGD = "power_sgd"
    BATCHED_POWER_SGD = "batched_power_sgd"


class DynamoBackend(Choice):
    """Compilers for ``torch.compile``; any other name that torch knows may be passed as text."""

    NO = "NO"
    EAGER = "EAGER"
    AOT_EAGER = "AOT_EAGER"
    INDUCTOR = "INDUCTOR"
    CUDAGRAPHS = "CUDAGRAPHS"
    ONNXRT = "ONNXRT"
    TENSORRT = "TENSORRT"
    TVM = "TVM"
