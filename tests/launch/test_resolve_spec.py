"""From what was asked for, on machines of every kind, to what runs and what each worker is given."""

from __future__ import annotations

import os

import pytest

from nbaccel import notebook_launcher
from nbaccel.config import LaunchSpec, active_spec
from nbaccel.launch import launcher
from nbaccel.launch.devices import discovery
from nbaccel.launch.request.rendezvous import Rendezvous
from nbaccel.launch.request.resolve import describe, resolve_spec
from nbaccel.launch.request.setups import setup_maker
from nbaccel.launch.zygotes import zygote_client
from tests.launch.fake_machine import (
    CUDA_BUILD,
    GIB,
    MPS_BUILD,
    ROCM_BUILD,
    XPU_BUILD,
    FakeMachine,
    cuda_machine,
    gpus,
    units,
)


@pytest.fixture(autouse=True)
def no_variable_of_the_host(monkeypatch):
    for name in discovery.visibility.DECIDING_NAMES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def on(monkeypatch):
    """Put another machine in this one's place."""

    def replace(machine):
        monkeypatch.setattr(discovery, "_discovery", discovery.Discovery(machine))
        return machine

    return replace


@pytest.fixture
def four_gpus(on):
    return on(cuda_machine(*gpus(4)))


def _hosted(monkeypatch):
    """What hosted notebooks set; it must not change anything."""
    monkeypatch.setenv("KAGGLE_KERNEL_RUN_TYPE", "Interactive")
    monkeypatch.setenv("COLAB_GPU", "1")
    monkeypatch.setenv("COLAB_RELEASE_TAG", "release")


# --- how many, on what -----------------------------------------------------------------------------


def test_all_visible_accelerators_when_nothing_is_said(four_gpus):
    spec = resolve_spec()
    assert spec == LaunchSpec(num_processes=4, device_type="cuda", devices=(0, 1, 2, 3))
    assert describe(spec) == "4 processes on cuda:0-3"


def test_B013_one_process_uses_the_accelerator(four_gpus):
    spec = resolve_spec(num_processes=1)
    assert (spec.device_type, spec.devices, spec.cpu) == ("cuda", (0,), False)
    assert describe(spec) == "1 process on cuda:0"


def test_B013_without_an_accelerator_one_process_on_the_cpu(on):
    on(FakeMachine())
    assert resolve_spec() == LaunchSpec()
    assert describe(resolve_spec()) == "1 process on cpu"


@pytest.mark.parametrize("hosted", [False, True])
def test_B012_B014_the_number_that_was_asked_for_is_what_runs(four_gpus, hosted, monkeypatch):
    if hosted:
        _hosted(monkeypatch)
    assert resolve_spec(num_processes=2).num_processes == 2
    assert resolve_spec(num_processes=3, cpu=True).num_processes == 3
    assert resolve_spec().num_processes == 4


def test_B058_more_processes_than_visible_gpus(four_gpus, monkeypatch):
    with pytest.raises(ValueError, match="num_processes=5, but 4 cuda devices are visible"):
        resolve_spec(num_processes=5)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,3")
    with pytest.raises(ValueError, match="num_processes=4, but 2 cuda devices are visible"):
        resolve_spec(num_processes=4)


def test_B058_gpus_asked_for_while_all_are_hidden(four_gpus, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(
        ValueError, match=r"devices=\[0, 1\], but no accelerator.*CUDA_VISIBLE_DEVICES='' hides"
    ):
        resolve_spec(num_processes=2, devices=[0, 1])
    with pytest.raises(ValueError, match="devices='idle', but no accelerator is visible"):
        resolve_spec(devices="idle")
    assert resolve_spec(num_processes=2) == LaunchSpec(num_processes=2)


def test_the_cpu_takes_any_number_and_no_device_is_looked_for(four_gpus):
    spec = resolve_spec(num_processes=64, cpu=True)
    assert (spec.num_processes, spec.device_type, spec.devices) == (64, "cpu", ())
    assert not four_gpus.library.was_used


def test_cpu_and_devices_contradict(four_gpus):
    with pytest.raises(ValueError, match=r"cpu=True and devices=\[0\] contradict"):
        resolve_spec(devices=[0], cpu=True)


def test_idle_ones(four_gpus):
    for gpu, used in zip(four_gpus.library.gpus, (70, 1, 30, 2), strict=True):
        gpu.used = used * GIB
    spec = resolve_spec(devices="idle")
    assert (spec.num_processes, spec.devices) == (2, (1, 3))
    assert describe(spec) == "2 processes on cuda:1, 3"
    assert resolve_spec(num_processes=3, devices="idle").devices == (1, 2, 3)


def test_further_variables_of_the_workers_decide_what_is_visible(four_gpus):
    assert resolve_spec(env={"CUDA_VISIBLE_DEVICES": "2"}).num_processes == 1


def test_hardware_that_torch_cannot_use_is_worth_a_line(on, capsys):
    on(FakeMachine(CUDA_BUILD, complaint="CUDA initialization: driver too old (Triggered internally)"))
    assert resolve_spec().device_type == "cpu"
    assert capsys.readouterr().err == (
        "nbaccel: the accelerator here can't be used: CUDA initialization: driver too old\n"
    )


@pytest.mark.parametrize(
    ("build", "text"),
    [(ROCM_BUILD, "2 processes on rocm:0-1"), (XPU_BUILD, "2 processes on xpu:0-1")],
)
def test_platforms_have_their_own_names(on, build, text):
    on(FakeMachine(build, torch_units=units(2)))
    assert describe(resolve_spec()) == text


def test_an_apple_gpu_serves_one_process(on):
    on(FakeMachine(MPS_BUILD, torch_units=units(1)))
    assert describe(resolve_spec()) == "1 process on mps"
    with pytest.raises(ValueError, match=r"num_processes=2, but 1 mps device is visible.*cpu=True"):
        resolve_spec(num_processes=2)


def test_several_machines_and_precision(four_gpus):
    spec = resolve_spec(num_nodes=2, node_rank=1, mixed_precision="FP16")
    assert describe(spec) == "4 processes on cuda:0-3, node 1 of 2 (8 processes in all), fp16"


def test_a_choice_that_workers_could_not_be_given_is_refused_at_once(on, monkeypatch):
    on(FakeMachine(XPU_BUILD, torch_units=units(2)))
    monkeypatch.setenv("ZE_AFFINITY_MASK", "0")
    assert resolve_spec().num_processes == 2
    with pytest.raises(ValueError, match="ZE_AFFINITY_MASK='0'"):
        resolve_spec(num_processes=1)


# --- what a worker is given ------------------------------------------------------------------------


def _setups(spec, env=None):
    rendezvous = Rendezvous("127.0.0.1", 1, None, loopback_only=False)
    setup = setup_maker(spec, rendezvous, env or {}, marks_secret=b"")
    return [setup(local_rank) for local_rank in range(spec.num_processes)]


def test_workers_see_the_chosen_devices_and_local_rank_indexes_them(four_gpus):
    for rank, setup in enumerate(_setups(resolve_spec(devices=[3, 1]))):
        assert setup.environ["CUDA_VISIBLE_DEVICES"] == "3,1"
        assert setup.environ["LOCAL_RANK"] == str(rank)
        assert setup.spec.devices == (0, 1)  # as the worker counts them


def test_chosen_devices_are_counted_among_the_visible_ones(four_gpus, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,2,0")
    (setup,) = _setups(resolve_spec(devices=[1]))
    assert setup.environ["CUDA_VISIBLE_DEVICES"] == "2"
    setups = _setups(resolve_spec())
    assert setups[0].environ["CUDA_VISIBLE_DEVICES"] == "3,2,0"


def test_all_devices_leave_the_variable_as_it_is(four_gpus):
    assert "CUDA_VISIBLE_DEVICES" not in _setups(resolve_spec())[0].environ


def test_further_variables_are_narrowed_too(four_gpus):
    env = {"CUDA_VISIBLE_DEVICES": "0,3", "MODE": "x"}
    (setup,) = _setups(resolve_spec(devices=[1], env=env), env)
    assert setup.environ["CUDA_VISIBLE_DEVICES"] == "3"
    assert setup.environ["MODE"] == "x"


def test_on_the_cpu_the_variable_is_left_alone(four_gpus, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,2")
    assert _setups(resolve_spec(cpu=True))[0].environ["CUDA_VISIBLE_DEVICES"] == "3,2"


@pytest.mark.parametrize(
    ("text", "threads"), [("3", 3), ("4,2", 4), ("", None), ("0", None), ("-1", None), ("many", None)]
)
def test_threads_are_what_the_user_set_or_a_share_of_the_cores(on, monkeypatch, text, threads):
    on(FakeMachine())
    monkeypatch.setenv("OMP_NUM_THREADS", text)
    share = max(1, len(os.sched_getaffinity(0)) // 2)
    setup = _setups(resolve_spec(num_processes=2))[1]
    assert setup.num_threads == (threads or share)
    assert setup.environ["OMP_NUM_THREADS"] == (text if threads else str(share))


# --- seen from a launch ----------------------------------------------------------------------------


def _world_size():
    return int(os.environ["WORLD_SIZE"])


@pytest.mark.parametrize("cpu", [False, True])
def test_B012_B014_hosted_notebooks_run_what_was_asked_for(monkeypatch, cpu):
    _hosted(monkeypatch)
    assert notebook_launcher(_world_size, num_processes=2, cpu=cpu, returns="all") == [2, 2]


def test_B013_no_argument_runs_once_and_says_on_what(on, monkeypatch, capsys):
    _hosted(monkeypatch)
    on(FakeMachine())
    assert notebook_launcher(_world_size) == 1
    assert capsys.readouterr().out == "nbaccel: 1 process on cpu\n"


def test_the_spec_in_the_worker_is_the_one_that_was_announced(on, capsys):
    on(FakeMachine(MPS_BUILD, torch_units=units(1)))
    spec = notebook_launcher(active_spec)
    assert (spec.device_type, spec.devices) == ("mps", (0,))
    assert capsys.readouterr().out == "nbaccel: 1 process on mps\n"


def test_B058_nothing_was_started(four_gpus, monkeypatch):
    def forbidden(*_args, **_kwargs):
        raise AssertionError("a worker group was made")

    monkeypatch.setattr(launcher, "WorkerGroup", forbidden)
    monkeypatch.setattr(zygote_client, "current_zygote", forbidden)
    with pytest.raises(ValueError, match="num_processes=5, but 4 cuda devices are visible"):
        notebook_launcher(_world_size, num_processes=5)


def test_labels_of_the_user_s_own(capsys):
    def say():
        print("hello")

    template = "<${role_name} ${rank}/$local_rank $$> "
    notebook_launcher(say, num_processes=2, cpu=True, log_line_prefix_template=template)
    lines = sorted(capsys.readouterr().out.splitlines()[1:])
    assert lines == ["<default 0/0 $> hello", "<default 1/1 $> hello"]
    notebook_launcher(say, cpu=True, log_line_prefix_template="one: ")
    assert capsys.readouterr().out.splitlines()[1:] == ["one: hello"]
