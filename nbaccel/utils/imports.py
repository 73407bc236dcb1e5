"""Whether a package or a kind of hardware is there, under the path that scripts import.

The checks are made when they are asked for: see :mod:`nbaccel.runtime.availability`.
"""

from __future__ import annotations

from nbaccel.left_out import explain_missing
from nbaccel.runtime.availability import availability_check

__getattr__ = explain_missing(__name__, availability_check)
