"""Which of the visible devices a launch takes."""

from __future__ import annotations

import pytest

from nbaccel.launch.devices import Accelerators, Unit, Usage, choose


def _found(count, platform="cuda"):
    return Accelerators("cuda", platform, tuple(Unit(index, "some GPU") for index in range(count)))


def _choose(asked, num_processes, count, shares=None):
    def read_usage():
        assert shares is not None, "nobody may ask how busy they are"
        return [None if share is None else Usage(int(share * 1000), 1000) for share in shares]

    return choose(asked, num_processes, _found(count), read_usage)


@pytest.mark.parametrize(
    ("asked", "num_processes", "count", "chosen"),
    [
        (None, None, 4, (0, 1, 2, 3)),
        (None, 2, 4, (0, 1)),
        (None, 1, 1, (0,)),
        ([2, 0], None, 4, (2, 0)),
        ((3,), 1, 4, (3,)),
    ],
)
def test_numbers(asked, num_processes, count, chosen):
    assert _choose(asked, num_processes, count) == chosen


@pytest.mark.parametrize(
    ("shares", "num_processes", "chosen"),
    [
        ([0.9, 0.02, 0.5, 0.01], None, (1, 3)),
        ([0.9, 0.02, 0.5, 0.01], 1, (3,)),
        ([0.9, 0.02, 0.5, 0.01], 3, (1, 2, 3)),  # as many as asked for, busy or not
        ([0.1, 0.101], None, (0,)),
        ([0.3, 0.3, 0.3], 2, (0, 1)),
    ],
)
def test_idle(shares, num_processes, chosen):
    assert _choose("idle", num_processes, len(shares), shares) == chosen


def test_none_is_idle():
    with pytest.raises(
        ValueError, match=r"no cuda device is idle.*at most 10%.*0: 50%, 1: 99%.*num_processes"
    ):
        _choose("idle", None, 2, [0.5, 0.99])


def test_idle_where_nobody_can_tell():
    with pytest.raises(ValueError, match=r"devices='idle': how much memory.*devices=\[0\]"):
        _choose("idle", 1, 1, [None])


def test_B058_more_processes_than_devices_names_both_numbers():
    with pytest.raises(
        ValueError,
        match="num_processes=4, but 2 cuda devices are visible; ask for at most 2, or pass cpu=True",
    ):
        _choose(None, 4, 2)
    with pytest.raises(ValueError, match="num_processes=2, but 1 cuda device is visible"):
        _choose("idle", 2, 1, [0])


def test_amd_s_gpus_are_not_called_cuda():
    with pytest.raises(ValueError, match="2 rocm devices are visible"):
        choose(None, 3, _found(2, "rocm"), list)


@pytest.mark.parametrize(
    ("asked", "num_processes", "message"),
    [
        (
            [0, 2],
            None,
            r"devices=\[0, 2\]: there is no device 2: 2 cuda devices are visible; choose among 0, 1",
        ),
        ([-1], None, r"there is no device -1"),
        ([1, 1], None, r"devices=\[1, 1\] names 1 twice"),
        ([0, 1], 4, r"num_processes=4 and devices=\[0, 1\], which are 2, contradict"),
        ([0, 1], 1, r"num_processes=1 and devices=\[0, 1\]"),
    ],
)
def test_devices_that_cannot_be(asked, num_processes, message):
    with pytest.raises(ValueError, match=message):
        _choose(asked, num_processes, 2)
