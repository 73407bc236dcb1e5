"""``nbaccel config``: questions and answers, or flags, to a file."""

from __future__ import annotations

from pathlib import Path

import click

from nbaccel import config
from nbaccel.cli import console, questions
from nbaccel.cli.refusal import Refused
from nbaccel.config import file as config_file


@click.command("config")
@click.argument("what", type=click.Choice(["default"]), required=False, metavar="")
@click.option("--config-file", metavar="PATH", help="The file to write, instead of the user's.")
@click.option("--default", "use_defaults", is_flag=True, help="Write the defaults; ask nothing.")
@click.option("-y", "--yes", is_flag=True, help="Keep what the file says, else the defaults; ask nothing.")
@click.option(
    "--set", "assignments", multiple=True, metavar="KEY=VALUE", help="Change one setting; ask nothing."
)
@click.option("--unset", "removals", multiple=True, metavar="KEY", help="Go back to a setting's default.")
@click.option("--show", is_flag=True, help="Print what the file says, and change nothing.")
@click.option("--keys", is_flag=True, help="Print each setting with its choices and default.")
def command(
    what: str | None,
    config_file: str | None,
    use_defaults: bool,
    yes: bool,
    assignments: tuple[str, ...],
    removals: tuple[str, ...],
    show: bool,
    keys: bool,
) -> None:
    """Choose what to run on, for every door: notebook, magic, form and terminal.

    Asks, in a terminal or from a pipe, one answer a line; an empty answer keeps what stands in brackets.
    The answers go to the user's file, the one of NBACCEL_CONFIG_FILE, or --config-file.
    """
    if keys:
        console.table(_describe_settings())
        return
    path = _target(config_file)
    present = _present(path, is_named=config_file is not None and show)
    if show:
        click.echo(f"# {path}" + ("" if path.is_file() else " (not there: the defaults hold)"))
        console.table(
            [(name, config.SETTINGS[name].shown(value)) for name, value in present.items()], indent=""
        )
        return
    is_fresh = use_defaults or what == "default"
    values = {} if is_fresh else present
    if assignments or removals:
        values = values | _assigned(assignments)
        for key in removals:
            values.pop(config.setting(key, "--unset").name, None)
    elif not yes and not is_fresh:
        values = questions.ask_all(values)
    _check(values)
    written = _write(values, path, anew=is_fresh)
    click.echo(f"nbaccel: written to {written}")
    console.table([(name, config.SETTINGS[name].shown(value)) for name, value in values.items()])
    if not values:
        click.echo("  the defaults: every setting is found out when something is launched")


def _target(named: str | None) -> Path:
    if named is not None:
        return Path(named).expanduser()
    return config.config_path() or config_file.default_path()


def _present(path: Path, *, is_named: bool) -> dict[str, object]:
    if not path.is_file() and not is_named:
        return {}
    stored = config_file.load(path)
    console.warn(stored.warnings)
    return {name: stored.values[name] for name in config.SETTINGS if name in stored.values}


def _assigned(assignments: tuple[str, ...]) -> dict[str, object]:
    found: dict[str, object] = {}
    for text in assignments:
        key, equals, value = text.partition("=")
        if not equals:
            raise Refused(f"--set {text} is not KEY=VALUE, e.g. --set num_processes=2")
        each = config.setting(key.strip(), "--set")
        found[each.name] = each.check(value, "--set")
    return found


def _check(values: dict[str, object]) -> None:
    """Refuse to write what could not be read again."""
    config.resolve(values, environ={}, file=None)


def _write(values: dict[str, object], path: Path, *, anew: bool) -> Path:
    """Comments of a file that is ours stay, unless it is to be the defaults'."""
    if anew or not path.is_file() or config_file.load(path).is_incumbents:
        return config_file.save(values, path)
    return config_file.update(values, path)


def _describe_settings() -> list[tuple[str, str, str]]:
    return [
        (
            each.name,
            each.shown(each.default),
            each.help + (f" ({', '.join(each.choices)})" if each.choices else ""),
        )
        for each in config.SETTINGS.values()
    ]
