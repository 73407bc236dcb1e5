"""Links from pages to files outside of docs/, which readers of the repository follow, in the site.

The documents at the top of the repository become pages of the site. Other files that a page links to
(notebooks, tests) are copied into it, so that the link leads somewhere offline too.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING

from mkdocs.structure.files import File

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
PAGES = {
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "DEVELOPERS.md": "project/developers.md",
}
"""File of the repository -> page of the site."""

SAME = {"README.md": "index.md"}
"""What the site says on a page of its own."""

COPIES = "files"
"""Folder of the site with copies of other files."""

_LINK = re.compile(r"(?<=\]\()(?![a-z]+:)([^)#\s]+)((?:#[^)\s]*)?)(?=\))")
_FENCE = re.compile(r"^(```.*?^```$)", re.MULTILINE | re.DOTALL)


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages, and each file that is linked to."""
    for path, uri in PAGES.items():
        files.append(File.generated(config, uri, abs_src_path=str(ROOT / path)))
    for page in list(files.documentation_pages()):
        folder = _folder_of(page.src_uri)
        for target, _ in _LINK.findall(page.content_string):
            path = posixpath.normpath(posixpath.join(folder, target))
            uri = _uri_of(path)
            if (
                uri.startswith(f"{COPIES}/")
                and (ROOT / path).is_file()
                and files.get_file_from_path(uri) is None
            ):
                files.append(File.generated(config, uri, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, *, page: Page, **_: object) -> str:
    """Let links lead to where their targets are in the site."""
    folder, here = _folder_of(page.file.src_uri), posixpath.dirname(page.file.src_uri)

    def rewritten(match: re.Match[str]) -> str:
        uri = _uri_of(posixpath.normpath(posixpath.join(folder, match[1])))
        return posixpath.relpath(uri, here or ".") + match[2]

    parts = _FENCE.split(markdown)
    return "".join(part if index % 2 else _LINK.sub(rewritten, part) for index, part in enumerate(parts))


def _folder_of(uri: str) -> str:
    """Folder of the repository in which the page lies."""
    return "" if uri in PAGES.values() else posixpath.join("docs", posixpath.dirname(uri))


def _uri_of(path: str) -> str:
    """Where a file of the repository is in the site."""
    if path in PAGES:
        return PAGES[path]
    if path in SAME:
        return SAME[path]
    return path.removeprefix("docs/") if path.startswith("docs/") else f"{COPIES}/{path}"
