"""Launchers, under the name that scripts import."""

from __future__ import annotations

from nbaccel.launch.launcher import debug_launcher, notebook_launcher
from nbaccel.left_out import explain_missing

__all__ = [
    "debug_launcher",
    "notebook_launcher",
]

__getattr__ = explain_missing(__name__)
