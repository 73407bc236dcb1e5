"""Filling up a short batch to the full length, for hardware that compiles for each shape it meets.

The samples of the batch itself are repeated, behind the real ones. How many are real goes with the batch,
so that ``gather_for_metrics`` cuts the filling off again.
"""

from __future__ import annotations

from typing import Any

from nbaccel.runtime.data.dispatch import batch_length, cut, is_sample_list, join


def filled_up(batch: Any, size: int) -> tuple[Any, int | None]:
    """``batch`` with ``size`` samples, and how many it had; None when it had them all.

    A batch whose length can't be told is left as it is.
    """
    length = len(batch) if is_sample_list(batch, size) else batch_length(batch)
    if length is None or length == 0 or length >= size:
        return batch, None
    parts, lengths, missing = [batch], [length], size - length
    while missing > 0:
        some = min(missing, length)
        parts.append(cut(batch, slice(0, some), length))
        lengths.append(some)
        missing -= some
    return join(parts, lengths), length
