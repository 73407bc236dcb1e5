"""What of the XLA device can be told without torch_xla; the rest is in ``tests/xla``."""

from __future__ import annotations

import sys
import threading
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from nbaccel.runtime.data.filling import filled_up
from nbaccel.runtime.devices import detect_device, device_named
from nbaccel.runtime.devices.xla import runtime_is_live, unused_tpu
from nbaccel.runtime.environment import ProcessEnvironment, take_place
from nbaccel.runtime.modules import move_module
from nbaccel.runtime.optimizer import rebind
from nbaccel.runtime.precision import choose_precision
from nbaccel.runtime.rank_local import RankLocal


def _pretend_torch_xla(monkeypatch, *, live: bool):
    """A module that answers whether its runtime is up, and fails whatever else is asked of it."""
    binding = SimpleNamespace(_xla_runtime_is_initialized=lambda: live)
    monkeypatch.setitem(sys.modules, "torch_xla", SimpleNamespace(_XLAC=binding))


def test_imported_torch_xla_is_no_device_until_its_runtime_is_up(monkeypatch):
    assert not runtime_is_live()
    _pretend_torch_xla(monkeypatch, live=False)
    assert not runtime_is_live()
    assert device_named("xla").count() == 0
    assert detect_device().type != "xla"
    _pretend_torch_xla(monkeypatch, live=True)
    assert runtime_is_live()


def test_B171_outside_of_a_launch_the_tpu_is_named_and_left_alone(monkeypatch):
    from nbaccel import Accelerator

    _pretend_torch_xla(monkeypatch, live=False)
    monkeypatch.setenv("PJRT_DEVICE", "TPU")
    with pytest.warns(UserWarning, match=r"a TPU is here \(PJRT_DEVICE=TPU\).*notebook_launcher"):
        accelerator = Accelerator()
    assert accelerator.device.type == "cpu"


def test_a_cpu_that_was_asked_for_needs_no_word(monkeypatch, recwarn):
    from nbaccel import Accelerator

    monkeypatch.setenv("PJRT_DEVICE", "TPU")
    Accelerator(cpu=True)
    assert not [w for w in recwarn if "TPU" in str(w.message)]


def test_B172_a_tpu_shows_on_the_bus_alone(tmp_path, monkeypatch):
    monkeypatch.delenv("PJRT_DEVICE", raising=False)
    slot = tmp_path / "0000:00:04.0"
    slot.mkdir()
    assert unused_tpu(str(tmp_path)) is None
    (slot / "vendor").write_text("0x1ae0\n")
    # The network card of such machines.
    (slot / "device").write_text("0x0042\n")
    assert unused_tpu(str(tmp_path)) is None
    (slot / "device").write_text("0x0063\n")
    assert unused_tpu(str(tmp_path)) == str(slot)


def test_fp16_on_a_tpu_is_refused_in_favour_of_bf16():
    with pytest.raises(ValueError, match="'fp16' isn't supported by this xla device; use bf16"):
        choose_precision("fp16", device_named("xla"))
    assert choose_precision("bf16", device_named("xla")).dtype is torch.bfloat16


def test_a_short_batch_is_filled_with_its_own_samples_behind_the_real_ones():
    x, y = torch.arange(6).view(3, 2), torch.tensor([7, 8, 9])
    (filled, labels, names, scale), real = filled_up((x, y, ["a", "b", "c"], torch.tensor(2.0)), 8)
    assert real == 3
    assert labels.tolist() == [7, 8, 9, 7, 8, 9, 7, 8]
    assert filled.shape == (8, 2)
    assert filled[3].tolist() == x[0].tolist()
    assert names == ["a", "b", "c", "a", "b", "c", "a", "b"]
    assert scale.ndim == 0


@pytest.mark.parametrize("batch", [torch.zeros(4, 2), {"x": torch.zeros(5)}, "no samples", None])
def test_batches_that_are_full_or_of_unknown_length_stay_as_they_are(batch):
    filled, real = filled_up(batch, 4)
    assert filled is batch
    assert real is None


def test_ranks_that_are_threads_have_values_of_their_own():
    value = RankLocal(list)
    value.get().append("process")
    seen = {}

    def rank(number):
        take_place(ProcessEnvironment(number, number, 2, 2))
        value.get().append(number)
        seen[number] = list(value.get())

    threads = [threading.Thread(target=rank, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == {0: [0], 1: [1]}
    # A thread that is no rank of its own belongs to the process.
    assert value.get() == ["process"]


class _NewParameters(nn.Module):
    """Moves as modules move to devices whose tensors can't take another's place: parameters are made anew."""

    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)
        self.decoder.weight = self.encoder.weight
        self.frozen = nn.Parameter(torch.ones(2), requires_grad=False)

    def to(self, device):
        for module in self.modules():
            for name, parameter in list(module.named_parameters(recurse=False)):
                setattr(module, name, nn.Parameter(parameter.detach().clone(), parameter.requires_grad))
        return self


def test_a_move_to_new_parameters_keeps_ties_and_the_optimizer():
    model = _NewParameters()
    old = model.encoder.weight
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    old.sum().backward()
    optimizer.step()
    momentum = optimizer.state[old]["momentum_buffer"]
    moved = move_module(model, torch.device("cpu"))
    assert model.encoder.weight is model.decoder.weight is moved[old]
    assert len(moved) == 2
    rebind(optimizer, moved.get)
    assert [id(p) for p in optimizer.param_groups[0]["params"]] == [id(p) for p in model.parameters()]
    assert optimizer.state[model.encoder.weight]["momentum_buffer"] is momentum
    assert old not in optimizer.state
    before = model.encoder.weight.detach().clone()
    model.decoder.weight.sum().backward()
    optimizer.step()
    assert not torch.equal(model.encoder.weight, before)


def test_a_move_that_keeps_parameters_changes_nothing():
    model = nn.Linear(2, 2)
    assert move_module(model, torch.device("cpu")) == {}
