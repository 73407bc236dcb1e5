"""Checks that need a real CUDA machine, with figures. Run by hand, in less than three minutes::

    python tests/gpu/check_gpu.py              all GPUs that are visible
    python tests/gpu/check_gpu.py --dry-run    the same steps on two CPU processes, to try the script itself

Ends with 1 when a check fails; the others are run all the same. The order matters: what must not touch
CUDA comes first, and from the second check on CUDA is live in this process, as in a used notebook.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from nbaccel import Accelerator, notebook_launcher
from nbaccel.launch import devices
from nbaccel.launch.devices.probe import ask_torch

MIB = 1 << 20
HELD_BYTES = 1024 * MIB
"""What each worker takes in the memory checks."""

TOLERANCE_BYTES = 64 * MIB
"""Other users of the machine and the driver itself move by less."""

FREED_WITHIN_S = 5.0
WAIT_S = 60.0


@dataclass(frozen=True)
class Bench:
    """What the checks run on."""

    device_type: str
    """``cuda``, or ``cpu`` in a dry run."""
    count: int
    """Processes of a launch."""

    def launch(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        return notebook_launcher(
            function,
            args,
            **{"num_processes": self.count, "cpu": self.is_dry, "output": "main", **options},
        )

    @property
    def is_dry(self) -> bool:
        return self.device_type == "cpu"

    def memory_used(self) -> int:
        """Bytes in use on all devices together; 0 in a dry run."""
        return sum(used.memory_used for used in devices.usage() if used is not None)


def say(text: str) -> None:
    sys.stdout.write(f"    {text}\n")
    sys.stdout.flush()


@contextmanager
def timed(what: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    say(f"{what}: {(time.perf_counter() - start) * 1000:.0f} ms")


# --- what workers run ------------------------------------------------------------------------------


def current_device() -> torch.device:
    if torch.cuda.is_available() and Accelerator().device.type == "cuda":
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def multiply(size: int) -> tuple[str, float]:
    device = current_device()
    ones = torch.ones(size, size, device=device)
    return str(device), float((ones @ ones)[0, 0])


def train_in_half(steps: int) -> dict[str, Any]:
    accelerator = Accelerator()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    model, optimizer = accelerator.prepare(model, optimizer)
    dtypes: set[str] = set()
    inner = accelerator.unwrap_model(model)[0]
    inner.register_forward_hook(lambda _module, _inputs, output: dtypes.add(str(output.dtype)))
    features = torch.randn(256, 64, device=accelerator.device)
    target = features.sum(dim=1, keepdim=True) / 8
    losses = []
    start = time.perf_counter()
    for _ in range(steps):
        with accelerator.autocast():
            output = model(features)
        loss = nn.functional.mse_loss(output.float(), target)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    seconds = time.perf_counter() - start
    return {
        "precision": accelerator.mixed_precision,
        "dtypes": dtypes,
        "scale": accelerator.scaler.get_scale() if accelerator.scaler is not None else None,
        "device": str(accelerator.device),
        "first": losses[0],
        "last": losses[-1],
        "steps_a_second": steps / seconds,
    }


def hold_memory(folder: str, device_type: str, then: str) -> None:
    """Take memory, say so, then fail or wait for an interrupt."""
    held = torch.ones(HELD_BYTES // 4 if device_type == "cuda" else 1024, device=current_device())
    float(held.sum())  # waits until the device has really written it
    Path(folder, os.environ["RANK"]).touch()
    if then == "fail" and os.environ["RANK"] == "0":
        wait_for_files(folder, int(os.environ["WORLD_SIZE"]))
        raise ArithmeticError("as planned")
    time.sleep(WAIT_S)


def all_reduce() -> tuple[str, float]:
    accelerator = Accelerator()
    total = accelerator.reduce(torch.ones(4, device=accelerator.device), reduction="sum")
    return str(torch.distributed.get_backend()), float(total[0])


def visible_names() -> tuple[str | None, int]:
    return os.environ.get("CUDA_VISIBLE_DEVICES"), torch.cuda.device_count()


def wait_for_files(folder: str, count: int) -> None:
    deadline = time.monotonic() + WAIT_S
    while len(os.listdir(folder)) < count:
        if time.monotonic() > deadline:
            raise TimeoutError(f"not {count} workers held memory within {WAIT_S:.0f} s")
        time.sleep(0.02)


# --- the checks ------------------------------------------------------------------------------------


def check_discovery_touches_nothing(bench: Bench) -> None:
    with timed("devices found"):
        found = devices.visible_accelerators()
    with timed("how busy they are"):
        usage = devices.usage()
    for unit, used in zip(found.units, usage, strict=True):
        assert used is not None, f"no usage of device {unit.index}"
        load = "?" if used.load is None else f"{used.load:.0%}"
        say(
            f"{found.platform}:{unit.index} {unit.name}, {used.memory_used // MIB} of "
            f"{used.memory_total // MIB} MiB in use, load {load}"
        )
    assert not torch.cuda.is_initialized(), "finding devices has opened one"
    if bench.is_dry:
        return
    with timed("the same, asked of torch in a process of its own"):
        answer = ask_torch("cuda", os.environ, want_memory=False)
    mine = [(unit.index, unit.name) for unit in found.units]
    torchs = [(unit.index, unit.name) for unit in answer.units]
    assert mine == torchs, f"counted {mine}, torch counts {torchs}"
    for unit, theirs in zip(found.units, answer.units, strict=True):
        assert not theirs.uuid or theirs.uuid in unit.uuid, f"{unit.uuid} is {theirs.uuid} to torch"
    assert not torch.cuda.is_initialized()


def check_launch_after_the_device_was_used(bench: Bench) -> None:
    here = torch.ones(2048, 2048, device=bench.device_type)
    assert float((here @ here)[0, 0]) == 2048.0
    assert bench.is_dry or torch.cuda.is_initialized()
    for which in ("first launch", "second launch"):
        with timed(which):
            results = bench.launch(multiply, 2048, returns="all")
        assert [value for _, value in results] == [2048.0] * bench.count, results
    expected = ["cpu"] * bench.count if bench.is_dry else [f"cuda:{rank}" for rank in range(bench.count)]
    assert [device for device, _ in results] == expected, results
    assert float((here @ here)[0, 0]) == 2048.0, "this process can't use its device any more"


def check_captured_tensors_land_on_the_own_device(bench: Bench) -> None:
    numbers = torch.arange(64 * MIB, dtype=torch.float32, device=bench.device_type)
    half = torch.full((3,), 0.5, dtype=torch.bfloat16, device=bench.device_type)

    def look() -> tuple[str, str, float, str, torch.Tensor]:
        own = current_device()
        return str(own), str(numbers.device), float(numbers[12345]), str(half.dtype), half * 2

    with timed(f"launch with {numbers.nbytes // MIB} MiB captured"):
        results = bench.launch(look, returns="all")
    for own, where, value, dtype, doubled in results:
        assert where == own, f"a captured tensor lies on {where}, the worker computes on {own}"
        assert value == 12345.0
        assert dtype == "torch.bfloat16"
        assert doubled.device.type == "cpu", "results come home on the CPU"
        assert torch.equal(doubled, torch.ones(3, dtype=torch.bfloat16))


def check_half_precision(bench: Bench) -> None:
    result = bench.launch(train_in_half, 20 if bench.is_dry else 200, mixed_precision="fp16")
    say(", ".join(f"{name} {value}" for name, value in result.items()))
    assert result["precision"] == "fp16"
    assert result["dtypes"] == {"torch.float16"}, "the layers did not compute in fp16"
    assert result["scale"], "there is no gradient scaler"
    assert result["last"] < result["first"] * (1.0 if bench.is_dry else 0.5), "the loss did not fall"


def check_memory_is_free_after_an_interrupt(bench: Bench) -> None:
    before = bench.memory_used()
    interrupted: list[tuple[int, float]] = []
    launch_is_over = threading.Event()

    def interrupt_when_all_hold(folder: str) -> None:
        while len(os.listdir(folder)) < bench.count:
            if launch_is_over.wait(0.02):
                return
        interrupted.append((bench.memory_used(), time.monotonic()))
        os.kill(os.getpid(), signal.SIGINT)

    with tempfile.TemporaryDirectory() as folder:
        thread = threading.Thread(target=interrupt_when_all_hold, args=(folder,))
        thread.start()
        try:
            bench.launch(hold_memory, folder, bench.device_type, "wait", timeout=WAIT_S)
        except KeyboardInterrupt:
            over = time.monotonic()
        else:
            raise AssertionError("the interrupt was lost")
        finally:
            launch_is_over.set()
            thread.join()
    ((peak, at),) = interrupted
    say(f"control is back after {(over - at) * 1000:.0f} ms")
    report_freed(bench, before, peak)


def check_memory_is_free_after_a_failure(bench: Bench) -> None:
    before = bench.memory_used()
    with tempfile.TemporaryDirectory() as folder:
        failure = failure_of(lambda: bench.launch(hold_memory, folder, bench.device_type, "fail"))
    assert isinstance(failure, ArithmeticError), f"the failure was lost: {failure!r}"
    assert failure.rank == 0  # type: ignore[attr-defined]
    report_freed(bench, before, None)


def failure_of(call: Callable[[], object]) -> Exception | None:
    try:
        call()
    except Exception as error:
        return error
    return None


def report_freed(bench: Bench, before: int, peak: int | None) -> None:
    start = time.monotonic()
    while (after := bench.memory_used()) > before + TOLERANCE_BYTES:
        assert time.monotonic() - start < FREED_WITHIN_S, f"{(after - before) // MIB} MiB are still held"
        time.sleep(0.02)
    held = "" if peak is None else f", {peak // MIB} MiB while held"
    say(f"memory in use: {before // MIB} MiB before{held}, {after // MIB} MiB after")
    if peak is not None and not bench.is_dry:
        assert peak - before >= HELD_BYTES, "the workers' memory was not seen at all"


def check_the_last_device_alone(bench: Bench) -> None:
    if bench.is_dry:
        return
    last = bench.count - 1
    name, count = bench.launch(visible_names, num_processes=None, devices=[last])
    assert count == 1, f"{count} devices are visible to the worker"
    say(f"devices=[{last}]: CUDA_VISIBLE_DEVICES={name}")
    device, _ = bench.launch(multiply, 64, num_processes=1, devices="idle")
    assert device == "cuda:0"


def check_too_many_processes(bench: Bench) -> None:
    if bench.is_dry:
        return
    refusal = failure_of(lambda: bench.launch(multiply, 64, num_processes=bench.count + 1))
    say(str(refusal))
    assert isinstance(refusal, ValueError), f"not refused: {refusal!r}"
    assert f"num_processes={bench.count + 1}, but {bench.count} " in str(refusal)


def check_collectives(bench: Bench) -> None:
    if bench.count == 1:
        say("skipped: one device")
        return
    backend, total = bench.launch(all_reduce)
    say(f"backend {backend}")
    assert total == bench.count


CHECKS = (
    check_discovery_touches_nothing,
    check_launch_after_the_device_was_used,
    check_captured_tensors_land_on_the_own_device,
    check_half_precision,
    check_memory_is_free_after_an_interrupt,
    check_memory_is_free_after_a_failure,
    check_the_last_device_alone,
    check_too_many_processes,
    check_collectives,
)


def main() -> int:
    parser = argparse.ArgumentParser(description="Check nbaccel on the GPUs of this machine.")
    parser.add_argument("--dry-run", action="store_true", help="run the steps on two CPU processes")
    dry = parser.parse_args().dry_run
    found = devices.visible_accelerators()
    if not dry and found.device_type != "cuda":
        sys.stderr.write(f"no CUDA device: {found.reason or found.platform}\n")
        return 2
    bench = Bench("cpu", 2) if dry else Bench("cuda", found.count)
    failed = 0
    start = time.perf_counter()
    for check in CHECKS:
        name = check.__name__.removeprefix("check_").replace("_", " ")
        sys.stdout.write(f"{name}\n")
        began = time.perf_counter()
        try:
            check(bench)
        except Exception:
            failed += 1
            traceback.print_exc(file=sys.stdout)
            say("FAILED")
        else:
            say(f"ok, {time.perf_counter() - began:.1f} s")
    sys.stdout.write(f"{len(CHECKS) - failed} of {len(CHECKS)} ok, {time.perf_counter() - start:.0f} s\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
