"""Which of the visible accelerators a launch takes. Pure: it asks nobody, it starts nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from nbaccel.launch.devices.model import Accelerators, Usage

IDLE = "idle"
"""``devices="idle"``: those with the least memory in use."""

IDLE_SHARE = 0.10
"""With ``"idle"`` and no number of processes: all devices with at most this share of memory in use.

A driver alone keeps one to five hundredths of it.
"""


def choose(
    asked: Sequence[int] | str | None,
    num_processes: int | None,
    found: Accelerators,
    read_usage: Callable[[], Sequence[Usage | None]],
) -> tuple[int, ...]:
    """One device a process.

    Args:
        asked: device numbers, :data:`IDLE`, or None for the first ones.
        num_processes: None: as many as ``asked`` says, else all.
        found: what there is, at least one.
        read_usage: asks how busy each is; called for :data:`IDLE` only.

    Raises:
        ValueError: more processes than devices, a device that isn't there or is named twice, numbers
            that contradict each other, none is idle, or some of devices that are taken as a whole.
    """
    if found.are_taken_whole:
        return _all_or_one(asked, num_processes, found)
    if num_processes is not None and num_processes > found.count and not _is_list(asked):
        raise ValueError(
            f"num_processes={num_processes}, but {_visible(found)}; "
            f"ask for at most {found.count}, or pass cpu=True"
        )
    if asked is None:
        return tuple(range(found.count if num_processes is None else num_processes))
    if isinstance(asked, str):
        return _idle(num_processes, found, read_usage())
    return _named(tuple(asked), num_processes, found)


def _all_or_one(
    asked: Sequence[int] | str | None, num_processes: int | None, found: Accelerators
) -> tuple[int, ...]:
    everything = tuple(range(found.count))
    if asked is not None and (isinstance(asked, str) or tuple(asked) not in (everything, (0,))):
        shown = repr(asked) if isinstance(asked, str) else list(asked)
        raise ValueError(
            f"devices={shown}: the cores of a TPU can't be picked, they run all together or one alone; leave "
            "devices out" + (f", and say num_processes={found.count} or 1" if found.count > 1 else "")
        )
    chosen = everything if asked is None else tuple(asked)
    if num_processes is None:
        return chosen
    if num_processes not in (1, found.count):
        both = f"1 or {found.count}" if found.count > 1 else "1"
        raise ValueError(
            f"num_processes={num_processes}: on {found.platform} {found.type_name} it can be {both}, the "
            "cores run all together or one alone; leave num_processes out to use all of them, or pass "
            "cpu=True"
        )
    if asked is not None and num_processes != len(chosen):
        raise ValueError(
            f"num_processes={num_processes} and devices={list(chosen)}, which are {len(chosen)}, contradict "
            "each other; leave one of them out"
        )
    return everything[:num_processes]


def _is_list(asked: Sequence[int] | str | None) -> bool:
    return asked is not None and not isinstance(asked, str)


def _named(ids: tuple[int, ...], num_processes: int | None, found: Accelerators) -> tuple[int, ...]:
    missing = [number for number in ids if not 0 <= number < found.count]
    if missing:
        raise ValueError(
            f"devices={list(ids)}: there is no device {', '.join(map(str, missing))}: {_visible(found)}; "
            f"choose among {', '.join(str(unit.index) for unit in found.units)}"
        )
    twice = sorted({number for number in ids if ids.count(number) > 1})
    if twice:
        raise ValueError(f"devices={list(ids)} names {twice[0]} twice; each device serves one process")
    if num_processes is not None and num_processes != len(ids):
        raise ValueError(
            f"num_processes={num_processes} and devices={list(ids)}, which are {len(ids)}, contradict each "
            "other; leave one of them out"
        )
    return ids


def _idle(num_processes: int | None, found: Accelerators, usage: Sequence[Usage | None]) -> tuple[int, ...]:
    known = {unit.index: used for unit, used in zip(found.units, usage, strict=True) if used is not None}
    if len(known) < found.count:
        raise ValueError(
            f"devices={IDLE!r}: how much memory of a {found.platform} device is in use can't be told here; "
            "name the devices, e.g. devices=[0]"
        )
    if num_processes is None:
        chosen = [index for index, used in known.items() if used.memory_share <= IDLE_SHARE]
        if not chosen:
            shares = ", ".join(f"{index}: {used.memory_share:.0%}" for index, used in known.items())
            raise ValueError(
                f"devices={IDLE!r}: no {found.platform} device is idle, which means at most "
                f"{IDLE_SHARE:.0%} of its memory in use ({shares}); say num_processes to take the least "
                "used ones all the same, or name the devices"
            )
    else:
        chosen = sorted(known, key=lambda index: (known[index].memory_used, index))[:num_processes]
    return tuple(sorted(chosen))


def _visible(found: Accelerators) -> str:
    """``2 cuda devices are visible``."""
    plural = "s are" if found.count != 1 else " is"
    return f"{found.count} {found.platform} device{plural} visible"
