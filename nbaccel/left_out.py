"""What Hugging Face Accelerate has and nbaccel hasn't, by reason. The one place where that is listed.

Whoever asks for such a name gets the reason and the remedy, in one line, instead of Python's bare word.
The table is read by the comparison in the tests too, so it can't lag behind. Standard library only.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import cache
from importlib.machinery import ModuleSpec
from opcode import opmap
from types import ModuleType
from typing import Any

from nbaccel.spelling import likely

LEFT_OUT: dict[str, str] = {
    "DeepSpeed isn't driven; models are replicated on each process": """
        Accelerator.deepspeed_ulysses_dl_adapter AcceleratorState.get_deepspeed_plugin
        AcceleratorState.select_deepspeed_plugin compile_regions_deepspeed DEEPSPEED_MULTINODE_LAUNCHERS
        deepspeed_required DeepSpeedPlugin DeepSpeedSequenceParallelConfig GatheredParameters
        prepare_deepspeed_cmd_env
    """,
    "sharded models (FSDP) come later; models are replicated on each process": """
        compile_regions_fsdp2 disable_fsdp_ram_efficient_loading enable_fsdp_ram_efficient_loading
        fsdp2_apply_ac fsdp2_canonicalize_names fsdp2_load_full_state_dict fsdp2_prepare_model
        FSDP2_PYTORCH_VERSION FSDP2_STATE_DICT_TYPE fsdp2_switch_optimizer_parameters FSDP_AUTO_WRAP_POLICY
        FSDP_BACKWARD_PREFETCH FSDP_MODEL_NAME FSDP_PYTORCH_VERSION FSDP_SHARDING_STRATEGY
        FSDP_STATE_DICT_TYPE FullyShardedDataParallelPlugin get_fsdp2_grad_scaler load_fsdp_model
        load_fsdp_optimizer merge_fsdp_weights save_fsdp_model save_fsdp_optimizer
    """,
    "Megatron-LM isn't driven; models are replicated on each process": """
        AbstractTrainStep add_model_config_to_megatron_parser avg_losses_across_data_parallel_group
        BertTrainStep GPTTrainStep MegatronLMDummyDataLoader MegatronLMDummyScheduler MegatronLMPlugin
        parse_bert_config parse_glm4_moe_config parse_gpt2_config parse_llama_config parse_t5_config
        T5TrainStep
    """,
    "SageMaker isn't driven; launch on the machine itself": """
        prepare_sagemager_args_inputs SAGEMAKER_PARALLEL_EC2_INSTANCES SAGEMAKER_PYTHON_VERSION
        SAGEMAKER_PYTORCH_VERSION SAGEMAKER_TRANSFORMERS_VERSION SageMakerDistributedType
    """,
    "there is no such switch; prepare() and backward() do what XLA devices need": """
        copy_tensor_to_devices GradientState.is_xla_gradients_synced
    """,
    "`find_batch_size` returns None where there is no batch": """
        ignorant_find_batch_size
    """,
    "use `nbaccel config --default`, or `NBACCEL_*` in the environment": """
        write_basic_config
    """,
    "use `skip_first_batches(loader, n)`": """
        SkipDataLoader
    """,
    "a check for another library; use `importlib.util.find_spec`": """
        BETA_CP_AVAILABLE_PYTORCH_VERSION BETA_SP_AVAILABLE_DEEPSPEED_VERSION
        BETA_TP_AVAILABLE_PYTORCH_VERSION BETA_TP_AVAILABLE_TRANSFORMERS_VERSION DTENSOR_PYTORCH_VERSION
        ELASTIC_LOG_LINE_PREFIX_TEMPLATE_PYTORCH_VERSION is_amdsmi_available
        is_bitsandbytes_multi_backend_available is_habana_gaudi1 is_import_timer_available is_msamp_available
        is_peft_model is_rich_available is_rocm_available is_tensor_information is_torch_xpu_tensor
        is_weights_only_available is_xccl_available MITA_PROFILING_AVAILABLE_PYTORCH_VERSION
        XPU_PROFILING_AVAILABLE_PYTORCH_VERSION
    """,
    "LOMO is an optimizer of its own; call it in the loop": """
        Accelerator.lomo_backward is_lomo_available
    """,
    "models that don't fit one device come later; `with torch.device('meta')` builds one without memory": """
        align_module_device calculate_maximum_sizes check_device_map check_device_same
        check_tied_parameters_in_config check_tied_parameters_on_same_device clean_device_map
        clean_state_dict_for_safetensors compute_module_sizes compute_module_total_buffer_size
        convert_file_size_to_int cpu_offload cpu_offload_with_hook CustomDtype disk_offload dispatch_model
        dtype_byte_size ensure_weights_retied extract_submodules_state_dict fallback_allocate
        get_balanced_memory get_max_layer_size get_max_memory get_module_leaves get_module_size_with_ties
        get_non_persistent_buffers get_state_dict_from_offload get_state_dict_offloaded_model
        has_offloaded_params id_tensor_storage infer_auto_device_map init_empty_weights init_on_device
        load_checkpoint_and_dispatch load_checkpoint_in_model load_offloaded_weight load_offloaded_weights
        load_state_dict named_module_tensors offload_state_dict offload_weight OffloadedWeightsLoader
        PrefixedDataset save_offload_index set_module_tensor_to_device
    """,
    "compile blocks with `torch.compile` before `prepare`": """
        compile_regions has_compiled_regions has_repeated_blocks is_repeated_blocks
        TorchDynamoPlugin.use_regional_compilation
    """,
    "other fp8 libraries come later; use `AORecipeKwargs`, or `mixed_precision='bf16'`": """
        apply_fp8_autowrap check_cuda_fp8_capability contextual_fp8_autocast convert_model
        convert_model_to_fp8_ao filter_first_and_last_linear_layers FP8BackendType FP8RecipeKwargs
        has_ao_layers has_transformer_engine_layers is_fp8_available is_transformer_engine_available
        is_transformer_engine_mxfp8_available MSAMPRecipeKwargs TERecipeKwargs torchao_required
    """,
    "internal to Accelerate; nothing here stands for it": """
        Accelerator.flag_tensor BaseEnum chained_operation check_cuda_p2p_ib_support check_os_kernel
        ConvertOutputsToFp32 CPUInformation CUDA_DISTRIBUTED_TYPES DataLoaderAdapter
        DataLoaderDispatcher.begin DataLoaderDispatcher.end DataLoaderDispatcher.reset DataLoaderShard.begin
        DataLoaderShard.end DataLoaderShard.reset DataLoaderStateMixin do_nothing EnumWithContains
        filter_trackers gather_tensor_shape get_available_trackers get_cpu_distributed_information
        get_current_device_type get_driver_version get_gpu_info get_grad_scaler
        get_mixed_precision_context_manager get_module_children_bottom_up get_module_class_from_name
        get_pretty_name get_sampler get_shape move_to_device patch_optimizer_step STR_OPERATION_TO_FUNC
        SUPPORTED_PYTORCH_LAYERS_FOR_UPCASTING test_launch TORCH_DISTRIBUTED_OPERATION_TYPES
        TORCH_DYNAMO_MODES verify_operation
    """,
    "never raised: what can't be padded stays as it is": """
        CannotPadNestedTensorWarning
    """,
    "nothing is shared between states": """
        ThreadLocalSharedDict
    """,
    "other kinds of parallelism come later; use DistributedDataParallel, which `prepare` sets up": """
        Accelerator.context_parallel_rank Accelerator.data_parallel_rank Accelerator.data_parallel_shard_rank
        Accelerator.maybe_context_parallel Accelerator.pipeline_parallel_rank DataLoaderDispatcher.submesh_dp
        DataLoaderDispatcher.submesh_fsdp DataLoaderDispatcher.submesh_tp
        DataLoaderDispatcher.torch_device_mesh ParallelismConfig TorchContextParallelConfig
    """,
    "pipelines come later; see `torch.distributed.pipelining`": """
        is_pippy_available prepare_pippy
    """,
    "use `PartialState()`": """
        DataLoaderDispatcher.state
    """,
    "prepare a loader with that sampler": """
        DataLoaderDispatcher.set_sampler DataLoaderShard.set_sampler
    """,
    "quantise with the library itself before `prepare`": """
        BnbQuantizationConfig has_4bit_bnb_layers is_4bit_bnb_available is_8bit_bnb_available
        load_and_quantize_model
    """,
    "tensor parallelism comes later; see `torch.distributed.tensor.parallel`": """
        Accelerator.tensor_parallel_rank get_model_tp_size model_has_dtensor TorchTensorParallelConfig
        TorchTensorParallelPlugin
    """,
    "the launcher's own business; use `notebook_launcher` or `nbaccel launch`": """
        ComputeEnvironment convert_dict_to_env_variables get_free_port get_int_from_env install_xla
        override_numa_affinity parse_choice_from_env parse_flag_from_env prepare_multi_gpu_env
        prepare_simple_launcher_cmd_env prepare_tpu PrepareForLaunch purge_accelerate_environment
        set_numa_affinity TORCH_LAUNCH_PARAMS
    """,
    "the position is exact without it": """
        DataLoaderDispatcher.adjust_state_dict_for_prefetch DataLoaderShard.adjust_state_dict_for_prefetch
    """,
    "look into `sys.modules`": """
        are_libraries_initialized
    """,
}
"""By reason: names, and members written as ``Class.member``."""

LEFT_OUT_MODULES: dict[str, str] = {
    "big_modeling": "models that don't fit one device come later; `with torch.device('meta')` builds one "
    "without memory",
    "checkpointing": "internal to Accelerate; use `accelerator.save_state()` and `accelerator.load_state()`",
    "commands": "use the command `nbaccel`, or `python -m nbaccel`",
    "hooks": "models that don't fit one device come later; torch has `module.register_forward_pre_hook`",
    "inference": "pipelines come later; see `torch.distributed.pipelining`",
    "parallelism_config": "other kinds of parallelism come later; `prepare` sets up DistributedDataParallel",
    "test_utils": "internal to Accelerate; `nbaccel test` checks an installation",
    "utils.ao": "`prepare` converts what fp8 fits; see `AORecipeKwargs` for which layers",
    "utils.bnb": "quantise with the library itself before `prepare`",
    "utils.deepspeed": "DeepSpeed isn't driven; models are replicated on each process",
    "utils.fsdp_utils": "sharded models (FSDP) come later; models are replicated on each process",
    "utils.launch": "the launcher's own business; use `notebook_launcher` or `nbaccel launch`",
    "utils.megatron_lm": "Megatron-LM isn't driven; models are replicated on each process",
    "utils.offload": "models that don't fit one device come later; `model.cpu()` moves one",
    "utils.rich": "install rich and import it",
    "utils.torch_xla": "the launcher's own business; install torch_xla with pip",
    "utils.transformer_engine": "other fp8 libraries come later; use `AORecipeKwargs`",
}
"""Modules that are left out as a whole, by their path below the package."""

PACKAGE = __name__.rpartition(".")[0]
_IMPORT_FROM = opmap["IMPORT_FROM"]


@cache
def _reasons() -> dict[str, str]:
    return {name: reason for reason, names in LEFT_OUT.items() for name in names.split()}


def reason_for(name: str) -> str | None:
    """Why ``name`` (or ``Class.member``) is left out; None when it isn't known to be."""
    return _reasons().get(name)


def told(name: str, reason: str) -> str:
    """The line that somebody gets who asks for ``name``."""
    return f"{name} is left out of nbaccel: {reason}"


def explain_missing(module: str, further: Callable[[str], Any] | None = None) -> Callable[[str], Any]:
    """A ``__getattr__`` for ``module`` that says why a name isn't there.

    Args:
        module: the module's ``__name__``.
        further: finds names that are made when asked for; it returns None for others.
    """

    def find(name: str) -> Any:
        found = None if further is None else further(name)
        if found is not None:
            return found
        raise missing(module, name)

    return find


def explain_member(instance: object, name: str) -> AttributeError:
    """The error for an attribute that ``instance`` hasn't, with the reason where one is known."""
    kinds = [kind.__name__ for kind in type(instance).__mro__]
    reason = next((why for kind in kinds if (why := reason_for(f"{kind}.{name}"))), None)
    if reason is not None:
        text = told(f"{kinds[0]}.{name}", reason)
    else:
        text = f"{kinds[0]!r} object has no attribute {name!r}" + _meant(name, dir(type(instance)))
    return AttributeError(text, name=name, obj=instance)


def missing(module: str, name: str) -> Exception:
    """The error for a name that ``module`` hasn't, with the reason where one is known.

    To be called by the module's ``__getattr__`` itself: how it was asked decides on the kind.

    Args:
        module: the module's ``__name__``.
        name: what was asked for.
    """
    caller = sys._getframe(2)  # noqa: SLF001  # nothing else tells an import from a look
    below = f"{module}.{name}".partition(".")[2]
    reason = None if name.startswith("__") else reason_for(name) or LEFT_OUT_MODULES.get(below)
    if reason is not None:
        text = told(name, reason)
    else:
        text = f"module {module!r} has no name {name!r}" + _meant(name, dir(sys.modules[module]))
    # ``from module import name`` would replace the text of an AttributeError by its own. Everybody else,
    # hasattr above all, needs one.
    importing = caller.f_code.co_code[caller.f_lasti] == _IMPORT_FROM
    return ImportError(text, name=module) if importing else AttributeError(text)


def _meant(name: str, choices: Sequence[str]) -> str:
    near = likely(name, (each for each in choices if not each.startswith("_")), cutoff=0.75)
    return f"; did you mean {near!r}?" if near else ""


class LeftOutModules:
    """Answers the import of a module that is left out. Stands last, so it is asked for nothing else."""

    @staticmethod
    def find_spec(
        fullname: str,
        path: Sequence[str] | None = None,  # noqa: ARG004
        target: ModuleType | None = None,  # noqa: ARG004
    ) -> ModuleSpec | None:
        """None for whatever isn't below the package.

        Raises:
            ModuleNotFoundError: with the reason.
        """
        package, _, below = fullname.partition(".")
        reason = None if package != PACKAGE else LEFT_OUT_MODULES.get(below)
        if reason is not None:
            raise ModuleNotFoundError(told(fullname, reason), name=fullname)
        return None


def answer_imports() -> None:
    """Have imports of left-out modules answered; once is enough."""
    if LeftOutModules not in sys.meta_path:
        sys.meta_path.append(LeftOutModules)
