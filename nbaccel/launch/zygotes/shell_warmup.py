"""Imported before workers are forked: IPython, and the first of its objects, which costs ten times the next.

Must leave no shell behind: each worker makes its own.
"""

from __future__ import annotations

from IPython.core.formatters import DisplayFormatter

from nbaccel.launch.worker import cell_shell, display_shell

MODULES = (cell_shell, display_shell)
"""What a worker of a session needs besides."""

DisplayFormatter()
