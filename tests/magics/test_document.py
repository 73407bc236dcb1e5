"""What docs/cells.md shows runs as it stands."""

from __future__ import annotations

from tests.kernel import ROOT, Kernel
from tests.magics.conftest import Notebook
from tests.test_documents import examples

DOCUMENT = ROOT / "docs" / "cells.md"


def test_the_examples_run_and_show_what_they_promise(fresh_kernel: Kernel) -> None:
    found = examples(DOCUMENT.read_text())
    assert len(found) > 5
    for code, promised in found:
        result = fresh_kernel.run(code)
        if promised is not None:
            shown = result.stdout + "".join(display.text + "\n" for display in result.displays)
            assert sorted(shown.splitlines()) == sorted(promised.splitlines())


def test_the_document_tells_every_option_and_command(notebook: Notebook) -> None:
    from nbaccel.magics.help import COMMANDS
    from nbaccel.magics.options import OPTIONS

    text = DOCUMENT.read_text()
    for name in [name for option in OPTIONS for name in option.names] + list(COMMANDS):
        assert name in text
