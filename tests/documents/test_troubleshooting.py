"""Each message that the troubleshooting page quotes stands in the package's source."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.documents.pages import DOCS, ROOT

ANYTHING = "…"


def quoted() -> list[str]:
    return re.findall(r"^\*\*`(.+)`\*\*$", (DOCS / "troubleshooting.md").read_text(), re.MULTILINE)


def texts_of_the_source() -> Iterator[str]:
    """Texts of the package; what is filled in stands as a placeholder."""
    for path in (ROOT / "nbaccel").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value
            elif isinstance(node, ast.JoinedStr):
                yield "".join(
                    str(part.value) if isinstance(part, ast.Constant) else ANYTHING for part in node.values
                )


def test_quoted_messages_are_the_package_s_own() -> None:
    source = list(texts_of_the_source())
    assert len(quoted()) > 15
    for message in quoted():
        parts = message.split(ANYTHING)
        assert sum(map(len, parts)) > 12, f"{message} could be anything"
        pattern = re.compile(".*".join(map(re.escape, parts)), re.DOTALL)
        assert any(pattern.search(text) for text in source), message
