"""States as files that load without running code: torch.save, and torch.load with weights_only."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import torch

from nbaccel.runtime.checkpoints.host import on_host


def save_plain(state: Any, path: Path, *, what: str, check: bool = False) -> None:
    """Write ``state`` to ``path``.

    Args:
        state: made of tensors, numbers, text and containers.
        path: the file.
        what: names the object in errors.
        check: make sure at once that it can be read back; for small states.

    Raises:
        ValueError: ``check``, and the state holds what a safe loader refuses.
    """
    state = on_host(state)
    if check:
        buffer = io.BytesIO()
        torch.save(state, buffer)
        buffer.seek(0)
        try:
            torch.load(buffer, map_location="cpu", weights_only=True)
        except pickle.UnpicklingError as error:
            raise ValueError(
                f"the state of {what} can't be saved: it holds objects that only unpickling could bring "
                "back. Let its state_dict() return tensors, numbers, text and containers of those "
                f"({str(error).splitlines()[0]})"
            ) from error
        path.write_bytes(buffer.getvalue())
        return
    torch.save(state, path)


def load_plain(path: Path, *, what: str, map_location: Any = "cpu") -> Any:
    """Read what :func:`save_plain` wrote.

    Raises:
        FileNotFoundError: the file isn't there; the text names ``what`` it is needed for.
        ValueError: the file isn't one that can be loaded safely.
    """
    if not path.exists():
        raise FileNotFoundError(f"the checkpoint has no {path.name}, which {what} needs")
    try:
        return torch.load(path, map_location=map_location, weights_only=True)
    except pickle.UnpicklingError as error:
        raise ValueError(f"{path} can't be loaded safely: {str(error).splitlines()[0]}") from error
