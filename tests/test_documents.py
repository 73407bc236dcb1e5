"""What the documents show runs as it stands, in a clean notebook (B022)."""

from __future__ import annotations

import re

import pytest

from tests.kernel import ROOT, Kernel

DOCUMENTS = ["README.md"]

Example = tuple[str, str | None]
"""A Python block, and the output that the next plain block promises for it."""


def examples(text: str) -> list[Example]:
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    found: list[Example] = []
    for index, (language, body) in enumerate(blocks):
        if language == "python":
            following = blocks[index + 1] if index + 1 < len(blocks) else ("", None)
            found.append((body, following[1] if following[0] == "" else None))
    return found


def test_examples_are_found_with_their_outputs() -> None:
    text = "```python\n1\n```\nsays\n```\n1\n```\n```sh\nls\n```\n```python\n2\n```\n```sh\nls\n```\n"
    assert examples(text) == [("1\n", "1\n"), ("2\n", None)]


@pytest.mark.parametrize("document", DOCUMENTS)
def test_python_examples_run_and_show_what_they_promise(document: str, fresh_kernel: Kernel) -> None:
    found = examples((ROOT / document).read_text())
    assert found
    for code, promised in found:
        result = fresh_kernel.run(code)
        if promised is not None:
            shown = result.stdout + "".join(display.text + "\n" for display in result.displays)
            # Lines of different ranks may come in either order.
            assert sorted(shown.splitlines()) == sorted(promised.splitlines())


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md", "DEVELOPERS.md", "CHANGELOG.md"])
def test_links_to_files_lead_somewhere(document: str) -> None:
    targets = re.findall(r"\]\((?!https?:)([^)#]+)\)", (ROOT / document).read_text())
    missing = [target for target in targets if not (ROOT / target).exists()]
    assert not missing


def test_make_targets_that_the_documents_name_exist() -> None:
    named = set()
    for document in ("README.md", "CONTRIBUTING.md", "DEVELOPERS.md"):
        named |= set(re.findall(r"\bmake ([a-z]+)\b", (ROOT / document).read_text()))
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {"demo", "test"} <= named
    assert named <= targets
