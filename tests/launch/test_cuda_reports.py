"""Kernels in which CUDA is live before the launch, for whatever reason: nothing there is in the way.

No GPU is needed: what torch remembers of CUDA being live is set by hand, and the GPUs are those of the
fake NVML.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from nbaccel import notebook_launcher
from nbaccel.errors import LaunchError
from nbaccel.launch.devices import discovery
from nbaccel.launch.request.resolve import describe, resolve_spec
from tests.launch.fake_machine import cuda_machine, gpus

QUANTISATION = '''
"""A library that opens CUDA when it is imported."""
import torch
torch.cuda._initialized = True

def scale(x):
    return x * 3
'''


@pytest.fixture
def live_cuda(monkeypatch) -> None:
    """This process counts as one that has initialised CUDA."""
    monkeypatch.setattr(torch.cuda, "_initialized", True)
    monkeypatch.setattr(torch.cuda, "_is_in_bad_fork", lambda: False)
    assert torch.cuda.is_initialized()


@pytest.fixture
def no_question_to_cuda(monkeypatch) -> None:
    """Any of torch's questions that create a context in some of its releases is an error."""

    def forbidden(*_args, **_kwargs):
        raise AssertionError("this may create a CUDA context")

    for name in (
        "device_count",
        "is_available",
        "init",
        "_lazy_init",
        "get_device_properties",
        "mem_get_info",
    ):
        monkeypatch.setattr(torch.cuda, name, forbidden)


def _state():
    return torch.cuda.is_initialized(), float((torch.ones(600, 600) @ torch.ones(600, 600))[0, 0])


class Settings:
    """Arguments of a training that look at the device when they are made."""

    def __init__(self) -> None:
        torch.cuda._initialized = True  # what a probe leaves behind
        self.device = torch.device("cuda", 0)
        self.rate = 0.5


@pytest.mark.parametrize("folder", ["site-packages", "notebook"])
def test_B004_a_package_whose_import_opens_cuda(folder, tmp_path, monkeypatch):
    """Installed or next to the notebook: neither the kernel nor a process that is forked counts on it."""
    monkeypatch.setattr(torch.cuda, "_initialized", torch.cuda._initialized)
    (tmp_path / folder).mkdir()
    (tmp_path / folder / "nbt_quantisation.py").write_text(QUANTISATION)
    monkeypatch.syspath_prepend(str(tmp_path / folder))
    import nbt_quantisation

    assert torch.cuda.is_initialized()

    def in_use(x):
        return nbt_quantisation.scale(x)

    try:
        for _ in range(2):
            assert notebook_launcher(in_use, (2,), 2, cpu=True, returns="all", timeout=60) == [6, 6]
            # A launch that has nothing to do with it finds CUDA untouched.
            assert (
                notebook_launcher(_state, (), 2, cpu=True, returns="all", timeout=60) == [(False, 600.0)] * 2
            )
    finally:
        del sys.modules["nbt_quantisation"]


def test_B005_arguments_that_have_looked_at_the_device(monkeypatch):
    monkeypatch.setattr(torch.cuda, "_initialized", False)
    settings = Settings()
    assert torch.cuda.is_initialized()

    def train(settings):
        return torch.cuda.is_initialized(), str(settings.device), settings.rate

    values = notebook_launcher(train, (settings,), 2, cpu=True, returns="all", timeout=60)
    assert values == [(False, "cuda:0", 0.5)] * 2


@pytest.mark.usefixtures("live_cuda")
def test_B008_a_kernel_in_which_cuda_is_live_is_not_refused(capfd):
    assert notebook_launcher(_state, (), 2, cpu=True, returns="all", timeout=60) == [(False, 600.0)] * 2
    assert "CUDA" not in capfd.readouterr().err


@pytest.mark.usefixtures("live_cuda")
def test_B008_only_a_fork_that_was_asked_for_is_refused_with_reason_and_remedy():
    with pytest.raises(
        LaunchError, match=r"start_method='fork': .*uses CUDA already.*leave start_method out"
    ):
        notebook_launcher(_state, (), 2, cpu=True, start_method="fork")


@pytest.mark.usefixtures("no_question_to_cuda")
def test_B009_gpus_are_counted_without_a_context(monkeypatch):
    for name in discovery.visibility.DECIDING_NAMES:
        monkeypatch.delenv(name, raising=False)
    machine = cuda_machine(*gpus(2))
    monkeypatch.setattr(discovery, "_discovery", discovery.Discovery(machine))
    assert describe(resolve_spec()) == "2 processes on cuda:0-1"
    assert describe(resolve_spec(devices="idle")) == "2 processes on cuda:0-1"
    with pytest.raises(ValueError, match="num_processes=3, but 2 cuda devices are visible"):
        resolve_spec(num_processes=3)
    assert machine.questions == []
    assert machine.library.open == 0


def test_B009_where_nvml_is_missing_a_process_of_its_own_is_asked(monkeypatch, no_question_to_cuda):
    from nbaccel.launch.devices.probe import ask_torch

    # torch of this process can't be asked at all, and the answer comes all the same.
    assert ask_torch("cuda", {"CUDA_VISIBLE_DEVICES": ""}, want_memory=False).units == ()


def test_B009_no_module_of_ours_asks_torch_for_its_gpus_in_the_kernel():
    package = Path(discovery.__file__).parents[2]
    asking = {
        path.name
        for folder in ("launch", "magics", "widgets", "config")
        for path in (package / folder).rglob("*.py")
        if any(word in path.read_text() for word in ("cuda.is_available", "cuda.device_count", "cuda.init("))
    }
    assert not asking
