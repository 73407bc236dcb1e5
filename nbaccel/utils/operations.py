"""Collectives and work on nested containers, under the path that scripts import."""

from __future__ import annotations

from nbaccel.left_out import explain_missing
from nbaccel.runtime.collectives.agreement import CollectiveMismatchError as DistributedOperationException
from nbaccel.runtime.free_collectives import (
    broadcast,
    broadcast_object_list,
    gather,
    gather_object,
    pad_across_processes,
    pad_input_tensors,
    reduce,
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
from nbaccel.runtime.nested import (
    to_float32 as convert_to_fp32,
)
from nbaccel.runtime.precision import (
    convert_outputs_to_fp32,
)

__all__ = [
    "DistributedOperationException",
    "TensorInformation",
    "broadcast",
    "broadcast_object_list",
    "concatenate",
    "convert_outputs_to_fp32",
    "convert_to_fp32",
    "find_batch_size",
    "find_device",
    "gather",
    "gather_object",
    "get_data_structure",
    "honor_type",
    "initialize_tensors",
    "is_namedtuple",
    "is_torch_tensor",
    "listify",
    "pad_across_processes",
    "pad_input_tensors",
    "recursively_apply",
    "reduce",
    "send_to_device",
    "slice_tensors",
]

__getattr__ = explain_missing(__name__)
