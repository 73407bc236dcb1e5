"""The folder of a checkpoint: written beside its place and put there whole, numbered, and thinned out.

A process that is killed while it saves leaves the previous checkpoint as it was::

    .name.writing   being written; has no manifest until it is complete
    name            the checkpoint
    .name.previous  the one before, for the moment between two renames
"""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

MANIFEST = "nbaccel_manifest.json"
KEEP = ".keep"
"""A checkpoint that holds a file of this name is never removed."""

_NUMBERED = re.compile(r"checkpoint_(\d+)")


def writing_place(place: Path) -> Path:
    """Where the files of a checkpoint at ``place`` are written first."""
    return place.with_name(f".{place.name}.writing")


def _previous_place(place: Path) -> Path:
    return place.with_name(f".{place.name}.previous")


def start(place: Path) -> Path:
    """Make the empty folder that files are written to."""
    fresh = writing_place(place)
    if fresh.exists():
        # Of a save that was killed.
        shutil.rmtree(fresh)
    fresh.mkdir(parents=True)
    return fresh


def finish(place: Path, manifest: dict[str, Any]) -> None:
    """Write the manifest and put the folder in its place. Files of others in the old folder are kept."""
    fresh, previous = writing_place(place), _previous_place(place)
    own = sorted(str(path.relative_to(fresh)) for path in fresh.rglob("*") if path.is_file())
    text = json.dumps({**manifest, "files": own}, indent=2)
    with (fresh / MANIFEST).open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    if not place.exists():
        fresh.rename(place)
        return
    _carry_over(place, fresh)
    if previous.exists():
        shutil.rmtree(previous)
    place.rename(previous)
    fresh.rename(place)
    shutil.rmtree(previous)


def _carry_over(old: Path, fresh: Path) -> None:
    """Link what others have put into the old folder into the fresh one."""
    written = {MANIFEST}
    if (old / MANIFEST).exists():
        written |= set(json.loads((old / MANIFEST).read_text()).get("files", []))
    for path in old.rglob("*"):
        name = path.relative_to(old)
        target = fresh / name
        if not path.is_file() or str(name) in written or target.exists():
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(path, target)
        except OSError:
            # A file system without hard links.
            shutil.copy2(path, target)


def open_complete(place: Path) -> tuple[Path, dict[str, Any]]:
    """The folder to read a checkpoint from, and its manifest.

    Raises:
        FileNotFoundError: there is no checkpoint, it isn't complete, or files of it are missing.
    """
    for candidate in (place, _previous_place(place)):
        if (candidate / MANIFEST).exists():
            manifest: dict[str, Any] = json.loads((candidate / MANIFEST).read_text())
            missing = [name for name in manifest["files"] if not (candidate / name).exists()]
            if missing:
                raise FileNotFoundError(f"the checkpoint {candidate} lacks {', '.join(missing)}")
            return candidate, manifest
    if not place.exists():
        raise FileNotFoundError(f"there is no checkpoint at {place}")
    raise FileNotFoundError(
        f"{place} has no {MANIFEST}, so it isn't a complete checkpoint of nbaccel; choose another folder"
    )


def numbered(parent: Path) -> list[Path]:
    """The checkpoints named by number in ``parent``, in numeric order."""
    if not parent.exists():
        return []
    found = [(int(m[1]), path) for path in parent.iterdir() if (m := _NUMBERED.fullmatch(path.name))]
    return [path for _, path in sorted(found)]


def thin_out(parent: Path, limit: int, spared: set[Path]) -> list[Path]:
    """Remove the oldest numbered checkpoints until ``limit`` are left.

    Args:
        parent: the folder they stand in.
        limit: how many to keep, at least 1.
        spared: never removed, and not counted as removable; like those that hold a :data:`KEEP` file.

    Returns:
        The folders removed.
    """
    every = numbered(parent)
    removable = [p for p in every[:-1] if p.resolve() not in spared and not (p / KEEP).exists()]
    removed = removable[: max(0, len(every) - limit)]
    for path in removed:
        shutil.rmtree(path)
    return removed
