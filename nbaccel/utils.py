"""Helpers and options, under the name that scripts import. Each stands in a room of the runtime."""

from __future__ import annotations

from collections.abc import Callable

from nbaccel.runtime.availability import availability_check
from nbaccel.runtime.choices import (
    DDPCommunicationHookType,
    DistributedType,
    DynamoBackend,
    LoggerType,
    PrecisionType,
    RNGType,
)
from nbaccel.runtime.free_collectives import (
    broadcast,
    broadcast_object_list,
    gather,
    gather_object,
    load,
    on_main_process,
    pad_across_processes,
    pad_input_tensors,
    reduce,
    save,
    set_seed,
    synchronize_rng_state,
    synchronize_rng_states,
    wait_for_everyone,
)
from nbaccel.runtime.memory import (
    clear_device_cache,
    find_executable_batch_size,
    release_memory,
)
from nbaccel.runtime.modules import (
    extract_model_from_parallel,
    find_tied_parameters,
    is_compiled_module,
    recursive_getattr,
    retie_parameters,
)
from nbaccel.runtime.nested import (
    TensorInformation,
    concatenate,
    find_batch_size,
    find_device,
    get_data_structure,
    honor_type,
    initialize_tensors,
    is_namedtuple,
    is_torch_tensor,
    listify,
    recursively_apply,
    send_to_device,
    slice_tensors,
)
from nbaccel.runtime.nested import to_float32 as convert_to_fp32
from nbaccel.runtime.plugins import (
    AutocastKwargs,
    DataLoaderConfiguration,
    DistributedDataParallelKwargs,
    GradientAccumulationPlugin,
    GradScalerKwargs,
    InitProcessGroupKwargs,
    KwargsHandler,
    ProfileKwargs,
    ProjectConfiguration,
    TorchDynamoPlugin,
)
from nbaccel.runtime.precision import convert_outputs_to_fp32
from nbaccel.runtime.progress import (
    tqdm,
)
from nbaccel.runtime.surroundings import (
    clear_environment,
    compare_versions,
    convert_bytes,
    is_port_in_use,
    is_torch_version,
    merge_dicts,
    patch_environment,
    str_to_bool,
)

__all__ = [
    "AutocastKwargs",
    "DDPCommunicationHookType",
    "DataLoaderConfiguration",
    "DistributedDataParallelKwargs",
    "DistributedType",
    "DynamoBackend",
    "GradScalerKwargs",
    "GradientAccumulationPlugin",
    "InitProcessGroupKwargs",
    "KwargsHandler",
    "LoggerType",
    "PrecisionType",
    "ProfileKwargs",
    "ProjectConfiguration",
    "RNGType",
    "TensorInformation",
    "TorchDynamoPlugin",
    "broadcast",
    "broadcast_object_list",
    "clear_device_cache",
    "clear_environment",
    "compare_versions",
    "concatenate",
    "convert_bytes",
    "convert_outputs_to_fp32",
    "convert_to_fp32",
    "extract_model_from_parallel",
    "find_batch_size",
    "find_device",
    "find_executable_batch_size",
    "find_tied_parameters",
    "gather",
    "gather_object",
    "get_data_structure",
    "honor_type",
    "initialize_tensors",
    "is_compiled_module",
    "is_namedtuple",
    "is_port_in_use",
    "is_torch_tensor",
    "is_torch_version",
    "listify",
    "load",
    "merge_dicts",
    "on_main_process",
    "pad_across_processes",
    "pad_input_tensors",
    "patch_environment",
    "recursive_getattr",
    "recursively_apply",
    "reduce",
    "release_memory",
    "retie_parameters",
    "save",
    "send_to_device",
    "set_seed",
    "slice_tensors",
    "str_to_bool",
    "synchronize_rng_state",
    "synchronize_rng_states",
    "tqdm",
    "wait_for_everyone",
]


def __getattr__(name: str) -> Callable[..., bool]:
    check = availability_check(name)
    if check is None:
        raise AttributeError(f"module 'nbaccel.utils' has no attribute {name!r}")
    return check
