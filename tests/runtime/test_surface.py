"""The rest of the public surface: processes, states, hooks of training, helpers."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler

import nbaccel
from nbaccel import state as states
from nbaccel import utils
from nbaccel.accelerator import Accelerator
from nbaccel.data_loader import BatchSamplerShard, DataLoaderDispatcher, DataLoaderShard
from nbaccel.optimizer import AcceleratedOptimizer
from nbaccel.runtime.plugins import DistributedDataParallelKwargs, ProfileKwargs, TorchDynamoPlugin
from tests.runtime.ranks import run_ranks


def test_every_exported_name_is_there() -> None:
    for name in nbaccel.__all__:
        assert getattr(nbaccel, name) is not None


def test_B012_functions_on_some_processes_only() -> None:
    def on_rank() -> dict[str, Any]:
        accelerator = Accelerator(cpu=True)
        who = lambda: accelerator.process_index  # noqa: E731
        found: dict[str, Any] = {
            "main": accelerator.on_main_process(who)(),
            "last": accelerator.on_last_process(who)(),
            "local main": accelerator.on_local_main_process(who)(),
            "one": accelerator.on_process(process_index=1)(who)(),
            "local one": accelerator.on_local_process(who, local_process_index=1)(),
            "type": accelerator.distributed_type.value,
            "multi": accelerator.multi_device,
        }
        order = torch.zeros(1)
        with accelerator.main_process_first():
            order += accelerator.process_index
        with accelerator.local_main_process_first():
            pass
        with accelerator.split_between_processes(["a", "b", "c"]) as mine:
            found["mine"] = mine
        if accelerator.is_last_process:
            accelerator.set_trigger()
        found["trigger"] = [accelerator.check_trigger(), accelerator.check_trigger()]
        return found

    r0, r1 = run_ranks(on_rank, 2)
    assert (r0["main"], r1["main"], r0["last"], r1["last"]) == (0, None, None, 1)
    assert (r0["one"], r1["one"], r1["local one"], r0["local main"]) == (None, 1, 1, 0)
    assert (r0["mine"], r1["mine"]) == (["a", "b"], ["c"])
    assert r0["trigger"] == r1["trigger"] == [True, False]
    assert (r0["type"], r0["multi"]) == ("MULTI_CPU", False)


def test_several_accelerators_one_after_the_other() -> None:
    def on_rank() -> list[str]:
        found = []
        data = DataLoader(range(8), 2)
        model = nn.Linear(1, 1)
        for precision in ("no", "bf16", "fp16", "no"):
            accelerator = Accelerator(cpu=True, mixed_precision=precision)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            model, optimizer, data = accelerator.prepare(model, optimizer, data)
            assert len(data) == 2
            for x in data:
                accelerator.backward(model(x.float().unsqueeze(1)).sum())
                optimizer.step()
                optimizer.zero_grad()
            found.append(
                f"{accelerator.mixed_precision} {utils.extract_model_from_parallel(model) is not model}"
            )
        found.append(states.AcceleratorState().mixed_precision)
        nbaccel.reset()
        found.append(str(torch.distributed.is_initialized()))
        again = Accelerator(cpu=True)
        found.append(str(again.gather(torch.tensor([1])).tolist()))
        return found

    for found in run_ranks(on_rank, 2):
        assert found == ["no True", "bf16 True", "fp16 True", "no True", "no", "False", "[1, 1]"]


def test_states_are_views(monkeypatch: pytest.MonkeyPatch) -> None:
    nbaccel.reset()
    assert not states.is_initialized()
    state = states.PartialState(cpu=True)
    assert states.is_initialized()
    assert (state.num_processes, state.device.type, state.distributed_type.value) == (1, "cpu", "NO")
    assert "Process index: 0" in repr(state)
    accelerator = Accelerator(cpu=True, mixed_precision="bf16")
    assert states.AcceleratorState().mixed_precision == accelerator.state.mixed_precision == "bf16"
    states.AcceleratorState._reset_state()
    assert not states.is_initialized()


def test_no_sync_trigger_and_join() -> None:
    def on_rank() -> list[Any]:
        accelerator = Accelerator(cpu=True)
        rank = accelerator.process_index
        model = nn.Linear(1, 1, bias=False)
        nn.init.ones_(model.weight)
        model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=1.0))
        x = torch.ones(1, 1) * (rank + 1)
        found: list[Any] = []
        with accelerator.no_sync(model):
            accelerator.backward(model(x).sum())
        found.append(model.module.weight.grad.item())
        with accelerator.no_sync(model):
            first, second = model(x).sum(), model(x).sum()
            accelerator.backward(first)
            with accelerator.trigger_sync_in_backward(model):
                accelerator.backward(second)
        found.append(model.module.weight.grad.item())
        optimizer.zero_grad()
        loader = accelerator.prepare(DataLoader(range(3), 1))
        steps = 0
        with accelerator.join_uneven_inputs([model], even_batches=False):
            for _ in loader:
                accelerator.backward(model(x).sum())
                optimizer.zero_grad()
                steps += 1
        found.append(steps)
        assert len(loader) == 2
        return found

    r0, r1 = run_ranks(on_rank, 2)
    assert (r0[0], r1[0]) == (1.0, 2.0)
    assert r0[1] == r1[1] == 3 * 1.5
    assert (r0[2], r1[2]) == (2, 1)


# torch has the bf16 hook for NCCL and XCCL only.
@pytest.mark.parametrize("hook", ["fp16", "power_sgd", "batched_power_sgd"])
def test_communication_hooks(hook: str) -> None:
    def on_rank() -> float:
        options = DistributedDataParallelKwargs(
            comm_hook=utils.DDPCommunicationHookType(hook), gradient_as_bucket_view=True
        )
        accelerator = Accelerator(cpu=True, kwargs_handlers=[options])
        model = nn.Linear(4, 4, bias=False)
        model = accelerator.prepare(model)
        accelerator.backward(model(torch.ones(1, 4) * (accelerator.process_index + 1)).sum())
        return model.module.weight.grad.mean().item()

    for mean in run_ranks(on_rank, 2):
        assert mean == pytest.approx(1.5, rel=1e-2)
    with pytest.raises(ValueError, match="power_sgd"):
        DistributedDataParallelKwargs(comm_hook="zip").register_comm_hook(None)


def test_profile_writes_a_trace_a_rank(tmp_path: Path) -> None:
    handler = ProfileKwargs(activities=["cpu"], output_trace_dir=str(tmp_path))
    accelerator = Accelerator(cpu=True, kwargs_handlers=[handler])
    with accelerator.profile() as profiler:
        torch.ones(4, 4) @ torch.ones(4, 4)
    assert "aten::mm" in {event.key for event in profiler.key_averages()}
    assert json.loads((tmp_path / "profile_0.json").read_text())["traceEvents"]
    with pytest.raises(ValueError, match="cpu, cuda"):
        ProfileKwargs(activities=["gpu"]).build()


def test_compiled_models_train_are_unwrapped_and_saved(tmp_path: Path) -> None:
    accelerator = Accelerator(cpu=True, dynamo_plugin=TorchDynamoPlugin(backend="eager"))
    inner = nn.Linear(2, 1)
    model, optimizer = accelerator.prepare(inner, torch.optim.SGD(inner.parameters(), lr=0.1))
    assert utils.is_compiled_module(model)
    accelerator.backward(model(torch.ones(1, 2)).sum())
    optimizer.step()
    assert accelerator.unwrap_model(model, keep_torch_compile=False) is inner
    assert accelerator.unwrap_model(model) is model
    accelerator.save_state(str(tmp_path / "c"))
    before = inner.weight.detach().clone()
    with torch.no_grad():
        inner.weight.zero_()
    accelerator.load_state(str(tmp_path / "c"))
    assert torch.equal(inner.weight, before)


def test_what_is_not_supported_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="fsdp_plugin"):
        Accelerator(cpu=True, fsdp_plugin=object())
    with pytest.raises(TypeError, match="int"):
        Accelerator(cpu=True, kwargs_handlers=[3])
    with pytest.raises(ValueError, match="two objects of class AutocastKwargs"):
        Accelerator(cpu=True, kwargs_handlers=[utils.AutocastKwargs(), utils.AutocastKwargs()])


def test_logger_and_progress_speak_once(tmp_path: Path) -> None:
    def on_rank(folder: Path) -> tuple[list[str], bool]:
        from nbaccel.logging import get_logger

        nbaccel.reset()
        logger = get_logger("nbaccel-test", "INFO")
        said: list[str] = []
        logger.logger.addHandler(
            type("H", (logging.Handler,), {"emit": lambda _, r: said.append(r.getMessage())})()
        )
        with pytest.raises(RuntimeError, match="make an Accelerator"):
            logger.info("too early")
        accelerator = Accelerator(cpu=True)
        logger.info("once")
        logger.info("each %d", accelerator.process_index, main_process_only=False, in_order=True)
        logger.warning_once("only")
        logger.warning_once("only")
        return said, utils.tqdm(range(2)).disable

    r0, r1 = run_ranks(on_rank, 2, tmp_path)
    assert r0 == (["once", "each 0", "only"], False)
    assert r1 == (["each 1"], True)


def test_free_helpers() -> None:
    def on_rank() -> list[Any]:
        accelerator = Accelerator(cpu=True)
        rank = accelerator.process_index
        utils.set_seed(1, device_specific=True)
        own = torch.rand(1)
        differ = utils.gather(own).unique().numel()
        utils.synchronize_rng_states(["torch"])
        same = utils.gather(torch.rand(1)).unique().numel()
        with pytest.raises(ValueError, match="numpy"):
            utils.synchronize_rng_states(["numpy"])
        box = utils.broadcast_object_list([rank, {"r": rank}])
        utils.wait_for_everyone()
        return [differ, same, box, utils.gather_object([rank]), utils.reduce(torch.tensor(1.0 * rank)).item()]

    assert run_ranks(on_rank, 2) == [[2, 1, [0, {"r": 0}], [0, 1], 0.5]] * 2
    padded = utils.pad_input_tensors({"x": torch.arange(3)}, 3, 2)
    assert padded["x"].tolist() == [0, 1, 2, 2]
    with utils.patch_environment(nbaccel_probe="x"):
        import os

        assert os.environ["NBACCEL_PROBE"] == "x"
    assert "NBACCEL_PROBE" not in os.environ
    assert utils.is_torch_version(">=", "2.8")
    assert utils.str_to_bool("Yes") == 1
    assert utils.merge_dicts({"a": {"b": 1}}, {"a": {"c": 2}}) == {"a": {"c": 2, "b": 1}}
    assert utils.convert_bytes(2048) == "2.0 KB"


def test_local_sgd_averages_weights_now_and_then() -> None:
    def on_rank() -> list[float]:
        accelerator = Accelerator(cpu=True)
        model = nn.Linear(1, 1, bias=False)
        nn.init.zeros_(model.weight)
        model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=1.0))
        weights = []
        with nbaccel.LocalSGD(accelerator, model, local_sgd_steps=2) as local:
            for _ in range(3):
                accelerator.backward(model(torch.ones(1, 1) * accelerator.process_index).sum())
                optimizer.step()
                optimizer.zero_grad()
                weights.append(model.module.weight.item())
                local.step()
        return [*weights, model.module.weight.item()]

    r0, r1 = run_ranks(on_rank, 2)
    assert r0 == [0.0, 0.0, -1.0, -1.5]
    assert r1 == [-1.0, -2.0, -2.0, -1.5]


def test_the_gradient_state_is_that_of_the_accelerator_made_or_used_last() -> None:
    nbaccel.reset()
    early = states.GradientState()
    first = Accelerator(cpu=True, gradient_accumulation_steps=2)
    assert early is first.gradient_state is states.GradientState()
    assert early.num_steps == 2
    second = Accelerator(cpu=True)
    assert states.GradientState() is second.gradient_state is not early
    with first.accumulate(nn.Linear(1, 1)):
        assert states.GradientState() is early
        assert states.GradientState().sync_gradients is False
    by_hand = AcceleratedOptimizer(torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0))
    assert by_hand.gradient_state is early
    assert by_hand.accelerator_state.num_processes == 1
    nbaccel.reset()
    assert states.GradientState() is not early


def test_loaders_are_made_by_hand_with_the_arguments_of_scripts() -> None:
    def on_rank() -> dict[str, Any]:
        Accelerator(cpu=True)
        rank = states.PartialState().process_index
        batches = BatchSampler(SequentialSampler(range(9)), 2, drop_last=False)
        shard = BatchSamplerShard(batches, num_processes=2, process_index=rank)
        mine = DataLoaderShard(list(range(9)), device=torch.device("cpu"), batch_sampler=shard)
        skipping = DataLoaderShard(list(range(6)), batch_size=2, skip_batches=1, rng_types=["torch"])
        handed = DataLoaderDispatcher(list(range(8)), batch_size=2, split_batches=False, _drop_last=True)
        ends = []
        found: dict[str, Any] = {"mine": []}
        for batch in mine:
            found["mine"].append(batch.tolist())
            ends.append((mine.end_of_dataloader, states.GradientState().end_of_dataloader))
        found |= {"ends": ends, "handed": [batch.tolist() for batch in handed]}
        return found | {"skipping": [b.tolist() for b in skipping], "skips": skipping.skip_batches}

    r0, r1 = run_ranks(on_rank, 2)
    assert (r0["mine"], r1["mine"]) == ([[0, 1], [4, 5], [8, 0]], [[2, 3], [6, 7], [1, 2]])
    assert r0["ends"] == [(False, False), (False, False), (True, True)]
    assert (r0["handed"], r1["handed"]) == ([[0, 1], [4, 5]], [[2, 3], [6, 7]])
    assert r0["skipping"] == [[2, 3], [4, 5]]
    assert r0["skips"] == 1
    with pytest.raises(ValueError, match="torch_device_mesh='m': processes aren't laid out in a mesh"):
        DataLoaderShard([1], torch_device_mesh="m")


def test_option_objects_are_found_under_their_names() -> None:
    handlers = [
        ProfileKwargs(),
        DistributedDataParallelKwargs(),
        utils.GradScalerKwargs(),
        utils.AutocastKwargs(),
    ]
    accelerator = Accelerator(cpu=True, mixed_precision="fp16", kwargs_handlers=handlers)
    found = (accelerator.profile_handler, accelerator.ddp_handler, accelerator.scaler_handler)
    assert [*found, accelerator.autocast_handler] == handlers
    assert accelerator.init_handler is accelerator.fp8_recipe_handler is None
    assert accelerator.state.dynamo_plugin.backend == "NO"
    assert accelerator.gradient_state.plugin_kwargs == {"num_steps": 1}
