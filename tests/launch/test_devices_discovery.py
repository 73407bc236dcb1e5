"""What there is, found without opening a device, on machines of every kind."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from nbaccel.launch.devices.discovery import Discovery
from nbaccel.launch.devices.model import Unit, Usage
from nbaccel.launch.devices.probe import ask_torch
from nbaccel.launch.devices.system import Build, ThisMachine
from tests.launch.fake_machine import (
    A100,
    CUDA_BUILD,
    GIB,
    MPS_BUILD,
    ROCM_BUILD,
    XPU_BUILD,
    FakeMachine,
    FakeNvml,
    Gpu,
    cuda_machine,
    gpus,
    units,
)


def test_nvml_answers_and_no_process_is_started():
    machine = cuda_machine(*gpus(4))
    found = Discovery(machine).look({})
    assert (found.device_type, found.platform, found.count) == ("cuda", "cuda", 4)
    assert found.units[3] == Unit(3, A100, "GPU-3aaa-bbbb")
    assert machine.questions == []
    assert machine.library.open == 0


def test_visible_ones_are_counted_in_the_order_of_the_variable():
    found = Discovery(cuda_machine(*gpus(4))).look({"CUDA_VISIBLE_DEVICES": "3,GPU-0,1"})
    assert [unit.uuid for unit in found.units] == ["GPU-3aaa-bbbb"]
    found = Discovery(cuda_machine(*gpus(4))).look({"CUDA_VISIBLE_DEVICES": "3,1"})
    assert [(unit.index, unit.uuid) for unit in found.units] == [(0, "GPU-3aaa-bbbb"), (1, "GPU-1aaa-bbbb")]


@pytest.mark.parametrize("text", ["", "-1", "NoDevFiles", "1,1"])
def test_hidden_gpus_are_not_even_asked_for(text):
    machine = cuda_machine(*gpus(2))
    found = Discovery(machine).look({"CUDA_VISIBLE_DEVICES": text})
    assert (found.device_type, found.count) == ("cpu", 0)
    assert found.reason == f"CUDA_VISIBLE_DEVICES={text!r} hides every GPU"
    assert not machine.library.was_used
    assert machine.questions == []


def test_a_variable_that_names_no_gpu_is_the_reason():
    found = Discovery(cuda_machine(*gpus(2))).look({"CUDA_VISIBLE_DEVICES": "7"})
    assert found.count == 0
    assert found.reason == "CUDA_VISIBLE_DEVICES='7' names none of the 2 GPUs that are here"


def test_a_build_for_the_cpu_asks_nobody():
    machine = FakeMachine(library=FakeNvml(gpus(2)))
    found = Discovery(machine).look({})
    assert found.count == 0
    assert "build for the CPU only" in found.reason
    assert not machine.library.was_used


def test_no_driver_means_no_process_is_started_either():
    machine = FakeMachine(CUDA_BUILD, FakeNvml([], starts=False), driver=False)
    found = Discovery(machine).look({})
    assert (found.count, found.reason, found.is_broken) == (0, "no NVIDIA driver is installed here", False)
    assert machine.questions == []


@pytest.mark.parametrize("library", [None, FakeNvml([], starts=False), FakeNvml([Gpu("GPU-0", fails=True)])])
def test_without_nvml_torch_is_asked(library):
    machine = FakeMachine(CUDA_BUILD, library, torch_units=units(2))
    found = Discovery(machine).look({})
    assert found.count == 2
    assert machine.questions == [("cuda", False)]
    assert library is None or library.open == 0


def test_parts_of_a_gpu_are_what_torch_says():
    parts = [Unit(0, f"{A100} MIG 3g.40gb", "c6d4-mig")]
    for environ, gpu in (
        ({"CUDA_VISIBLE_DEVICES": "MIG-c6d4,MIG-9"}, Gpu("GPU-0")),
        ({}, Gpu("GPU-0", mig=True)),
    ):
        machine = cuda_machine(gpu)
        machine.torch_units = parts
        assert Discovery(machine).look(environ).units == tuple(parts)
        assert machine.questions == [("cuda", False)]


def test_a_gpu_that_cannot_be_split_is_no_error():
    machine = cuda_machine(Gpu("GPU-0", mig=None))
    assert Discovery(machine).look({}).count == 1
    assert machine.questions == []


def test_different_models_are_counted_by_cuda_itself():
    """NVML counts in bus order, CUDA the fastest first: numbers would mean other GPUs."""
    mixed = [Gpu("GPU-0", name="NVIDIA T400"), Gpu("GPU-1", name="NVIDIA H100")]
    in_cudas_order = [Unit(0, "NVIDIA H100", "1"), Unit(1, "NVIDIA T400", "0")]
    machine = cuda_machine(*mixed)
    machine.torch_units = in_cudas_order
    assert Discovery(machine).look({}).units == tuple(in_cudas_order)
    assert machine.questions == [("cuda", False)]
    for environ in ({"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, {"CUDA_VISIBLE_DEVICES": "GPU-1"}):
        machine = cuda_machine(*mixed)
        assert Discovery(machine).look(environ).count in (1, 2)
        assert machine.questions == []


def test_a_driver_that_is_too_old_is_told():
    machine = cuda_machine(*gpus(2), driver=11040)
    machine.complaint = (
        "CUDA initialization: The NVIDIA driver on your system is too old (Triggered internally at x.cpp:1)"
    )
    found = Discovery(machine).look({})
    assert found.is_broken
    assert found.reason == "CUDA initialization: The NVIDIA driver on your system is too old"


@pytest.mark.parametrize(
    ("build", "device_type", "platform"),
    [(ROCM_BUILD, "cuda", "rocm"), (XPU_BUILD, "xpu", "xpu"), (MPS_BUILD, "mps", "mps")],
)
def test_other_platforms_have_their_own_names(build, device_type, platform):
    machine = FakeMachine(build, torch_units=units(1, "some GPU"))
    found = Discovery(machine).look({})
    assert (found.device_type, found.platform, found.count) == (device_type, platform, 1)
    assert machine.questions == [(device_type, False)]
    assert Discovery(FakeMachine(build)).look({}).reason == f"torch sees no {platform} device here"


def test_rocm_without_its_driver():
    machine = FakeMachine(ROCM_BUILD, driver=False)
    assert Discovery(machine).look({}).reason == "no rocm driver is installed here"
    assert machine.questions == []


def test_an_answer_holds_while_the_variables_do():
    machine = FakeMachine(CUDA_BUILD, torch_units=units(2))
    discovery = Discovery(machine)
    discovery.look({"HOME": "a"})
    discovery.look({"HOME": "b"})
    assert len(machine.questions) == 1
    discovery.look({"CUDA_VISIBLE_DEVICES": "0"})
    assert len(machine.questions) == 2


# --- how busy --------------------------------------------------------------------------------------


def test_usage_is_read_anew_each_time():
    machine = cuda_machine(*gpus(2))
    discovery = Discovery(machine)
    assert discovery.usage({}) == (Usage(GIB, 80 * GIB, 0.0),) * 2
    machine.library.gpus[1].used = 40 * GIB
    machine.library.gpus[1].load = 75
    busy = discovery.usage({})[1]
    assert busy == Usage(40 * GIB, 80 * GIB, 0.75)
    assert busy.memory_share == 0.5
    assert machine.questions == []


def test_usage_follows_what_is_visible():
    machine = cuda_machine(*gpus(3))
    machine.library.gpus[2].used = 7 * GIB
    (usage,) = Discovery(machine).usage({"CUDA_VISIBLE_DEVICES": "2"})
    assert usage.memory_used == 7 * GIB


def test_usage_of_a_part_whose_identifier_torch_gave_without_its_letters():
    machine = cuda_machine(Gpu("GPU-0", mig=True), Gpu("MIG-c6d4", used=3 * GIB, total=40 * GIB, load=None))
    machine.torch_units = [Unit(0, "MIG 3g.40gb", "c6d4")]
    assert Discovery(machine).usage({}) == (Usage(3 * GIB, 40 * GIB, None),)


def test_usage_without_nvml_comes_from_torch():
    told = (Usage(1, 10), Usage(9, 10))
    machine = FakeMachine(ROCM_BUILD, torch_units=units(2), torch_usage=told)
    assert Discovery(machine).usage({}) == told
    assert machine.questions == [("cuda", False), ("cuda", True)]


def test_usage_of_an_apple_gpu_is_the_machine_s():
    machine = FakeMachine(MPS_BUILD, torch_units=units(1))
    assert Discovery(machine).usage({}) == (None,)
    assert Discovery(FakeMachine()).usage({}) == ()


# --- the real machine ------------------------------------------------------------------------------


def test_this_machine_is_told_as_torch_tells_it():
    found = Discovery(ThisMachine()).look(dict(os.environ))
    assert found.count == torch.cuda.device_count() + torch.xpu.device_count()
    assert not torch.cuda.is_initialized()


def test_the_process_that_is_asked_answers(tmp_path, monkeypatch):
    environ = {"PATH": "/usr/bin"}
    answer = ask_torch("cuda", environ, want_memory=True)
    assert len(answer.units) == len(answer.usage) == torch.cuda.device_count()


def test_a_process_that_fails_is_told_with_its_last_line():
    with pytest.raises(
        RuntimeError, match=r"torch could not name its nonsense devices: .*nonsense.*pass cpu=True"
    ):
        ask_torch("nonsense", {}, want_memory=False)


def test_a_process_that_does_not_answer_is_ended(monkeypatch):
    monkeypatch.setattr("nbaccel.launch.devices.probe._TIMEOUT", 0.05)
    with pytest.raises(RuntimeError, match=r"did not name its cuda devices within .* pass cpu=True"):
        ask_torch("cuda", {}, want_memory=False)


def test_importing_the_package_loads_no_device_library():
    code = (
        "import sys, nbaccel.launch.devices; "
        "print([name for name in ('torch', 'pynvml') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"


def test_a_build_says_its_platform(monkeypatch):
    monkeypatch.setattr(torch.version, "hip", "6.4.1")
    assert ThisMachine().build() == Build("cuda", "rocm", "6.4.1")
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    assert ThisMachine().build() == CUDA_BUILD
