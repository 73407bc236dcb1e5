"""Errors that the user can mend, as one line and exit code 2; everything else keeps its traceback."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import IO, Any

import click

from nbaccel.errors import ConfigError

EXIT_CODE = 2


class Refused(click.ClickException):
    """Something that was asked for can't be."""

    exit_code = EXIT_CODE

    def show(self, file: IO[Any] | None = None) -> None:
        click.echo(f"nbaccel: error: {self.format_message()}", file=file, err=file is None)


@contextlib.contextmanager
def translated(*kinds: type[Exception]) -> Iterator[None]:
    """Turn :class:`ConfigError` and the given kinds into :class:`Refused`."""
    mendable: tuple[type[Exception], ...] = (ConfigError, *kinds)
    try:
        yield
    except mendable as error:
        raise Refused(str(error)) from error
