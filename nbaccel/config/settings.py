"""The table of settings: every key that may be configured, once, with its type, default and explanation.

Everything that lists keys reads this table: resolution, files, prompts, the form, ``nbaccel env`` and the
documentation's test.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from nbaccel.config import parsing
from nbaccel.config.parsing import BadValue, Parser
from nbaccel.config.spec import (
    OUTPUT_MODES,
    PRECISIONS,
    PROGRESS_MODES,
    RENDEZVOUS_BACKENDS,
    START_METHODS,
)
from nbaccel.errors import ConfigError

PREFIX = "NBACCEL_"
"""What the environment variable of each setting starts with."""


@dataclass(frozen=True)
class Setting:
    """One key."""

    name: str
    parse: Parser
    help: str
    """One line, for prompts and tables."""

    default: object = None
    """What holds when nobody says anything; None where the machine decides."""

    detected: str = ""
    """What None comes to, in words."""

    choices: tuple[str, ...] = ()

    @property
    def variable(self) -> str:
        """Its environment variable."""
        return PREFIX + self.name.upper()

    def check(self, value: object, where: str) -> object:
        """``value`` as the setting's type.

        Args:
            value: as the source holds it.
            where: the place, for the message: a flag, a variable, a file with its line.

        Raises:
            ConfigError: it isn't a value of this setting.
        """
        try:
            return self.parse(value)
        except BadValue as reason:
            raise ConfigError(f"{where}: {self.name}={value!r} {reason}") from None

    def shown(self, value: object) -> str:
        """``value`` as one would write it in a file or on a command line."""
        if value is None:
            return self.detected or "none"
        if isinstance(value, bool):
            return str(value).lower()
        if isinstance(value, (tuple, list)):
            return ",".join(str(part) for part in value)
        if isinstance(value, float) and value.is_integer():
            return str(int(value))
        return str(value)


SETTINGS: dict[str, Setting] = {
    each.name: each
    for each in (
        Setting(
            "num_processes",
            parsing.whole(1),
            "processes on this machine",
            detected="one for each accelerator in use, else 1",
        ),
        Setting(
            "mixed_precision", parsing.precision, "precision of the forward pass", "no", choices=PRECISIONS
        ),
        Setting("cpu", parsing.flag, "run on the CPU even where there is an accelerator", default=False),
        Setting(
            "devices",
            parsing.devices,
            "numbers of the accelerators to use, or idle, or all",
            detected="all",
        ),
        Setting(
            "gradient_accumulation_steps",
            parsing.whole(1),
            "micro-batches for each optimizer step",
            default=1,
        ),
        Setting(
            "start_method",
            parsing.choice(START_METHODS),
            "how a notebook's workers are started",
            default="auto",
            choices=START_METHODS,
        ),
        Setting(
            "output",
            parsing.choice(OUTPUT_MODES),
            "whose lines are shown: those of all ranks, of the main one, or none",
            default="all",
            choices=OUTPUT_MODES,
        ),
        Setting(
            "progress",
            parsing.progress,
            "whether a notebook's run has a live panel: when it logs or trains for a while, always, or never",
            default="auto",
            choices=PROGRESS_MODES,
        ),
        Setting(
            "timeout", parsing.seconds, "seconds after which a notebook's launch is stopped", detected="none"
        ),
        Setting("log_dir", parsing.text, "folder for a file a rank with all it writes", detected="none"),
        Setting("num_nodes", parsing.whole(1), "machines that take part", default=1),
        Setting("node_rank", parsing.whole(0), "index of this machine, counted from 0", default=0),
        Setting("master_addr", parsing.text, "address of the first machine", default="127.0.0.1"),
        Setting(
            "master_port",
            parsing.whole(0, 65535),
            "port on the first machine where the processes meet",
            detected="a free one; 29500 with several machines",
        ),
        Setting(
            "rdzv_backend",
            parsing.choice(RENDEZVOUS_BACKENDS),
            "how several machines find each other",
            default="static",
            choices=RENDEZVOUS_BACKENDS,
        ),
        Setting("max_restarts", parsing.whole(0), "how often failed workers are started anew", default=0),
        Setting(
            "num_cpu_threads",
            parsing.whole(1),
            "threads of each process for work on the CPU",
            detected="cores of this machine / processes on it",
        ),
    )
}


def setting(name: str, where: str) -> Setting:
    """The setting called ``name``, dashes or underscores.

    Raises:
        ConfigError: there is none; the nearest one is named.
    """
    found = SETTINGS.get(name.replace("-", "_"))
    if found is None:
        raise ConfigError(f"{where}: there is no setting {name!r}; {nearest(name)}")
    return found


def likely(name: str) -> str | None:
    """The setting that ``name`` is very likely a misspelling of."""
    close = difflib.get_close_matches(name.lower().replace("-", "_"), SETTINGS, n=1, cutoff=0.8)
    return close[0] if close else None


def nearest(name: str) -> str:
    """``did you mean 'cpu'?``, or the list of all settings."""
    close = difflib.get_close_matches(name.lower().replace("-", "_"), SETTINGS, n=1, cutoff=0.6)
    if close:
        return f"did you mean {close[0]!r}?"
    return f"the settings are {', '.join(SETTINGS)}"
