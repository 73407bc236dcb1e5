"""``nbaccel env``: the report, for the eye, for a bug report, or as JSON."""

from __future__ import annotations

import json
import sys

import click

from nbaccel import config
from nbaccel.cli import console
from nbaccel.cli.refusal import EXIT_CODE


@click.command("env")
@click.option(
    "--config-file", metavar="PATH", help="Settings, instead of NBACCEL_CONFIG_FILE and the user's."
)
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def command(config_file: str | None, as_json: bool) -> None:
    """Show each setting with its origin, versions, devices, and what else a bug report needs.

    The exit code is 2 when the settings can't be used.
    """
    from nbaccel.diagnosis.report import make_report

    report = make_report(lambda: config.resolve(file=config_file or config.AUTO))
    if as_json:
        click.echo(json.dumps(report.data(), indent=2))
    elif console.is_terminal():
        for section in report.sections:
            console.heading(section.title)
            console.table(section.rows)
        console.warn([*report.warnings, *report.problems])
    else:
        click.echo(report.text(), nl=False)
    sys.exit(EXIT_CODE if report.problems else 0)
