"""``notebook_launcher`` and cells on the real torch_xla, with its CPU client.

The same way as on a TPU from the choice of devices to the result, except that one process has all
devices, and that several of them need the shim that only tests have.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import time
from importlib import metadata
from importlib.util import find_spec

import pytest
import torch

from nbaccel import notebook_launcher
from nbaccel.config import LaunchSpec
from nbaccel.errors import LaunchError
from nbaccel.launch.devices import tpu_types
from nbaccel.launch.group import xla
from nbaccel.launch.progress import progress
from nbaccel.launch.session import Session
from tests.launch.fake_tpu import V3, V4, V5E, V5P, V6E, V7X

HAS_XLA = find_spec("torch_xla") is not None
pytestmark = pytest.mark.skipif(not HAS_XLA, reason="needs torch_xla")


@pytest.fixture
def devices(monkeypatch):
    """Let torch_xla's CPU client have as many devices."""

    def arrange(number: int) -> None:
        monkeypatch.setenv("PJRT_DEVICE", "CPU")
        monkeypatch.setenv("CPU_NUM_DEVICES", str(number))

    return arrange


def _rank() -> int:
    from nbaccel.runtime.environment import ProcessEnvironment

    return ProcessEnvironment.detect().rank


def _make_reliable() -> None:
    from tests.xla import cpu_replicas

    cpu_replicas.install()


def test_one_core_computes_and_its_tensor_comes_home(devices, capsys):
    devices(1)

    def train():
        import torch_xla
        import torch_xla.runtime as xr

        weight = torch.ones(3, requires_grad=True, device=torch_xla.device())
        (weight * 2).sum().backward()
        print("rank", xr.global_ordinal(), "of", xr.world_size())
        return weight.grad, str(torch_xla.device()), os.environ["RANK"]

    with pytest.raises(ValueError, match="use mixed_precision='bf16'"):
        notebook_launcher(train, mixed_precision="fp16")
    gradient, device, rank = notebook_launcher(train, mixed_precision="bf16")
    assert gradient.device.type == "cpu"
    assert gradient.tolist() == [2.0, 2.0, 2.0]
    assert (device, rank) == ("xla:0", "0")
    assert capsys.readouterr().out.splitlines() == [
        "nbaccel: 1 process on xla cpu client, bf16",
        "rank 0 of 1",
    ]


def test_several_cores_reduce_and_gather(devices, capsys):
    number = 4
    devices(number)

    def train():
        _make_reliable()
        import torch_xla
        import torch_xla.core.xla_model as xm
        import torch_xla.runtime as xr

        mine = torch.full((2,), float(_rank() + 1)).to(torch_xla.device())
        torch_xla.sync()
        total = xm.all_reduce(xm.REDUCE_SUM, mine.clone())
        torch_xla.sync()
        gathered = xm.all_gather(mine, pin_layout=False)
        torch_xla.sync()
        print("done")
        return _rank(), xr.global_ordinal(), xr.world_size(), total.cpu(), gathered.cpu(), os.getpid()

    values = notebook_launcher(train, returns="all")
    assert [value[:3] for value in values] == [(rank, rank, number) for rank in range(number)]
    for *_, total, gathered, _pid in values:
        assert total.tolist() == [number * (number + 1) / 2] * 2
        assert gathered.tolist() == [float(rank + 1) for rank in range(number) for _ in range(2)]
    assert len({value[-1] for value in values}) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"nbaccel: 1 process of {number} threads on xla cpu client"
    assert sorted(lines[1:]) == [f"[rank {rank}] done" for rank in range(number)]


def _train(makes_reliable: bool) -> tuple[str, str, int, list[float]]:
    """Some steps of data-parallel training, as a user writes them."""
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    from nbaccel import Accelerator

    if makes_reliable:
        _make_reliable()
    accelerator = Accelerator()
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(32, 4, generator=generator)
    model = nn.Linear(4, 1)
    with torch.no_grad():
        model.weight.copy_(torch.full((1, 4), 0.1 * (accelerator.process_index + 1)))  # rank 0's goes to all
        model.bias.zero_()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=4)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for inputs, targets in loader:
        loss = ((model(inputs) - targets) ** 2).mean()
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    weights = [p.detach().cpu().flatten() for p in accelerator.unwrap_model(model).parameters()]
    kind = str(accelerator.distributed_type)
    return kind, accelerator.device.type, accelerator.num_processes, torch.cat(weights).tolist()


def test_a_training_loop_gives_what_it_gives_on_two_processes_of_the_cpu(devices):
    devices(2)
    on_xla = notebook_launcher(_train, (True,), returns="all")
    on_cpu = notebook_launcher(_train, (False,), 2, cpu=True, returns="all")
    assert [value[:3] for value in on_xla] == [("DistributedType.XLA", "xla", 2)] * 2
    for (*_, ours), (*_, theirs) in zip(on_xla, on_cpu, strict=True):
        torch.testing.assert_close(torch.tensor(ours), torch.tensor(theirs), rtol=1e-5, atol=1e-6)


class Pictures:
    """In place of the panel: what it would show."""

    def __init__(self) -> None:
        self.last = None

    def make_view(self, *_: object) -> Pictures:
        return self

    def update(self, picture) -> None:
        self.last = picture

    end = update


def test_the_panel_counts_each_rank_of_a_process_by_itself(devices, monkeypatch):
    devices(2)
    pictures = Pictures()
    monkeypatch.setitem(sys.modules, "pictures", pictures)
    monkeypatch.setattr(progress, "VIEWS", "pictures")

    def train():
        _make_reliable()
        from torch.utils.data import DataLoader

        from nbaccel import Accelerator

        accelerator = Accelerator()
        model = torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loader = DataLoader(torch.ones(12, 1), batch_size=2)
        model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
        for _ in range(2):
            for batch in loader:
                accelerator.backward(model(batch).sum())
                optimizer.step()
                accelerator.log({f"of rank {accelerator.process_index}": 1.0})

    notebook_launcher(train, progress=True)
    assert [(row.steps, row.epoch, row.batch, row.length) for row in pictures.last.rows] == [(6, 1, 3, 3)] * 2
    assert [(curve.name, curve.count) for curve in pictures.last.curves] == [
        ("of rank 0", 6),
        ("of rank 1", 6),
    ]


def test_B174_one_of_several_cores_is_a_world_of_its_own(devices):
    devices(4)

    def look():
        import torch_xla.runtime as xr

        return xr.world_size(), xr.addressable_device_count(), _rank()

    assert notebook_launcher(look, num_processes=1) == (1, 1, 0)
    with pytest.raises(ValueError, match="it can be 1 or 4"):
        notebook_launcher(look, num_processes=2)


def test_a_rank_that_fails_while_another_is_in_a_collective(devices):
    """torch_xla's own launcher loses the traceback and takes a quarter of a minute."""
    devices(2)

    def fail():
        _make_reliable()
        import torch_xla
        import torch_xla.core.xla_model as xm

        if _rank() == 1:
            raise ZeroDivisionError("boom")
        xm.all_reduce(xm.REDUCE_SUM, torch.ones(2).to(torch_xla.device()))
        torch_xla.sync()

    began = time.monotonic()
    with pytest.raises(ZeroDivisionError, match="boom") as caught:
        notebook_launcher(fail)
    assert caught.value.rank == 1
    assert time.monotonic() - began < 60


def test_cells_keep_tensors_on_the_device(devices):
    devices(1)
    spec = LaunchSpec(1, device_type="xla", devices=(0,), hardware="xla cpu client")
    session = Session(spec)

    def begin():
        sys.modules["__main__"].kept = torch.ones(2, device="xla")

    def go_on():
        names = sys.modules["__main__"]
        names.kept = names.kept + 1
        return names.kept

    try:
        session.run(begin)
        with pytest.raises(KeyError):
            session.run(lambda: {}["none"])
        session.run(go_on)
        [value] = session.run(go_on)
        assert (value.device.type, value.tolist()) == ("cpu", [3.0, 3.0])
        assert session.pull("kept").tolist() == [3.0, 3.0]
    finally:
        session.stop()


def test_cells_on_several_threads_are_refused(devices):
    devices(2)
    spec = LaunchSpec(2, device_type="xla", devices=(0, 1), threads_per_process=2, hardware="xla cpu client")
    with pytest.raises(LaunchError, match="use notebook_launcher"):
        Session(spec).start()


_IN_A_KERNEL = """
import torch, torch_xla, torch_xla.core.xla_model as xm
from nbaccel import Accelerator, notebook_launcher
print(Accelerator().device)
torch.ones(2, requires_grad=True).sum().backward()   # a fork of this process could not run one on XLA
big = torch.randn(600, 600) @ torch.randn(600, 600)  # nor use OpenMP

def train():
    weight = torch.ones(2, requires_grad=True, device="xla")
    weight.sum().backward()
    return weight.grad.tolist()

print(notebook_launcher(train))
print("runs:", torch_xla._XLAC._xla_runtime_is_initialized())
print(notebook_launcher(train))
torch.ones(1, device="xla")
try:
    notebook_launcher(train)
except RuntimeError as error:
    print(type(error).__name__, error)
"""


@pytest.mark.timeout(300)
def test_B173_after_an_import_and_a_backward_and_not_when_the_kernel_holds_the_device(devices):
    devices(1)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _IN_A_KERNEL],
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )
    lines = done.stdout.splitlines()
    assert [line for line in lines if not line.startswith("nbaccel:")][:4] == [
        "cpu",  # it looks, and doesn't start the runtime
        "[1.0, 1.0]",
        "runs: False",
        "[1.0, 1.0]",
    ]
    assert lines[-1].startswith("LaunchError this kernel holds the xla cpu client already")
    assert "restart the kernel" in lines[-1]


# --- what processes of a TPU are told, against torch_xla's own rules ---------------------------------

_THEIRS = """
import json, os, sys
os.environ["PJRT_DEVICE"] = "TPU"
from torch_xla._internal import tpu
plain = dict(os.environ)
answers = []
for chips, environ in json.loads(sys.argv[1]):
    os.environ.clear()
    os.environ.update(plain, TPU_SKIP_MDS_QUERY="1", TPU_WORKER_ID="0", TPU_WORKER_HOSTNAMES="localhost")
    os.environ.update(environ)
    before = set(os.environ)
    tpu.num_available_chips = lambda: chips
    processes = tpu.num_local_processes()
    cores = tpu.num_logical_cores_per_chip()
    if processes == 1:
        tpu.configure_one_chip_topology()
    else:
        tpu.configure_topology(processes - 1, processes)
    answers.append([processes, cores, {name: os.environ[name] for name in set(os.environ) - before}])
print(json.dumps(answers))
"""

TYPES = [
    (V3, 4, "v2-8", "1,1,1", "2,2,1"),
    (V3, 4, "v3-8", "1,1,1", "2,2,1"),
    (V4, 4, "v4-8", "1,1,1", "2,2,1"),
    (V5P, 4, "v5p-8", "1,1,1", "2,2,1"),
    (V5E, 1, "v5litepod-1", "1,1,1", "1,1,1"),
    (V5E, 4, "v5litepod-4", "1,1,1", "2,2,1"),
    (V5E, 8, "v5litepod-8", "1,1,1", "2,4,1"),
    (V6E, 1, "v6e-1", "1,1,1", "1,1,1"),
    (V6E, 4, "v6e-4", "1,1,1", "2,2,1"),
    (V6E, 8, "v6e-8", "1,1,1", "2,4,1"),
]
if HAS_XLA and not metadata.version("torch_xla").startswith("2.8."):
    TYPES.append((V7X, 4, "tpu7x-8", "1,1,1", "2,2,1"))  # 2.8 doesn't know it
"""Chip, how many, the type as the host's environment names it, and how processes and chips lie there."""


def test_processes_and_their_environment_are_those_of_torch_xlas_own_rules():
    told = [
        (
            chips,
            {"TPU_ACCELERATOR_TYPE": name, "TPU_HOST_BOUNDS": hosts, "TPU_CHIPS_PER_HOST_BOUNDS": bounds},
        )
        for _, chips, name, hosts, bounds in TYPES
    ]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(_THEIRS), json.dumps(told)],
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    for (chip, chips, name, *_), (processes, cores, theirs) in zip(
        TYPES, json.loads(done.stdout.splitlines()[-1]), strict=True
    ):
        generation = tpu_types.generation_of_chip(chip)
        assert generation is not None
        assert (processes, cores) == (chips, generation.cores_per_chip), name
        spec = LaunchSpec(
            chips * cores,
            device_type="xla",
            devices=tuple(range(chips * cores)),
            threads_per_process=cores,
            hardware=f"tpu {tpu_types.generation_named(name).type_name(chips)}",
        )
        ours, _unwanted = xla.environ_maker(spec, {"PJRT_DEVICE": "TPU"})(processes - 1)
        if processes > 1:
            _move_ports(theirs, int(ours["TPU_PROCESS_PORT"]), processes)
        assert {key: value for key, value in ours.items() if key in theirs} == theirs, name


def _move_ports(told: dict[str, str], port: int, processes: int) -> None:
    """As if torch_xla had begun with the ports that were free."""
    first = port - int(told["TPU_PROCESS_PORT"]) + xla.BASE_PORT
    told["TPU_PROCESS_PORT"] = str(port)
    told["TPU_PROCESS_ADDRESSES"] = ",".join(f"localhost:{first + number}" for number in range(processes))
