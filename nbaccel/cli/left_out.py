"""Flags of ``accelerate launch`` whose features nbaccel leaves out: each is refused with the reason.

A flag that changes what is computed must not be swallowed; one that only describes a machine may be.
"""

from __future__ import annotations

_BY_NAME = {
    "use-deepspeed": "DeepSpeed",
    "use-fsdp": "fully sharded data parallelism",
    "use-megatron-lm": "Megatron-LM",
    "use-parallelism-config": "tensor, context and sequence parallelism",
    "zero-stage": "DeepSpeed",
    "offload-optimizer-device": "DeepSpeed",
    "offload-param-device": "DeepSpeed",
    "offload-optimizer-nvme-path": "DeepSpeed",
    "offload-param-nvme-path": "DeepSpeed",
    "zero3-init-flag": "DeepSpeed",
    "zero3-save-16bit-model": "DeepSpeed",
    "gradient-clipping": "DeepSpeed (in a script: accelerator.clip_grad_norm_)",
    "tpu": "TPU cores from the command line (in a notebook: notebook_launcher)",
    "tpu-cluster": "TPU pods from the command line",
    "tpu-use-sudo": "TPU pods from the command line",
    "vm": "TPU pods from the command line",
    "env": "TPU pods from the command line (for variables: NAME=value nbaccel launch ...)",
    "downcast-bf16": "bf16 by XLA's environment variables (say --mixed-precision bf16)",
    "enable-cpu-affinity": "pinning processes to cores (use numactl or taskset)",
    "mpirun-hostfile": "starting by mpirun",
    "virtual-local-rank": "virtual local ranks",
    "run-path": "running a script by runpy",
}

_BY_PREFIX = {
    "deepspeed-": "DeepSpeed",
    "fsdp-": "fully sharded data parallelism",
    "megatron-lm-": "Megatron-LM",
    "parallelism-config-": "tensor, context and sequence parallelism",
    "fp8-": "the choice of an fp8 library",
    "dynamo-": "compiling by a flag (call torch.compile in the script)",
    "aws-": "SageMaker",
}


def reason(flag: str) -> str | None:
    """What the flag would ask for; None for a flag that ``accelerate launch`` hasn't either."""
    name = flag.lstrip("-").replace("_", "-")
    if name in _BY_NAME:
        return _BY_NAME[name]
    return next((what for prefix, what in _BY_PREFIX.items() if name.startswith(prefix)), None)
