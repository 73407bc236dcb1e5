"""The options of ``%%accelerate``: one table, read by the parser, the help and the completion.

Parses and checks; starts nothing and asks no device. Errors are :class:`OptionError`, which says the
option, what is wrong and what would be right.
"""

from __future__ import annotations

import difflib
import itertools
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from nbaccel.config import OUTPUT_MODES, PRECISIONS, check_mixed_precision, unknown_precision


class OptionError(ValueError):
    """The line of a magic can't be understood."""


@dataclass(frozen=True)
class Option:
    """One option of the magic."""

    names: tuple[str, ...]
    """As written, the usual one first."""
    target: str
    """Field of :class:`CellOptions`."""
    help: str
    metavar: str = ""
    """What follows it; empty for a switch."""
    parse: Callable[[str, str], Any] | None = None
    """From option name and text to value."""
    value: Any = True
    """What a switch stands for."""
    choices: tuple[str, ...] = ()
    """For completion."""
    example: str = ""
    """A value of several parts, with commas; empty where it has one part."""


def _whole(name: str, text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise OptionError(f"{name} {text}: not a whole number of at least 1, e.g. {name} 2")
    return int(text)


def _numbers(name: str, text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise OptionError(f"{name} {text}: not a list of numbers, e.g. {name} 0,2")
    numbers = tuple(int(part) for part in parts)
    twice = next((number for number in numbers if numbers.count(number) > 1), None)
    if twice is not None:
        raise OptionError(f"{name} {text}: {twice} is named twice")
    return numbers


def _precision(name: str, text: str) -> str:
    try:
        return check_mixed_precision(text)
    except ValueError:
        raise OptionError(f"{name} {text}: {unknown_precision(text).removeprefix('is ')}") from None


def _mode(name: str, text: str) -> str:
    if text not in OUTPUT_MODES:
        raise OptionError(f"{name} {text}: not known; choose one of {', '.join(OUTPUT_MODES)}")
    return text


def _seconds(name: str, text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = float("nan")
    if not seconds > 0:
        raise OptionError(f"{name} {text}: not a number of seconds above 0, e.g. {name} 30")
    return seconds


def _names(name: str, text: str) -> tuple[str, ...]:
    names = tuple(part.strip() for part in text.split(",") if part.strip())
    wrong = next((each for each in names if not each.isidentifier()), None)
    if not names or wrong is not None:
        raise OptionError(f"{name} {text}: {wrong!r} is no name; write e.g. {name} loss,accuracy")
    return names


OPTIONS: tuple[Option, ...] = (
    Option(("--gpus",), "gpus", "run on N accelerators, one worker each", "N", _whole),
    Option(("--gpu-ids",), "gpu_ids", "run on these accelerators, e.g. 0,2", "IDS", _numbers, example="0,2"),
    Option(("--cpu",), "cpu", "run on the CPU even where there is an accelerator"),
    Option(("-n", "--num-processes"), "num_processes", "number of workers", "N", _whole),
    Option(
        ("--mixed-precision",),
        "mixed_precision",
        f"precision of each Accelerator made from now on: {', '.join(PRECISIONS)}",
        "P",
        _precision,
        choices=PRECISIONS,
    ),
    Option(("--fp16",), "mixed_precision", "short for --mixed-precision fp16", value="fp16"),
    Option(("--bf16",), "mixed_precision", "short for --mixed-precision bf16", value="bf16"),
    Option(
        ("--ranks",),
        "ranks",
        "run this cell on these workers only, e.g. 0,2",
        "RANKS",
        _numbers,
        example="0,2",
    ),
    Option(
        ("--output",),
        "output",
        "whose lines are shown: all, main or none",
        "WHOSE",
        _mode,
        choices=OUTPUT_MODES,
    ),
    Option(("--timeout",), "timeout", "stop the cell after S seconds", "S", _seconds),
    Option(
        ("-o", "--out"),
        "out",
        "names to bring home, whatever they are",
        "NAMES",
        _names,
        example="loss,accuracy",
    ),
    Option(("--progress",), "progress", "show a live panel from the start"),
    Option(("--no-progress",), "progress", "show no live panel", value=False),
    Option(("--fresh",), "fresh", "start new workers; what the running ones have is lost"),
)

_BY_NAME = {name: option for option in OPTIONS for name in option.names}


@dataclass(frozen=True)
class CellOptions:
    """What the line of a ``%%accelerate`` cell says. None: as the running session."""

    gpus: int | None = None
    gpu_ids: tuple[int, ...] | None = None
    cpu: bool = False
    num_processes: int | None = None
    mixed_precision: str | None = None
    ranks: tuple[int, ...] | None = None
    output: str | None = None
    timeout: float | None = None
    out: tuple[str, ...] = ()
    progress: bool | None = None
    fresh: bool = False


def parse_line(line: str) -> CellOptions:
    """Read the line of a ``%%accelerate`` cell.

    Raises:
        OptionError: an unknown option, a value that is missing or wrong, or two that contradict each other.
    """
    try:
        words = shlex.split(line, comments=True)
    except ValueError as error:
        raise OptionError(f"{line.strip()}: {error}") from None
    found: dict[str, Any] = {}
    said: dict[str, str] = {}
    listed: tuple[Option, str] | None = None
    while words:
        word = words.pop(0)
        if listed is not None and not word.startswith("-"):
            _refuse_apart(*listed, [word, *words])
        name, equals, text = word.partition("=")
        option = find(name)
        if option.parse is None:
            if equals:
                raise OptionError(f"{word}: {name} takes no value; write {name}")
            value, shown = option.value, name
        else:
            if not equals:
                if not words or words[0].startswith("-"):
                    such_as = f", e.g. {name} {option.example}" if option.example else ""
                    raise OptionError(f"{name} needs a value: {name} {option.metavar}{such_as}")
                text = words.pop(0)
            value, shown = option.parse(name, text), f"{name} {text}"
        listed = (option, shown) if option.example else None
        before = said.get(option.target)
        if before is not None and found[option.target] != value:
            raise OptionError(f"{before} and {shown} contradict each other; leave one of them out")
        found[option.target] = value
        said[option.target] = shown
    options = CellOptions(**found)
    _check(options, said)
    return options


def _refuse_apart(option: Option, shown: str, words: Sequence[str]) -> None:
    """``-o a b``, or ``-o a, b``: a list written with blanks in it.

    Raises:
        OptionError: the words would be values of ``option``.
    """
    rest = itertools.takewhile(lambda word: not word.startswith("-"), words)
    name, _, first = shown.partition(" ")
    text = ",".join(part for word in (first, *rest) for part in word.replace(",", " ").split())
    assert option.parse is not None
    try:
        option.parse(name, text)
    except OptionError:
        return  # something else, such as code
    raise OptionError(f"{words[0]!r} is no option; if it belongs to {name}, write {name} {text}")


def find(name: str) -> Option:
    """The option called ``name``; dashes or underscores.

    Raises:
        OptionError: there is none; the nearest one is named.
    """
    option = _BY_NAME.get(name) or _BY_NAME.get(name.replace("_", "-"))
    if option is not None:
        return option
    if not name.startswith("-"):
        raise OptionError(
            f"{name!r} is no option; the cell's code starts in the next line. See %%accelerate?"
        )
    near = nearest(name.replace("_", "-"), _BY_NAME)
    raise OptionError(f"{name}: there is no such option; {near}")


def nearest(word: str, choices: Sequence[str] | dict[str, Any]) -> str:
    """``did you mean --cpu?``, or the list of all."""
    close = difflib.get_close_matches(word.lower(), list(choices), n=1, cutoff=0.6)
    return f"did you mean {close[0]}?" if close else f"choose among {', '.join(choices)}"


def _check(options: CellOptions, said: dict[str, str]) -> None:
    def contradict(one: str, other: str, why: str = "") -> OptionError:
        return OptionError(f"{said[one]} and {said[other]} contradict each other{why}; leave one of them out")

    for target in ("gpus", "gpu_ids"):
        if options.cpu and target in said:
            raise contradict("cpu", target)
    for target, count in (("gpus", options.gpus), ("gpu_ids", len(options.gpu_ids or ()))):
        if target in said and options.num_processes not in (None, count):
            raise contradict(target, "num_processes", ": there is one worker an accelerator")
    if "gpu_ids" in said and options.gpus not in (None, len(options.gpu_ids or ())):
        raise contradict("gpu_ids", "gpus")
