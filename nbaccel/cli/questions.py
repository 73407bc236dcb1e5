"""The questions of ``nbaccel config``: numbered choices and plain lines, the same in a terminal and a pipe.

Each question sets settings by name, and is asked only where its answer can matter. No cursor keys and no
screen control, so that it works in hosted notebooks and containers.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import click

from nbaccel.cli.refusal import Refused
from nbaccel.config import SETTINGS, resolve
from nbaccel.config.explanations import explained
from nbaccel.errors import ConfigError

Answers = dict[str, object]


@dataclass(frozen=True)
class Choice:
    """One numbered answer."""

    text: str
    sets: Mapping[str, object]
    """Settings by name; None takes one away."""


@dataclass(frozen=True)
class Question:
    """A text, and choices or a setting that takes what was typed."""

    name: str
    text: str
    choices: Sequence[Choice] = ()
    matters: Callable[[Answers], bool] = lambda _: True

    def present(self, answers: Answers) -> str:
        """The answer that an empty line stands for."""
        if not self.choices:
            each = SETTINGS[self.name]
            return each.shown(answers.get(self.name, each.default))
        return str(self._present_number(answers))

    def take(self, typed: str, answers: Answers) -> None:
        """Put a typed answer into ``answers``.

        Raises:
            ConfigError: it is none.
        """
        if not typed:
            return
        if not self.choices:
            value = SETTINGS[self.name].check(typed, "answer")
            _put(answers, self.name, value)
            return
        for name, value in self._chosen(typed).sets.items():
            _put(answers, name, value)

    def _chosen(self, typed: str) -> Choice:
        if typed.isascii() and typed.isdecimal() and 1 <= int(typed) <= len(self.choices):
            return self.choices[int(typed) - 1]
        for choice in self.choices:
            if typed.lower() == choice.text.split(":", 1)[0].lower():
                return choice
        raise ConfigError(f"answer: {typed!r} is none of the numbers 1 to {len(self.choices)}")

    def _present_number(self, answers: Answers) -> int:
        for number, choice in enumerate(self.choices, 1):
            if choice.sets and all(
                (answers.get(name) or None) == (value or None) for name, value in choice.sets.items()
            ):
                return number
        return next((n for n, choice in enumerate(self.choices, 1) if not choice.sets), 1)


def _put(answers: Answers, name: str, value: object) -> None:
    if value is None:
        answers.pop(name, None)
    else:
        answers[name] = value


def _each(name: str) -> tuple[Choice, ...]:
    return tuple(Choice(explained(name, word), {name: word}) for word in SETTINGS[name].choices)


def _several(answers: Answers) -> bool:
    nodes = answers.get("num_nodes", 1)
    return isinstance(nodes, int) and nodes > 1


QUESTIONS: tuple[Question, ...] = (
    Question(
        "where",
        "What should it run on?",
        (
            Choice("accelerators, or the CPU where there is none", {"cpu": None}),
            Choice("the CPU", {"cpu": True, "devices": None}),
        ),
    ),
    Question("num_processes", "How many processes on this machine?"),
    Question("mixed_precision", "Which precision?", _each("mixed_precision")),
    Question(
        "devices",
        "Which accelerators? all, idle, or numbers such as 0,2",
        matters=lambda answers: not answers.get("cpu"),
    ),
    Question("gradient_accumulation_steps", "How many micro-batches for each optimizer step?"),
    Question("output", "Whose output should be shown?", _each("output")),
    Question(
        "start_method",
        "How are a notebook's workers started?",
        _each("start_method"),
    ),
    Question("num_nodes", "How many machines take part?"),
    Question("node_rank", "Which one is this, counted from 0?", matters=_several),
    Question("master_addr", "What is the address of machine 0?", matters=_several),
    Question("master_port", "On which port of machine 0 do they meet?", matters=_several),
    Question(
        "rdzv_backend",
        "How do they find each other?",
        _each("rdzv_backend"),
        matters=_several,
    ),
)


def ask_all(present: Mapping[str, object]) -> dict[str, object]:
    """Ask every question that matters; returns settings by name.

    Args:
        present: what an empty answer keeps.

    Raises:
        Refused: there is nobody to answer, or no more, and the last answer was none.
    """
    answers: Answers = dict(present)
    taken = 0
    for question in QUESTIONS:
        if not question.matters(answers):
            continue
        if not _ask(question, answers):
            if taken == 0:
                raise Refused(
                    "there is nobody to answer: standard input is at its end; say --yes to write defaults, "
                    "or --set KEY=VALUE"
                )
            break
        taken += 1
    return {name: answers[name] for name in SETTINGS if name in answers}


def _ask(question: Question, answers: Answers) -> bool:
    """Ask until there is an answer; False when the input is at its end."""
    click.echo(question.text)
    for number, choice in enumerate(question.choices, 1):
        click.echo(f"  {number}) {choice.text}")
    while True:
        click.echo(f"[{question.present(answers)}] ", nl=False)
        sys.stdout.flush()
        line = sys.stdin.readline()
        if not line.endswith("\n"):
            click.echo()
        if not line:
            return False
        draft = dict(answers)
        try:
            question.take(line.strip(), draft)
            resolve(draft, environ={}, file=None)  # does it fit the answers before?
        except ConfigError as error:
            click.secho(str(error).removeprefix("answer: "), err=True, fg="red")
            if not sys.stdin.isatty():
                raise Refused(str(error)) from error
            continue
        answers.clear()
        answers.update(draft)
        return True
