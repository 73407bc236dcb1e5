"""From a notebook to a script that ``nbaccel launch`` runs.

``cells`` reads a notebook and turns cells into plain Python, ``names`` says what a cell binds and uses,
``launches`` makes plain calls of
launches, ``script`` picks the cells that are needed and writes them. Nothing of the notebook is executed.
"""

from __future__ import annotations

from nbaccel.errors import ConfigError


class ExportError(ConfigError):
    """A notebook can't be made a script."""
