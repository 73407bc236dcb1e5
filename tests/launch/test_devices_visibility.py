"""The variables that hide devices are read as the driver reads them, and narrowed in the same language."""

from __future__ import annotations

import os
from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nbaccel.launch.devices import visibility

UUIDS = ["GPU-8f2a-0001", "GPU-8f2b-0002", "GPU-1c00-0003", "GPU-77aa-0004"]


@pytest.mark.parametrize(
    ("text", "entries"),
    [
        (None, None),
        ("", ()),
        ("0,1", ("0", "1")),
        (" 2 , 0", ("2", "0")),
        ("1gpu2,2ampere", ("1", "2")),
        ("-1", ()),
        ("0,-1,1", ("0",)),
        ("NoDevFiles", ()),
        ("0,none,1", ("0",)),
        ("0,,1", ("0",)),
        ("+1", ("1",)),
        ("+", ()),
        ("1,2,1", ()),
        ("01,1", ()),
        ("GPU-8f2a,GPU-1c", ("GPU-8f2a", "GPU-1c")),
        ("GPU-8f2a,1", ("GPU-8f2a",)),
        ("GPU-8f2a,GPU-8f2a", ()),
        ("0,GPU-8f2a", ("0",)),
        ("MIG-11,MIG-22", ("MIG-11", "MIG-22")),
    ],
)
def test_entries(text, entries):
    assert visibility.cuda_entries(text) == entries


@pytest.mark.parametrize(
    ("text", "indices"),
    [
        (None, (0, 1, 2, 3)),
        ("2,0", (2, 0)),
        ("0,4,1", (0,)),  # 4 isn't there, and ends the list
        ("9", ()),
        ("GPU-1c,GPU-8f2b", (2, 1)),
        ("GPU-8f2,GPU-1c", ()),  # two GPUs begin so
        ("GPU-1c,GPU-8f2,GPU-77", (2,)),
        ("GPU-1c,GPU-1c00", ()),  # the same one twice, spelt in two ways
        ("GPU-0000", ()),
    ],
)
def test_which_gpus_are_visible(text, indices):
    assert visibility.visible_indices(visibility.cuda_entries(text), UUIDS) == indices


_ENTRY = st.one_of(
    st.integers(-2, 6).map(str),
    st.sampled_from(["", " 1", "2x", "x", "NoDevFiles", "+0", "GPU-8f2a", "GPU-8f2", "GPU-1c00", "GPU-9"]),
)


@given(st.lists(_ENTRY, min_size=1, max_size=5).map(",".join))
def test_torch_reads_it_in_the_same_way(text):
    with (
        mock.patch.dict(os.environ, {"CUDA_VISIBLE_DEVICES": text}),
        mock.patch("torch.cuda._raw_device_count_nvml", return_value=len(UUIDS)),
        mock.patch("torch.cuda._raw_device_uuid_nvml", return_value=UUIDS),
    ):
        expected = torch.cuda._device_count_nvml()
    entries = visibility.cuda_entries(text)
    assert len(visibility.visible_indices(entries, UUIDS)) == expected


@pytest.mark.parametrize(
    ("text", "chosen", "count", "value"),
    [
        (None, [0, 2], 4, "0,2"),
        (None, [1], 2, "1"),
        ("4,5,6,7", [0, 2], 4, "4,6"),
        ("4gpu,5", [1], 2, "5"),
        ("GPU-8f2a,GPU-1c", [1], 2, "GPU-1c"),
        (None, [1, 0], 2, "1,0"),
    ],
)
def test_chosen_devices_out_of_those_that_are_visible(text, chosen, count, value):
    environ = {} if text is None else {"CUDA_VISIBLE_DEVICES": text}
    assert visibility.narrowed("cuda", environ, chosen, count) == {"CUDA_VISIBLE_DEVICES": value}


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=4, unique=True),
    st.data(),
)
def test_what_a_worker_sees_is_what_was_chosen(visible, data):
    entries = data.draw(st.sampled_from([visible, [UUIDS[index] for index in visible]]))
    environ = {"CUDA_VISIBLE_DEVICES": ",".join(map(str, entries))}
    chosen = data.draw(st.lists(st.integers(0, len(visible) - 1), min_size=1, unique=True))
    environ |= visibility.narrowed("cuda", environ, chosen, len(visible))
    seen = visibility.visible_indices(visibility.cuda_entries(environ["CUDA_VISIBLE_DEVICES"]), UUIDS)
    assert seen == tuple(visible[index] for index in chosen)


@pytest.mark.parametrize("platform", ["cuda", "rocm", "xpu", "mps"])
def test_all_devices_need_no_variable(platform):
    environ = {"CUDA_VISIBLE_DEVICES": "MIG-1", "ZE_AFFINITY_MASK": "0.0,0.1,1"}
    assert visibility.narrowed(platform, environ, [0, 1], 2) == {}


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, {"HIP_VISIBLE_DEVICES": "1"}),
        ({"HIP_VISIBLE_DEVICES": "2,3"}, {"HIP_VISIBLE_DEVICES": "3"}),
        # HIP reads CUDA's name too: both say the same afterwards
        ({"CUDA_VISIBLE_DEVICES": "2,3"}, {"HIP_VISIBLE_DEVICES": "3", "CUDA_VISIBLE_DEVICES": "3"}),
        # a layer below: numbers count what it leaves
        ({"ROCR_VISIBLE_DEVICES": "4,5"}, {"HIP_VISIBLE_DEVICES": "1"}),
    ],
)
def test_rocm(environ, expected):
    assert visibility.narrowed("rocm", environ, [1], 2) == expected


def test_xpu():
    assert visibility.narrowed("xpu", {}, [1], 2) == {"ZE_AFFINITY_MASK": "1"}
    assert visibility.narrowed("xpu", {"ZE_AFFINITY_MASK": "0.1, 1.0"}, [1], 2) == {"ZE_AFFINITY_MASK": "1.0"}
    # one card of two tiles, shown as two devices: which is whose isn't in the variable
    with pytest.raises(ValueError, match=r"ZE_AFFINITY_MASK='0'.*1 entries for 2 devices; unset it"):
        visibility.narrowed("xpu", {"ZE_AFFINITY_MASK": "0"}, [1], 2)
