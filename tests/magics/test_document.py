"""docs/cells.md tells of every option and command; tests/documents runs its examples."""

from __future__ import annotations

from tests.kernel import ROOT
from tests.magics.conftest import Notebook

DOCUMENT = ROOT / "docs" / "cells.md"


def test_the_document_tells_every_option_and_command(notebook: Notebook) -> None:
    from nbaccel.magics.help import COMMANDS
    from nbaccel.magics.options import OPTIONS

    text = DOCUMENT.read_text()
    for name in [name for option in OPTIONS for name in option.names] + list(COMMANDS):
        assert name in text
