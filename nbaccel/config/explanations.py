"""What each choice of a setting means, in a few words: for questions and forms."""

from __future__ import annotations

from collections.abc import Mapping

CHOICE_TEXTS: Mapping[str, Mapping[str, str]] = {
    "mixed_precision": {
        "no": "everything in float32",
        "fp16": "half precision with a scaled loss, for GPUs before 2020",
        "bf16": "bfloat16, for newer GPUs, CPUs and TPUs",
        "fp8": "for GPUs with fp8 units",
    },
    "output": {"all": "lines of all ranks, labelled", "main": "those of rank 0 only", "none": "nothing"},
    "start_method": {
        "auto": "the quickest that is safe here",
        "zygote": "copies of a clean process",
        "spawn": "fresh interpreters",
        "fork": "copies of the kernel as it is",
    },
    "progress": {
        "auto": "a panel when it logs or trains for a while",
        "on": "a panel from the start",
        "off": "no panel",
    },
    "rdzv_backend": {"static": "machine 0 is known", "c10d": "whoever comes"},
}
"""Setting -> choice -> text. A setting that isn't here has choices that speak for themselves."""


def explained(name: str, choice: str) -> str:
    """``none: nothing``, e.g.; the choice alone where no more is to be said."""
    text = CHOICE_TEXTS.get(name, {}).get(choice)
    return f"{choice}: {text}" if text else choice
