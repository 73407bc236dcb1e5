"""What the documents show runs as it stands, each page from top to bottom in a clean notebook (B022)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.documents.pages import Block, blocks_of, name_of, pages
from tests.kernel import Kernel, Result

REASON = re.compile(r"not run, \w.{8,}")
NOTES = re.compile(r"|not run, .*|raises \w+|output not compared")


def test_blocks_are_found_with_their_outputs() -> None:
    text = "```python\n1\n```\nsays\n```\n1\n```\n```sh\nls\n```\n"
    one, said, shell, two = blocks_of(f"{text}\n<!-- example: raises E -->\n```python\n2\n```\n")
    assert (one.body, one.promised, one.is_run) == ("1\n", "1\n", True)
    assert (said.language, shell.language) == ("", "sh")
    assert (two.raises, two.promised, two.line) == ("E", None, 14)


def examples(page: Path) -> list[Block]:
    return [block for block in blocks_of(page.read_text()) if block.language == "python"]


WITH_EXAMPLES = [page for page in pages() if any(block.is_run for block in examples(page))]


@pytest.mark.parametrize("page", WITH_EXAMPLES, ids=name_of)
def test_B022_python_examples_run_and_show_what_they_promise(page: Path, fresh_kernel: Kernel) -> None:
    for block in filter(lambda block: block.is_run, examples(page)):
        where = f"{name_of(page)}, line {block.line}"
        result = fresh_kernel.run(block.body, may_fail=True)
        failure = [error.text for error in result.errors]
        assert [error.ename for error in result.errors] == [block.raises][: bool(block.raises)], (
            where,
            failure,
        )
        if block.promised is not None and block.note != "output not compared":
            shown, promised = shown_by(result), block.promised.splitlines()
            # Lines of different ranks may come in either order.
            assert fits(sorted(shown), sorted(promised)), f"{where} shows:\n" + "\n".join(shown)


def shown_by(result: Result) -> list[str]:
    """What a reader sees below the cell, warnings aside: of an error its last line."""
    shown = result.stdout + "".join(display.text + "\n" for display in result.displays)
    return [
        *shown.splitlines(),
        *(line for e in result.errors for line in f"{e.ename}: {e.evalue}".splitlines()),
    ]


def fits(shown: list[str], promised: list[str]) -> bool:
    """Whether they are equal, where ``...`` stands for anything."""
    patterns = [".*".join(map(re.escape, line.split("..."))) for line in promised]
    return len(shown) == len(promised) and all(map(re.fullmatch, patterns, shown))


def test_B022_what_is_not_run_has_a_reason() -> None:
    for page in pages():
        for block in blocks_of(page.read_text()):
            where = f"{name_of(page)}, line {block.line}"
            assert NOTES.fullmatch(block.note), where
            assert block.is_run or REASON.fullmatch(block.note), where
