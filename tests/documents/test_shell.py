"""Shell lines of the documents are ones that the program takes: commands, flags, files of the repository."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from nbaccel.cli.app import application
from tests.documents.pages import blocks_of, name_of, pages

NO_CODE = {"python", "yaml", "toml"}
PROGRAM = re.compile(r"^(?:[A-Z_]+=\S+ )*(?:python -m )?nbaccel\b(?!:)(.*)$", re.MULTILINE)


def shell_lines(page: Path) -> Iterator[str]:
    """What stands behind ``nbaccel`` in blocks and in code between the words."""
    text = page.read_text()
    for block in blocks_of(text):
        if block.language not in NO_CODE:
            yield from PROGRAM.findall(re.sub(r"\\\n\s*", " ", block.body))
    for code in re.findall(r"`([^`\n]+)`", re.sub(r"```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)):
        yield from PROGRAM.findall(code)


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_commands_and_flags_exist(page: Path) -> None:
    wrong = [f"nbaccel{line}: {reason}" for line in shell_lines(page) if (reason := refusal(line))]
    assert not wrong


def test_wrong_lines_are_noticed() -> None:
    assert "no such command" in refusal(" lunch train.py")
    assert "--nmu" in refusal(" launch --nmu 2 train.py")
    assert not refusal(" launch --num-processes=2 train.py --nmu 3  # the script's")


def refusal(line: str) -> str:
    """Why the program wouldn't take it; empty: it would, as far as names go."""
    words = shlex.split(re.split(r"\s#\s|[|>]", line, maxsplit=1)[0])
    known = {name for each in application.params for name in each.opts}
    while words and words[0].startswith("-"):
        if words[0].split("=")[0] not in known | {"--help"}:
            return f"{words[0]} is no flag of the program"
        words = words[2:]
    if not words or not re.fullmatch(r"[a-z]+", words[0]):
        return ""
    context = click.Context(application)
    command = application.get_command(context, words[0])
    if command is None:
        return f"there is no such command: {words[0]}"
    flags = {name: option for option in command.params for name in (*option.opts, *option.secondary_opts)}
    words = words[1:]
    while words:
        name, _, value = words.pop(0).partition("=")
        if not name.startswith("-"):
            if command.name == "launch":
                return ""  # the script, and what belongs to it
            continue
        option = flags.get(name) or flags.get(name.replace("_", "-"))
        if option is None:
            if name in {"--help", "-h"}:
                continue
            return f"{command.name} has no flag {name}"
        takes_value = isinstance(option, click.Option) and not option.is_flag and not option.count
        if takes_value and not value and words:
            words.pop(0)
    return ""
