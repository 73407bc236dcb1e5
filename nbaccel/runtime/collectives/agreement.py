"""Before data travels, the ranks compare what they are about to do.

A collective that not all ranks call with the same kind of value hangs, or hands out garbage. So
each collective first exchanges a short header of fixed size: what operation, what structure, what
lengths. When headers differ, every rank raises the same error, which says who passed what.
"""

from __future__ import annotations

import hashlib
from typing import Any

import torch

from nbaccel.runtime.collectives.communicator import Communicator
from nbaccel.runtime.nested import leaves

_LENGTHS_IN_HEADER = 14


class CollectiveMismatchError(ValueError):
    """The ranks called different collectives, or passed values that don't fit together."""


class Agreement:
    """What the header exchange found out about one call."""

    def __init__(self, lengths: list[list[int]]) -> None:
        self.lengths = lengths
        """By rank: the length of the first dimension of each tensor, -1 for one without dimensions."""

    @property
    def equal_lengths(self) -> bool:
        """Whether all ranks pass tensors of the same lengths."""
        return all(row == self.lengths[0] for row in self.lengths)


def agree(
    communicator: Communicator, operation: str, data: Any, *, any_length: bool = False, detail: str = ""
) -> Agreement:
    """Check that all ranks call ``operation`` with tensors that fit together.

    Args:
        communicator: connects the ranks.
        operation: the name that the user called.
        data: the value, whose leaves must all be tensors.
        any_length: first dimensions may differ between ranks.
        detail: further arguments that must be the same everywhere, as text.

    Raises:
        CollectiveMismatchError: on every rank, when the headers differ.
        TypeError: on every rank, when the same leaf isn't a tensor everywhere.
    """
    communicator.announce(operation)
    text, lengths, problem = _describe(operation, data, detail)
    head = lengths[:_LENGTHS_IN_HEADER]
    padding = [0] * (_LENGTHS_IN_HEADER - len(head))
    own = torch.tensor([_digest(text), len(lengths), *head, *padding], dtype=torch.int64)
    headers = communicator.all_gather(own)
    if not bool((headers[:, :2] == headers[0, :2]).all()):
        _raise_mismatch(communicator, operation, text, lengths)
    if problem is not None:
        raise problem
    count = len(lengths)
    rows = headers[:, 2 : 2 + min(count, _LENGTHS_IN_HEADER)]
    if count > _LENGTHS_IN_HEADER:
        rows = communicator.all_gather(torch.tensor(lengths, dtype=torch.int64))
    agreement = Agreement(rows.tolist())
    if not any_length and not agreement.equal_lengths:
        _raise_mismatch(communicator, operation, text, lengths)
    return agreement


def agree_on_call(communicator: Communicator, operation: str, detail: str = "") -> None:
    """As :func:`agree`, for operations whose value may be anything."""
    agree(communicator, operation, (), detail=detail)


def _describe(operation: str, data: Any, detail: str) -> tuple[str, list[int], TypeError | None]:
    parts = [f"{operation}({detail})"]
    lengths: list[int] = []
    problem: TypeError | None = None
    for path, leaf in leaves(data):
        if isinstance(leaf, torch.Tensor):
            lengths.append(leaf.shape[0] if leaf.ndim else -1)
            tail = ", ".join(["*", *map(str, leaf.shape[1:])]) if leaf.ndim else ""
            parts.append(f"{path or 'value'}: {str(leaf.dtype).removeprefix('torch.')}[{tail}]")
        else:
            parts.append(f"{path or 'value'}: {type(leaf).__name__}")
            problem = problem or TypeError(
                f"{operation} takes tensors, or containers of tensors; {path or 'the value'} is of type "
                f"{type(leaf).__name__}. For other objects use gather_object or broadcast_object_list"
            )
    return "; ".join(parts), lengths, problem


def _digest(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little", signed=True)


def _raise_mismatch(communicator: Communicator, operation: str, text: str, lengths: list[int]) -> None:
    # One text per rank; the lengths go where the star stands for them.
    pieces = text
    for length in lengths:
        if length >= 0:
            pieces = pieces.replace("[*", f"[{length}", 1)
    everyone = communicator.all_gather_object(pieces)
    by_text: dict[str, list[int]] = {}
    for rank, said in enumerate(everyone):
        by_text.setdefault(said, []).append(rank)
    lines = [f"  rank {', '.join(map(str, ranks))}: {said}" for said, ranks in by_text.items()]
    raise CollectiveMismatchError(
        f"{operation}: the ranks don't call the same collective with values that fit together\n"
        + "\n".join(lines)
        + "\nAll ranks must call it, with the same structure, dtypes and shapes; "
        "pad_across_processes makes lengths equal."
    )
