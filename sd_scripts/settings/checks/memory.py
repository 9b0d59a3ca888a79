"""Checks of what saves memory: quantized weights, swapped blocks, checkpointing, updates during backward."""

from sd_scripts.families.cards.registry import is_built_in_network
from sd_scripts.options.compile import PARTITIONED, CompileMoreOptions, CompileOptions
from sd_scripts.options.full import FullOptions, FusedOptions
from sd_scripts.options.memory import MemoryOptions
from sd_scripts.options.networks.network import NetworkOptions
from sd_scripts.options.run import CudaOptions
from sd_scripts.options.spec import Findings
from sd_scripts.options.training import TrainingOptions
from sd_scripts.settings.checks.run_values import RunValues


def fp8_compute_without_bf16(values: RunValues) -> Findings:
    memory = values[MemoryOptions]
    training = values[TrainingOptions]
    if memory.fp8_compute and training.mixed_precision != "bf16":
        yield "fp8_compute", f"needs mixed_precision = bf16, not {training.mixed_precision}"


def weights_quantized_twice(values: RunValues) -> Findings:
    if not values.get(NetworkOptions):
        return
    memory = values[MemoryOptions]
    training = values[TrainingOptions]
    flag = "fp8_base" if training.fp8_base else "fp8_base_unet" if training.fp8_base_unet else ""
    if flag and memory.chosen(memory.quantize_base) not in ("", "fp8"):
        yield (
            "quantize_base",
            f"{memory.quantize_base} conflicts with {flag}, which stores the same weights in fp8; turn {flag} off",
        )
    in_fp8 = training.fp8_base and not training.fp8_base_unet
    if in_fp8 and memory.chosen(memory.quantize_text_encoders) not in ("", "fp8"):
        yield (
            "quantize_text_encoders",
            f"{memory.quantize_text_encoders} conflicts with fp8_base, which stores the text encoders in fp8 too; turn "
            "fp8_base off and fp8_base_unet on",
        )


def _arguments_that_train_the_base(network: NetworkOptions) -> list[str]:
    """Return the network_args with which an external network trains weights of the base model, or reads them."""
    if is_built_in_network(network):
        return []
    given = (item.replace(" ", "").lower() for item in network.network_args)
    return [arg for arg in given if arg in ("algo=full", "dora_wd=true", "weight_decompose=true")]


def swapped_adapter_conflicts(values: RunValues) -> Findings:
    """Refuse LyCORIS networks that start from the base weights, which swapped blocks do not have on the device."""
    memory = values[MemoryOptions]
    network = values[NetworkOptions]
    for arg in _arguments_that_train_the_base(network) if memory.blocks_to_swap else ():
        yield (
            "blocks_to_swap",
            f"{network.network_module} with {arg} trains the weights of the base model, so blocks cannot be "
            "swapped; set blocks_to_swap = 0 or choose another network",
        )


def quantized_adapter_conflicts(values: RunValues) -> Findings:
    """Refuse LyCORIS networks that start from the base weights, which quantized layers do not have in full
    precision."""
    memory = values[MemoryOptions]
    training = values[TrainingOptions]
    network = values[NetworkOptions]
    flags = {"fp8_base": training.fp8_base, "fp8_base_unet": training.fp8_base_unet, "fp8_compute": memory.fp8_compute}
    formats = {name: memory.chosen(getattr(memory, name)) for name in ("quantize_base", "quantize_text_encoders")}
    name = next((name for name, on in {**formats, **flags}.items() if on), "")
    for arg in _arguments_that_train_the_base(network) if name else ():
        yield (
            name,
            f"{network.network_module} with {arg} trains the weights of the base model, so they cannot be quantized; "
            + (f"set {name} = none" if name in formats else f"turn {name} off")
            + " or choose another network",
        )


def fused_backward_conflicts(values: RunValues) -> Findings:
    if not values.get(FullOptions):
        return
    fused = values[FusedOptions]
    training = values[TrainingOptions]
    if not (name := fused.chosen):
        return
    if training.gradient_accumulation_steps > 1:
        yield (
            name,
            "frees each gradient immediately, so gradients cannot be accumulated; set gradient_accumulation_steps = 1",
        )
    if training.mixed_precision == "fp16":
        yield name, "does not support the loss scaling of fp16; set mixed_precision = bf16"


def swapped_model_conflicts(values: RunValues) -> Findings:
    if not values.get(FullOptions):
        return
    memory = values[MemoryOptions]
    training = values[TrainingOptions]
    fused = values[FusedOptions]
    if memory.blocks_to_swap and not training.full_bf16:
        yield "blocks_to_swap", "trained blocks can be swapped only in bf16; set full_bf16 and mixed_precision = bf16"
    if memory.blocks_to_swap and fused.fused_optimizer_groups:
        yield (
            "fused_optimizer_groups",
            "updates weights of several blocks together, but blocks_to_swap never has them on the GPU at the same "
            "time; set fused_backward_pass instead",
        )


def cpu_offload_checkpointing_conflicts(values: RunValues) -> Findings:
    training = values[TrainingOptions]
    compiled = values[CompileOptions]
    if not training.cpu_offload_checkpointing:
        return
    if not training.gradient_checkpointing:
        yield "cpu_offload_checkpointing", "has no effect without gradient_checkpointing"
    elif compiled.compile:
        yield (
            "cpu_offload_checkpointing",
            "moves activations between compiled blocks, outside their graphs; turn it off with compile unless memory "
            "runs out",
        )


def activation_memory_budget_without_effect(values: RunValues) -> Findings:
    more = values[CompileMoreOptions]
    compiled = values[CompileOptions]
    training = values[TrainingOptions]
    if more.activation_memory_budget == 1.0:
        return
    if not compiled.compile:
        yield "activation_memory_budget", "has no effect without compile; turn compile on"
    elif compiled.compile_backend not in PARTITIONED:
        yield (
            "activation_memory_budget",
            f"has no effect with compile_backend = {compiled.compile_backend}; set compile_backend = inductor",
        )
    elif training.gradient_checkpointing:
        yield (
            "activation_memory_budget",
            "gradient_checkpointing already keeps only the inputs of each block, so adding this saves hardly any "
            "more memory; turn one of them off",
        )


def int8_without_compile(values: RunValues) -> Findings:
    if not values.get(NetworkOptions):
        return
    memory = values[MemoryOptions]
    compiled = values[CompileOptions]
    if memory.quantize_base == "int8" and not compiled.compile:
        yield (
            "quantize_base",
            "int8 quantizes activations too, in many small operations without compile; turn compile on, or set "
            "int8_weight_only",
        )


def float32_norms_without_effect(values: RunValues) -> Findings:
    cuda = values[CudaOptions]
    training = values[TrainingOptions]
    compiled = values[CompileOptions]
    if not cuda.float32_norms:
        return
    if compiled.compile:
        yield "float32_norms", "has no effect with compile, which rounds once anyway"
    elif training.mixed_precision == "no":
        yield "float32_norms", "has no effect with mixed_precision = no, which computes all in float32"
