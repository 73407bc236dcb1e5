"""The command line: ``nbaccel config | launch | test | env | export``.

Reads words and hands on: what a value means is the configuration's, how processes run is the launcher's.
Showing help or completing a word must never import torch.
"""

from __future__ import annotations


def main() -> None:
    """Entry point of the ``nbaccel`` program."""
    from nbaccel.cli.app import application

    application(prog_name="nbaccel")
