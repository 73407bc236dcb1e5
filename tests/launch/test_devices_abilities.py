"""Which precisions are offered for which hardware."""

from __future__ import annotations

import pytest

from nbaccel.launch.devices import Accelerators, Unit, abilities, discovery
from tests.launch.fake_machine import Gpu, cuda_machine

HOPPER, ADA, AMPERE, TURING = (9, 0), (8, 9), (8, 0), (7, 5)


def gpus(*capabilities: tuple[int, int] | None) -> Accelerators:
    units = (Unit(index, "GPU", f"{index}", each) for index, each in enumerate(capabilities))
    return Accelerators("cuda", "cuda", tuple(units))


@pytest.fixture
def has_torchao(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(abilities, "find_spec", lambda _name: object())


@pytest.mark.parametrize(
    ("capabilities", "lacks"),
    [
        ((HOPPER, ADA), set()),
        ((AMPERE,), {"fp8"}),
        ((HOPPER, AMPERE), {"fp8"}),
        ((TURING, HOPPER), {"fp8", "bf16"}),
        ((None,), set()),  # not known: a worker will tell
    ],
)
def test_nvidia_by_compute_capability(
    has_torchao: None, capabilities: tuple[tuple[int, int] | None, ...], lacks: set[str]
) -> None:
    reasons = abilities.lacking(gpus(*capabilities))
    assert set(reasons) == lacks
    assert all("cuda:" in why and "compute capability" in why for why in reasons.values())


def test_only_the_chosen_ones_count(has_torchao: None) -> None:
    assert abilities.lacking(gpus(HOPPER, TURING), (0,)) == {}
    assert set(abilities.lacking(gpus(HOPPER, TURING), (1,))) == {"bf16", "fp8"}


def test_fp8_without_torchao(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(abilities, "find_spec", lambda _name: None)
    assert "pip install torchao" in abilities.lacking(gpus(HOPPER))["fp8"]


@pytest.mark.parametrize(
    ("device_type", "platform"), [("cpu", "cpu"), ("xpu", "xpu"), ("mps", "mps"), ("cuda", "rocm")]
)
def test_other_hardware_has_half_precision_and_no_fp8(
    has_torchao: None, device_type: str, platform: str
) -> None:
    found = Accelerators(device_type, platform, (Unit(0, "x"),) if device_type != "cpu" else ())
    assert set(abilities.lacking(found)) == {"fp8"}


def test_the_driver_tells_the_capability() -> None:
    machine = cuda_machine(Gpu("GPU-0aaa", capability=HOPPER), Gpu("GPU-1aaa"))
    found = discovery.Discovery(machine).look({})
    assert [unit.capability for unit in found.units] == [HOPPER, None]
    assert machine.questions == [], "no process was started for it"
