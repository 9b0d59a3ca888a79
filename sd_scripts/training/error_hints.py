"""What went wrong in a run, in one sentence, and what of its settings would help, by what helps most."""

import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

from sd_scripts.options.settings import Settings

SAVED_BEFORE = "what was saved before is still there"
MOST_HELP = 5
"""So many remedies are named: those after them help little, or cost what the run is for."""
LARGE_NETWORK = 32
GPU_IS_FULL = ("CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
"""What the driver and its libraries say, where PyTorch's own allocator was not asked."""
Values = Mapping[str, Any]
"""Options by name, as far as the script has them."""


class ErrorHint(NamedTuple):
    """Something that would help, where it is not done yet."""

    helps: Callable[[Values], bool]
    words: str
    """`{option}` stands for its value."""


def _off(name: str) -> Callable[[Values], bool]:
    """Whether the script has this option, and it is not on."""
    return lambda values: name in values and not values[name]


def _is_lora(values: Values) -> bool:
    return "network_dim" in values


def _is_flux(values: Values) -> bool:
    return "blocks_to_swap" in values


GPU: tuple[ErrorHint, ...] = (
    ErrorHint(lambda v: v["mixed_precision"] == "no", "set mixed_precision = bf16"),
    ErrorHint(lambda v: not _is_lora(v) and not v["full_bf16"] and not v["full_fp16"], "turn full_bf16 on"),
    ErrorHint(_off("gradient_checkpointing"), "turn gradient_checkpointing on"),
    ErrorHint(
        lambda v: _is_flux(v) and _is_lora(v) and not (v["fp8_base"] or v["fp8_base_unet"]),
        "turn fp8_base on",
    ),
    ErrorHint(
        lambda v: v["train_batch_size"] > 1,
        "lower train_batch_size (now {train_batch_size}) and raise gradient_accumulation_steps (now "
        "{gradient_accumulation_steps}) as much",
    ),
    ErrorHint(_off("blocks_to_swap"), "set blocks_to_swap"),
    ErrorHint(lambda v: bool(v.get("blocks_to_swap")), "raise blocks_to_swap (now {blocks_to_swap})"),
    ErrorHint(
        lambda v: (
            not _is_lora(v)
            and not v["fused_optimizer_groups"]
            and not v["fused_backward_pass"]
            and v["gradient_accumulation_steps"] == 1
        ),
        "turn fused_backward_pass on",
    ),
    ErrorHint(
        lambda v: not (v["cache_latents"] or v["cache_latents_to_disk"]),
        "turn cache_latents on",
    ),
    ErrorHint(
        lambda v: not (v["cache_text_encoder_outputs"] or v["cache_text_encoder_outputs_to_disk"]),
        "turn cache_text_encoder_outputs on",
    ),
    ErrorHint(lambda v: v["use_ema"] and v["ema_device"] == "gpu", "set ema_device = cpu"),
    ErrorHint(
        lambda v: not _is_lora(v) and v["optimizer_type"].lower() in ("adamw", ""),
        "set optimizer_type = Adafactor or AdamW8bit",
    ),
    ErrorHint(lambda v: (v.get("network_dim") or 0) > LARGE_NETWORK, "lower network_dim (now {network_dim})"),
    ErrorHint(lambda v: bool(v["resolution"]), "lower resolution (now {resolution})"),
    ErrorHint(
        lambda v: "expandable_segments:True" not in os.environ.get("PYTORCH_CUDA_ALLOC_CONF", ""),
        "set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True in the environment",
    ),
)
MAIN_MEMORY: tuple[ErrorHint, ...] = (
    ErrorHint(
        lambda v: v["max_data_loader_n_workers"] > 0,
        "lower max_data_loader_n_workers (now {max_data_loader_n_workers})",
    ),
    ErrorHint(lambda v: v["persistent_data_loader_workers"], "turn persistent_data_loader_workers off"),
    ErrorHint(
        lambda v: v["cache_latents"] and not v["cache_latents_to_disk"],
        "turn cache_latents_to_disk on",
    ),
    ErrorHint(
        lambda v: v["cache_text_encoder_outputs"] and not v["cache_text_encoder_outputs_to_disk"],
        "turn cache_text_encoder_outputs_to_disk on",
    ),
    ErrorHint(lambda v: v["use_ema"] and v["ema_device"] == "cpu", "set ema_device = gpu"),
    ErrorHint(lambda v: v["cpu_offload_checkpointing"], "turn cpu_offload_checkpointing off"),
    ErrorHint(lambda v: bool(v.get("blocks_to_swap")), "lower blocks_to_swap (now {blocks_to_swap})"),
    ErrorHint(_off("lowram"), "turn lowram on"),
    ErrorHint(lambda v: True, "close other programs"),
)


def advice(remedies: tuple[ErrorHint, ...], settings: Settings) -> str:
    """What of these would help this run, the best first."""
    values = settings.values()
    fitting = [remedy.words.format_map(values) for remedy in remedies if remedy.helps(values)]
    return ", or ".join(fitting[:MOST_HELP])


def nonfinite_hint(settings: Settings) -> str:
    """The likely causes of a loss that is no number."""
    values = settings.values()
    causes = [f"lower learning_rate (now {values['learning_rate']})"]
    if values["mixed_precision"] == "fp16":
        causes.append("set mixed_precision = bf16, since fp16 overflows")
        if _off("no_half_vae")(values) and not _is_flux(values):
            causes.append("turn no_half_vae on")
    causes.append("look for a broken image among those of the last steps")
    return f"{', or '.join(causes)}; files saved before are whole"


def in_a_sentence(error: BaseException, settings: Settings) -> tuple[str, str] | None:
    """What happened to the memory or to the processes of the run, and what would help; None where it is another
    fault."""
    words = str(error)
    if isinstance(error, torch.OutOfMemoryError) or any(mark in words for mark in GPU_IS_FULL):
        return "the memory of the GPU is full", advice(GPU, settings)
    if isinstance(error, MemoryError) or "DefaultCPUAllocator: can't allocate" in words:
        return "the main memory is full", advice(MAIN_MEMORY, settings)
    if isinstance(error, RuntimeError) and words.startswith("DataLoader worker"):
        if "shared memory" in words or "Bus error" in words:
            return (
                "a process that prepares images found no shared memory",
                "set max_data_loader_n_workers = 0, or give a container more with --shm-size",
            )
        return (
            "a process that prepares images was killed, often because the main memory was full",
            advice(MAIN_MEMORY, settings),
        )
    return None


def brief(error: BaseException, settings: Settings) -> str:
    """What happened, in a few words and without remedy, for a warning about what ends no run."""
    if known := in_a_sentence(error, settings):
        return known[0]
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:300]}" if lines else type(error).__name__
