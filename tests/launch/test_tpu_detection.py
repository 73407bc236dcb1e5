"""TPUs are found by what lies around, and nothing of them is opened or imported."""

from __future__ import annotations

import re
import socket
import sys
from pathlib import Path

import pytest

from nbaccel.launch.devices import discovery, tpu, tpu_types
from nbaccel.launch.devices.discovery import Discovery
from nbaccel.launch.request import resolve
from tests.launch.fake_machine import cuda_machine, gpus
from tests.launch.fake_tpu import V3, V4, V5E, V5P, V6E, V7X, FakeTpuHost, FakeTpuMachine


@pytest.fixture
def host(tmp_path: Path) -> FakeTpuHost:
    return FakeTpuHost(tmp_path)


TYPES = [
    # chip, chips, what the environment says, name, processes, threads
    (V3, 4, {}, "v2/v3-8", 4, 2),
    (V3, 4, {"TPU_ACCELERATOR_TYPE": "v2-8"}, "v2-8", 4, 2),
    (V3, 4, {"TPU_ACCELERATOR_TYPE": "v3-8"}, "v3-8", 4, 2),
    (V4, 4, {}, "v4-8", 4, 1),
    (V5P, 4, {}, "v5p-8", 4, 1),
    (V5E, 1, {"TPU_ACCELERATOR_TYPE": "v5litepod-1"}, "v5e-1", 1, 1),
    (V5E, 4, {}, "v5e-4", 4, 1),
    (V5E, 8, {"TPU_ACCELERATOR_TYPE": "v5litepod-8"}, "v5e-8", 8, 1),
    (V6E, 1, {}, "v6e-1", 1, 1),
    (V6E, 4, {}, "v6e-4", 4, 1),
    (V6E, 8, {"TPU_ACCELERATOR_TYPE": "v6e-8"}, "v6e-8", 8, 1),
    (V7X, 4, {"TPU_ACCELERATOR_TYPE": "tpu7x-8"}, "7x-8", 4, 1),
]


@pytest.mark.parametrize(("chip", "chips", "environ", "name", "processes", "threads"), TYPES)
def test_the_table_of_types(host, chip, chips, environ, name, processes, threads):
    found = tpu.find(environ, host.plug_in(chip, chips))
    assert (found.device_type, found.platform, found.type_name) == ("xla", "tpu", name)
    assert found.count == processes * threads
    assert found.units_per_process == threads


def test_B172_detected_by_the_bus_without_opening_or_importing(host, monkeypatch):
    """The device files are pipes that nobody writes to: opening one would never return."""
    host.plug_in(V5E, 8)
    for name in ("torch_xla", "torch_tpu", "libtpu"):
        monkeypatch.setitem(sys.modules, name, None)  # an import of it fails
    monkeypatch.setattr(socket, "socket", None)  # nor is the metadata server asked
    found = Discovery(FakeTpuMachine(host)).look({"KAGGLE_KERNEL_RUN_TYPE": "Interactive"})
    assert (found.platform, found.count) == ("tpu", 8)
    assert {unit.name for unit in found.units} == {"TPU v5e"}


@pytest.mark.parametrize(
    "environ", [{"PJRT_DEVICE": "TPU"}, {"TPU_ACCELERATOR_TYPE": "v5litepod-4"}, {"ISTPUVM": "1"}]
)
@pytest.mark.parametrize("name", ["accel{}", "vfio/{}"])
def test_device_files_are_believed_where_the_environment_tells_of_a_tpu(host, environ, name):
    for number in range(4):
        host.add_file(name.format(number))
    host.add_file("vfio/vfio")
    assert tpu.find(environ, host).count == 4


def test_device_files_alone_may_be_anything(host):
    """A virtual machine host passes network cards on through the same files."""
    host.add_file("vfio/17").add_file("vfio/vfio").add_file("accel_other")
    assert tpu.find({}, host) is None


def test_a_card_of_another_maker_is_no_chip(host):
    assert tpu.find({}, host.plug_in(V5E, 2, vendor="0x10de")) is None
    assert tpu.find({}, host.plug_in("0x9999", 2)) is None


def test_nothing_is_said_where_there_is_no_sign_of_a_tpu(host):
    assert tpu.find({}, host) is None
    assert tpu.find({"PJRT_DEVICE": "CUDA"}, host.plug_in(V4, 4)) is None


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"PJRT_DEVICE": "TPU"}, "PJRT_DEVICE=TPU is set, but no TPU chip"),
        ({"TPU_NAME": "node-1"}, "TPU_NAME is set, but no TPU chip .* no longer served by torch_xla"),
        ({"COLAB_TPU_ADDR": "10.0.0.2:8470"}, "COLAB_TPU_ADDR is set, but"),
    ],
)
def test_a_tpu_that_is_only_talked_of_is_a_reason(host, environ, said):
    found = Discovery(FakeTpuMachine(host)).look(environ)
    assert found.count == 0
    assert found.is_broken
    assert re.search(said, found.reason)


def test_chips_without_a_package_name_what_to_install(tmp_path):
    host = FakeTpuHost(tmp_path, packages={}).plug_in(V6E, 1)
    found = Discovery(FakeTpuMachine(host)).look({})
    assert found.is_broken
    assert "a TPU v6e-1 is here, but neither torch_xla nor torch_tpu is installed" in found.reason
    host.packages = {"torch_xla": "2.9.0"}


def test_what_is_missing_may_come_while_the_kernel_lives(tmp_path):
    host = FakeTpuHost(tmp_path, packages={}).plug_in(V6E, 1)
    discovery = Discovery(FakeTpuMachine(host))
    assert discovery.look({}).count == 0
    host.packages = {"torch_xla": "2.9.0"}
    assert discovery.look({}).count == 1


def test_a_torch_xla_for_another_torch_is_named_with_both_versions(tmp_path):
    host = FakeTpuHost(tmp_path, packages={"torch_xla": "2.9.0"}, torch="2.13.0+cpu").plug_in(V5E, 8)
    found = tpu.find({}, host)
    assert found.count == 0
    assert "torch_xla 2.9.0 works with torch 2.9 only, and torch 2.13.0+cpu is installed" in found.reason


def test_torch_tpu_is_named_and_drives_a_chip_as_one_device(tmp_path):
    host = FakeTpuHost(tmp_path, packages={"torch_tpu": "0.2.0"}, torch="2.13.0+cpu").plug_in(V5E, 4)
    found = tpu.find({}, host)
    assert (found.device_type, found.platform, found.type_name, found.count) == ("tpu", "tpu", "v5e-4", 4)


def test_gpus_beside_chips_that_nothing_drives_are_used(tmp_path):
    machine = cuda_machine(*gpus(2))
    machine.tpu_found = tpu.find({}, FakeTpuHost(tmp_path, packages={}).plug_in(V4, 4))
    assert Discovery(machine).look({}).device_type == "cuda"


def test_visible_chips_are_counted(host):
    host.plug_in(V5E, 4)
    assert tpu.find({"TPU_VISIBLE_CHIPS": "2"}, host).count == 1
    assert tpu.find({"TPU_VISIBLE_CHIPS": "0,1,2,3"}, host).count == 4
    found = tpu.find({"TPU_VISIBLE_CHIPS": "0,1"}, host)
    assert found.is_broken
    assert "names 2 of 4 TPU chips" in found.reason
    for wrong in ("a", "4", "0,0,1,2", "0,", "-1"):
        found = tpu.find({"TPU_VISIBLE_CHIPS": wrong}, host)
        assert found.is_broken, wrong
        assert f"TPU_VISIBLE_CHIPS={wrong!r} isn't a list of this machine's TPU chips" in found.reason


def test_the_cpu_client_is_a_rehearsal_that_has_to_be_asked_for(host):
    """torch_xla sets PJRT_DEVICE=CPU by itself where it finds nothing: that is nobody's wish."""
    assert tpu.find({"PJRT_DEVICE": "CPU"}, host) is None
    for wrong in ("0", "-1", "x"):
        found = tpu.find({"PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": wrong}, host)
        assert found.is_broken
        assert f"CPU_NUM_DEVICES={wrong!r} isn't a number of devices" in found.reason
    found = tpu.find({"PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": "4"}, host.plug_in(V5E, 8))
    assert (found.device_type, found.platform, found.count, found.units_per_process) == ("xla", "xla", 4, 4)


@pytest.mark.parametrize(
    ("text", "name"), [("v5p-8", "v5p"), ("V5LITEPOD-16", "v5e"), ("tpu-v4-8", "v4"), ("x", None)]
)
def test_names_of_types_in_environments(text, name):
    generation = tpu_types.generation_named(text)
    assert (generation.name if generation else None) == name


# --- what a launch takes of it ---------------------------------------------------------------------


@pytest.fixture
def on_tpu(monkeypatch):
    """Let the launcher find this host's TPU."""

    def use(host: FakeTpuHost) -> None:
        monkeypatch.setattr(discovery, "_discovery", Discovery(FakeTpuMachine(host)))

    return use


@pytest.mark.parametrize(
    ("chip", "chips", "asked", "line"),
    [
        (V5E, 8, {"mixed_precision": "bf16"}, "8 processes on tpu v5e-8, bf16"),
        (V5E, 8, {"num_processes": 8}, "8 processes on tpu v5e-8"),
        (V5E, 8, {"num_processes": 1}, "1 process on tpu v5e-8"),
        (V3, 4, {}, "4 processes of 2 threads on tpu v2/v3-8"),
        (V3, 4, {"num_processes": 1}, "1 process on tpu v2/v3-8"),
        (V6E, 1, {"num_processes": 1}, "1 process on tpu v6e-1"),
        (V5E, 8, {"cpu": True, "num_processes": 3}, "3 processes on cpu"),
    ],
)
def test_B174_all_cores_or_one(host, on_tpu, chip, chips, asked, line):
    on_tpu(host.plug_in(chip, chips))
    assert resolve.describe(resolve.resolve_spec(**asked)) == line


@pytest.mark.parametrize("number", [2, 3, 4, 16])
def test_B174_any_other_number_names_the_two_that_work(host, on_tpu, number):
    on_tpu(host.plug_in(V5E, 8))
    with pytest.raises(ValueError, match=rf"num_processes={number}: on tpu v5e-8 it can be 1 or 8"):
        resolve.resolve_spec(num_processes=number)


def test_B174_a_configured_number_is_told_with_its_place(host, on_tpu, monkeypatch):
    on_tpu(host.plug_in(V5E, 8))
    monkeypatch.setenv("NBACCEL_NUM_PROCESSES", "2")
    with pytest.raises(ValueError, match=r"1 or 8.*NBACCEL_NUM_PROCESSES"):
        resolve.resolve_spec()


def test_cores_cannot_be_picked(host, on_tpu):
    on_tpu(host.plug_in(V5E, 8))
    for asked in ([2], "idle", [0, 1]):
        with pytest.raises(
            ValueError,
            match=r"the cores of a TPU can't be picked.*leave devices out, and say num_processes=8 or 1",
        ):
            resolve.resolve_spec(devices=asked)
    assert resolve.resolve_spec(devices=range(8)).num_processes == 8
    assert resolve.resolve_spec(devices=[0]).num_processes == 1


@pytest.mark.parametrize("precision", ["fp16", "fp8"])
def test_half_precision_on_a_tpu_is_bf16(host, on_tpu, precision):
    on_tpu(host.plug_in(V5E, 8))
    with pytest.raises(ValueError, match="use mixed_precision='bf16'"):
        resolve.resolve_spec(mixed_precision=precision)
    assert resolve.resolve_spec(mixed_precision=precision, cpu=True).mixed_precision == precision


def test_several_machines_are_refused(host, on_tpu):
    on_tpu(host.plug_in(V5E, 8))
    with pytest.raises(ValueError, match="leave num_nodes out"):
        resolve.resolve_spec(num_nodes=2)


def test_nobody_tells_how_busy_a_tpu_is(host, on_tpu):
    on_tpu(host.plug_in(V5E, 4))
    assert discovery.usage({}) == (None,) * 4
