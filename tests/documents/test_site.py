"""The documents hang together: links and anchors lead somewhere, the site has every page, commands exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.documents.pages import DOCS, ROOT, documents, name_of, site, without_blocks

MAKE = re.compile(r"(?:^|`)make ([a-z-]+)", re.MULTILINE)


@pytest.mark.parametrize("document", documents(), ids=name_of)
def test_links_lead_somewhere(document: Path) -> None:
    missing = []
    for target, anchor in re.findall(
        r"\]\((?![a-z]+:)([^)#\s]*)(?:#([^)\s]+))?\)", without_blocks(document.read_text())
    ):
        file = (document.parent / target) if target else document
        if not file.exists() or (anchor and anchor not in anchors(file)):
            missing.append(f"{target}#{anchor}")
    assert not missing


def anchors(page: Path) -> set[str]:
    """What code-hosting sites and mkdocs make of the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", without_blocks(page.read_text()), re.MULTILINE)
    slugs = (re.sub(r"[^\w\s-]", "", heading).strip().lower() for heading in headings)
    return {re.sub(r"[-\s]+", "-", slug) for slug in slugs}


def entries(nav: Any) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    else:
        for entry in nav.values() if isinstance(nav, dict) else nav:
            yield from entries(entry)


def test_the_site_shows_every_page_once() -> None:
    shown = list(entries(site()["nav"]))
    pages = [str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")]
    others = [entry for entry in shown if entry.startswith("project/")]
    assert sorted(shown) == sorted([*pages, *others])
    # Those of the repository's top; docs/hooks.py brings them in.
    assert {entry.removeprefix("project/").upper() for entry in others} == {
        "CHANGELOG.MD",
        "CONTRIBUTING.MD",
        "DEVELOPERS.MD",
    }


def test_the_site_loads_nothing_from_elsewhere() -> None:
    settings = site()
    assert settings["theme"]["font"] is False
    assert not any(
        "//" in name for key in ("extra_css", "extra_javascript") for name in settings.get(key, [])
    )
    for page in DOCS.rglob("*.md"):
        text = page.read_text()
        assert "```mermaid" not in text, f"{page.name}: its script would be fetched from a network"
        assert not re.search(r"!\[[^\]]*\]\(https?:|<(img|script)[^>]*https?:", text), page.name


def test_make_targets_that_the_documents_name_exist() -> None:
    named = {name for path in documents() for name in MAKE.findall(code_of(path))}
    rules = re.findall(r"^([a-z -]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    targets = {name for rule in rules for name in rule.split()}
    assert {"demo", "test", "docs"} <= named
    assert named <= targets


def code_of(path: Path) -> str:
    """Everything of a document that is set as code."""
    return "\n".join(re.findall(r"```.*?```|`[^`\n]+`", path.read_text(), re.DOTALL))
