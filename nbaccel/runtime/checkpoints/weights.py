"""Weights as safetensors files: tied weights once, big models in shards, nothing unpickled on loading."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from nbaccel.runtime.checkpoints.host import on_host

TIED = "nbaccel_tied"
"""In a file's metadata: the JSON object that maps a left-out name to the one it shares memory with."""

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12,
          "KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40}  # fmt: skip


def parse_size(size: int | str) -> int:
    """A number of bytes, from a number or a text such as ``"5GB"`` or ``"200MiB"``.

    Raises:
        ValueError: it can't be read as a size.
    """
    if isinstance(size, int):
        return size
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?I?)B?\s*", size.upper())
    if match is None or match[2] not in _UNITS:
        raise ValueError(f"size {size!r} isn't understood; write a number of bytes, or e.g. '500MB' or '5GB'")
    return int(float(match[1]) * _UNITS[match[2]])


def split_tied(state: Mapping[str, torch.Tensor]) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Each tensor once, contiguous and on the CPU, and which names were left out for which."""
    kept: dict[str, torch.Tensor] = {}
    tied: dict[str, str] = {}
    seen: dict[tuple[Any, ...], str] = {}
    for name, tensor in on_host(dict(state)).items():
        key = (tensor.device, tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
        if tensor.numel() and key in seen:
            tied[name] = seen[key]
            continue
        seen[key] = name
        kept[name] = tensor.detach()
    storages: dict[int, int] = {}
    for tensor in kept.values():
        storages[tensor.untyped_storage().data_ptr()] = (
            storages.get(tensor.untyped_storage().data_ptr(), 0) + 1
        )
    # Different views of one storage are different tensors to the reader, so each gets its own memory.
    alone = {
        name: tensor.clone() if storages[tensor.untyped_storage().data_ptr()] > 1 else tensor
        for name, tensor in kept.items()
    }
    return {name: tensor.cpu().contiguous() for name, tensor in alone.items()}, tied


def save_weights(state: Mapping[str, torch.Tensor], path: Path) -> None:
    """Write a state dict of tensors to one safetensors file."""
    tensors, tied = split_tied(state)
    save_file(tensors, path, metadata={"format": "pt", TIED: json.dumps(tied)})


def load_weights(path: Path) -> dict[str, torch.Tensor]:
    """Read what :func:`save_weights` wrote; left-out names are back, sharing memory."""
    from safetensors import safe_open

    state = load_file(path)
    with safe_open(path, "pt") as file:
        tied = json.loads((file.metadata() or {}).get(TIED, "{}"))
    for name, owner in tied.items():
        state[name] = state[owner]
    return state


def save_sharded(
    state: Mapping[str, torch.Tensor], folder: Path, stem: str = "model", max_shard_size: int | str = "10GB"
) -> list[Path]:
    """Write a state dict to ``stem.safetensors``, or to numbered shards with an index file beside them.

    Args:
        state: name to tensor.
        folder: where to; it exists.
        stem: name of the files.
        max_shard_size: in bytes, or as text. A tensor that is larger gets a shard of its own.

    Returns:
        The files written. Shards of an earlier save with the same stem are removed.
    """
    tensors, tied = split_tied(state)
    limit = parse_size(max_shard_size)
    groups: list[dict[str, torch.Tensor]] = [{}]
    used = 0
    for name, tensor in tensors.items():
        size = tensor.numel() * tensor.element_size()
        if groups[-1] and used + size > limit:
            groups.append({})
            used = 0
        groups[-1][name] = tensor
        used += size
    for stale in [*folder.glob(f"{stem}-*-of-*.safetensors"), folder / f"{stem}.safetensors.index.json"]:
        stale.unlink(missing_ok=True)
    metadata = {"format": "pt", TIED: json.dumps(tied)}
    if len(groups) == 1:
        path = folder / f"{stem}.safetensors"
        save_file(groups[0], path, metadata=metadata)
        return [path]
    (folder / f"{stem}.safetensors").unlink(missing_ok=True)
    names = [f"{stem}-{i + 1:05d}-of-{len(groups):05d}.safetensors" for i in range(len(groups))]
    for file, group in zip(names, groups, strict=True):
        save_file(group, folder / file, metadata={"format": "pt"})
    index = {
        "metadata": {"total_size": sum(t.numel() * t.element_size() for t in tensors.values()), TIED: tied},
        "weight_map": {name: file for file, group in zip(names, groups, strict=True) for name in group},
    }
    index_path = folder / f"{stem}.safetensors.index.json"
    index_path.write_text(json.dumps(index, indent=2))
    return [*(folder / name for name in names), index_path]


def load_sharded(folder: Path, stem: str = "model") -> dict[str, torch.Tensor]:
    """Read what :func:`save_sharded` wrote.

    Raises:
        FileNotFoundError: neither a file nor an index is there, or a shard is missing.
    """
    index_path = folder / f"{stem}.safetensors.index.json"
    if not index_path.exists():
        path = folder / f"{stem}.safetensors"
        if not path.exists():
            raise FileNotFoundError(f"no weights in {folder}: neither {path.name} nor {index_path.name}")
        return load_weights(path)
    index = json.loads(index_path.read_text())
    state: dict[str, torch.Tensor] = {}
    for file in sorted(set(index["weight_map"].values())):
        if not (folder / file).exists():
            raise FileNotFoundError(f"{index_path} names the shard {file}, which isn't there")
        state.update(load_file(folder / file))
    for name, owner in index["metadata"].get(TIED, {}).items():
        state[name] = state[owner]
    return state
