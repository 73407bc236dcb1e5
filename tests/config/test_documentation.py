"""The documentation names every setting, with its choices, and no others."""

from __future__ import annotations

import re
from pathlib import Path

import click

from nbaccel import config
from nbaccel.cli.app import application
from nbaccel.diagnosis.selftest import STAGES

DOCS = Path(__file__).parents[2] / "docs"


def test_the_table_of_settings_is_complete() -> None:
    text = (DOCS / "configuration.md").read_text()
    table = text.split("## The settings")[1].split("\n\n")[2]
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", table, flags=re.MULTILINE))
    assert set(rows) == set(config.SETTINGS)
    for name, each in config.SETTINGS.items():
        assert all(f"`{choice}`" in rows[name] for choice in each.choices), name
        if each.default is not None:
            assert rows[name].endswith(f"`{each.shown(each.default)}`"), name


def test_commands_stages_and_flags_are_those_of_the_program() -> None:
    text = (DOCS / "cli.md").read_text()
    context = click.Context(application)
    for name in application.list_commands(context):
        assert f"nbaccel {name}" in text
    assert ", ".join(stage.name for stage in STAGES) in text
    launch = application.get_command(context, "launch")
    assert launch is not None
    known = {name for each in launch.params for name in each.opts}
    for name in re.findall(r"nbaccel launch ((?:--[\w-]+ ?)+)", text):
        assert set(name.split()) <= known, name
