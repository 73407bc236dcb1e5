"""fp8 through torchao: where it is refused, what it converts, and training with it emulated on the CPU."""

from __future__ import annotations

import copy
import pickle
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from nbaccel.accelerator import Accelerator
from nbaccel.runtime.devices import device_named
from nbaccel.runtime.precision import choose_precision
from nbaccel.runtime.precision_fp8 import AORecipeKwargs, check_fp8, find_first_last_linear_layers
from tests.runtime.ranks import run_ranks

ao = pytest.mark.skipif(find_spec("torchao") is None, reason="torchao isn't installed")


def emulated(**options: Any) -> AORecipeKwargs:
    from torchao.float8 import Float8LinearConfig

    return AORecipeKwargs(config=Float8LinearConfig(emulate=True), **options)


def small() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 24), nn.Linear(24, 16)
    )


def converted(model: nn.Module) -> list[str]:
    return [name for name, module in model.named_modules() if type(module).__name__ == "Float8Linear"]


def test_B113_fp8_where_the_hardware_lacks_it_names_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"fp8 units.*the device here is cpu; use bf16"):
        Accelerator(cpu=True, mixed_precision="fp8")
    cuda = device_named("cuda")
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Tesla T4")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (7, 5))
    with pytest.raises(ValueError, match=r"Tesla T4 has compute capability 7\.5; use bf16"):
        choose_precision("fp8", cuda)
    for capability in ((8, 9), (9, 0), (12, 0)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda value=capability: value)
        assert cuda.lacks_fp8() is None
    monkeypatch.setattr(torch.version, "hip", "6.4")
    assert "AMD" in (cuda.lacks_fp8() or "")


def test_without_torchao_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nbaccel.runtime.precision_fp8.find_spec", lambda name: None)
    monkeypatch.setattr(type(device_named("cuda")), "lacks_fp8", lambda self: None)
    with pytest.raises(ValueError, match="pip install torchao"):
        check_fp8(device_named("cuda"), AORecipeKwargs())


def test_options_that_contradict_a_config_are_refused() -> None:
    with pytest.raises(ValueError, match="pad_inner_dim and config"):
        AORecipeKwargs(config=object(), pad_inner_dim=True)


@ao
def test_the_recipe_reaches_torchao() -> None:
    assert AORecipeKwargs().linear_config().pad_inner_dim
    assert not AORecipeKwargs(pad_inner_dim=False).linear_config().pad_inner_dim
    assert AORecipeKwargs(enable_fsdp_float8_all_gather=True).linear_config().enable_fsdp_float8_all_gather


@ao
def test_inner_layers_of_the_right_sizes_are_converted_and_keep_their_parameters() -> None:
    accelerator = Accelerator(cpu=True, mixed_precision="fp8", kwargs_handlers=[emulated()])
    assert (accelerator.mixed_precision, accelerator.fp8_backend) == ("fp8", "AO")
    model = small()
    before = list(model.parameters())
    names = list(model.state_dict())
    assert find_first_last_linear_layers(model) == ("0", "5")
    prepared = accelerator.prepare(model)
    assert converted(prepared) == ["2"]  # 4 has a side of 24
    assert all(p is q for p, q in zip(before, prepared.parameters(), strict=True))
    assert list(prepared.state_dict()) == names
    assert Accelerator(cpu=True).fp8_backend is None


@ao
def test_a_filter_of_ones_own_chooses_and_nothing_to_convert_is_said() -> None:
    recipe = emulated(module_filter_func=lambda module, name: name == "0")
    accelerator = Accelerator(cpu=True, mixed_precision="fp8", kwargs_handlers=[recipe])
    assert converted(accelerator.prepare(small())) == ["0"]
    accelerator = Accelerator(cpu=True, mixed_precision="fp8", kwargs_handlers=[emulated()])
    with pytest.warns(UserWarning, match="converts no layer"):
        accelerator.prepare(nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16)))


def _train(precision: str) -> tuple[list[float], list[str]]:
    torch.manual_seed(3)
    handlers = [emulated()] if precision == "fp8" else None
    accelerator = Accelerator(cpu=True, mixed_precision=precision, kwargs_handlers=handlers)
    model = small()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    model, optimizer = accelerator.prepare(model, optimizer)
    generator = torch.Generator().manual_seed(accelerator.process_index)
    x = torch.randn(64, 16, generator=generator)
    losses = []
    for _ in range(30):
        output = model(x)
        assert output.dtype is torch.float32
        loss = (output - x.flip(1)).pow(2).mean()
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(accelerator.reduce(loss.detach(), "mean").item())
    weights = accelerator.unwrap_model(model)[2].weight.detach()
    assert weights.dtype is torch.float32
    return [*losses, *accelerator.gather(weights[0, :2]).tolist()], converted(model)


@ao
def test_training_on_two_ranks_follows_full_precision() -> None:
    fp8, plain = run_ranks(_train, 2, "fp8"), run_ranks(_train, 2, "no")
    (losses, layers), (reference, none) = fp8[0], plain[0]
    assert (layers, none) == (["module.2"], [])
    assert fp8[0] == fp8[1]
    assert losses[-4:-2] == losses[-2:]  # the same weights on both ranks
    assert reference[29] < 0.7 * reference[0]
    assert losses[:30] == pytest.approx(reference[:30], rel=0.1)
    assert losses[:30] != reference[:30]


@ao
def test_converted_models_are_copied_pickled_saved_and_prepared_again(tmp_path: Path) -> None:
    accelerator = Accelerator(cpu=True, mixed_precision="fp8", kwargs_handlers=[emulated()])
    model = accelerator.prepare(small())
    x = torch.randn(16, 16)
    expected = model(x)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(other(x), expected)
    accelerator.save_state(str(tmp_path / "c"))
    with torch.no_grad():
        model[2].weight.zero_()
    accelerator.load_state(str(tmp_path / "c"))
    assert torch.equal(model(x), expected)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = Accelerator(cpu=True, mixed_precision="fp8", kwargs_handlers=[emulated()]).prepare(model)
    assert converted(again) == ["2"]
    assert torch.equal(again(x), expected)
