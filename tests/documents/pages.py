"""The documents as the tests read them: pages, their blocks of code, what stands above a block for the test.

A comment right above a block says what is special about it; readers don't see it::

    <!-- example: not run, needs a GPU -->      the reason is part of it
    <!-- example: raises ValueError -->         the cell fails like that; the next plain block may show how
    <!-- example: output not compared -->       what it shows differs from run to run
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

import yaml

from tests.kernel import ROOT

DOCS = ROOT / "docs"
GENERATED = {"compatibility.md", "fault-matrix.md"}
"""Written by tests of their own."""

_FENCE = re.compile(
    r"^(?:<!-- example: (?P<note>[^\n]*?) -->\n)?```(?P<language>\w*)\n(?P<body>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """A fenced block of a document."""

    language: str
    body: str
    line: int
    """Of the document, at which its body starts."""
    note: str = ""
    """What the comment above it says."""
    promised: str | None = None
    """For Python: the plain block that follows, which is the cell's output."""

    @property
    def is_run(self) -> bool:
        return not self.note.startswith("not run")

    @property
    def raises(self) -> str:
        """Class of the exception that the cell ends with; empty: none."""
        return self.note.removeprefix("raises ") if self.note.startswith("raises ") else ""


def blocks_of(text: str) -> list[Block]:
    found = list(_FENCE.finditer(text))
    blocks = []
    for match, following in zip_longest(found, found[1:]):
        promised = None
        if match["language"] == "python" and following is not None and not following["language"]:
            promised = following["body"]
        line = text.count("\n", 0, match.start("body")) + 1
        blocks.append(Block(match["language"], match["body"], line, match["note"] or "", promised))
    return blocks


def without_blocks(text: str) -> str:
    """The document's own words."""
    return _FENCE.sub("", text)


def pages() -> list[Path]:
    """All pages of docs/, and the README."""
    return [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]


def documents() -> list[Path]:
    """Those and the other documents of the repository."""
    return [*pages(), *(ROOT / name for name in ("CONTRIBUTING.md", "DEVELOPERS.md", "CHANGELOG.md"))]


def site() -> dict[str, Any]:
    """What mkdocs.yml says."""
    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    assert isinstance(settings, dict)
    return settings


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))
