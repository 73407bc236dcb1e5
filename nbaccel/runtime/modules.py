"""Looking behind the wrappers of a module."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import nn

from nbaccel.runtime import precision


def is_compiled_module(module: nn.Module) -> bool:
    """Whether ``module`` is what torch.compile returned."""
    # Importing dynamo takes a second; a compiled module can't exist before that.
    if "torch._dynamo" not in sys.modules:
        return False
    return isinstance(module, torch._dynamo.eval_frame.OptimizedModule)


def extract_model_from_parallel(
    model: nn.Module,
    keep_fp32_wrapper: bool = True,
    keep_torch_compile: bool = True,
    recursive: bool = False,
) -> nn.Module:
    """The module inside DDP, DataParallel and torch.compile.

    Args:
        model: any module.
        keep_fp32_wrapper: leave its forward under mixed precision.
        keep_torch_compile: leave it compiled.
        recursive: look inside its submodules too.
    """
    wrappers = (nn.parallel.DistributedDataParallel, nn.DataParallel)
    compiled = model if is_compiled_module(model) else None
    inner: Any = model if compiled is None else model._orig_mod
    while isinstance(inner, wrappers):
        inner = inner.module
    if recursive:
        for name, child in inner.named_children():
            setattr(
                inner, name, extract_model_from_parallel(child, keep_fp32_wrapper, keep_torch_compile, True)
            )
    if not keep_fp32_wrapper:
        precision.remove_from(inner)
    if compiled is not None and keep_torch_compile:
        compiled._orig_mod = inner
        return compiled
    assert isinstance(inner, nn.Module)
    return inner


def find_tied_parameters(model: nn.Module) -> list[list[str]]:
    """Groups of names that stand for one parameter."""
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return [sorted(group) for group in names.values() if len(group) > 1]


def retie_parameters(model: nn.Module, tied_params: list[list[str]]) -> None:
    """Make the names of each group stand for the parameter of the first one again."""
    for first, *others in tied_params:
        owner = model.get_parameter(first)
        for name in others:
            parent, _, leaf = name.rpartition(".")
            setattr(model.get_submodule(parent), leaf, owner)


def move_module(model: nn.Module, device: torch.device) -> dict[torch.Tensor, nn.Parameter]:
    """Move ``model`` in place, as its ``to`` does, and keep shared parameters shared.

    Some devices' tensors can't take the place of others inside a parameter, so the module gets new ones.

    Returns:
        The new parameter for each old one that the module no longer has.
    """
    before = dict(model.named_parameters(remove_duplicate=False))
    tied = find_tied_parameters(model)
    model.to(device)
    if all(model.get_parameter(name) is parameter for name, parameter in before.items()):
        return {}
    retie_parameters(model, tied)
    return {old: new for name, old in before.items() if (new := model.get_parameter(name)) is not old}


def recursive_getattr(obj: Any, attr: str) -> Any:
    """The attribute at the end of a dotted path."""
    for name in attr.split("."):
        obj = getattr(obj, name)
    return obj
