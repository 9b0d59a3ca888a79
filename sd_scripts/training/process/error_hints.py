"""Known failures of a run, each explained in one sentence, with the settings that would help, the best first."""

import math
import os
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any, NamedTuple

import torch

from sd_scripts.families.cards.registry import card_of
from sd_scripts.settings.settings import Settings

SAVED_BEFORE = "files saved earlier are intact"
MOST_HELP = 5
"""Remedies named at most: those after them help little or defeat the purpose of the run."""
LARGE_NETWORK = 32
GPU_IS_FULL = ("CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
"""Messages of the driver and its libraries, which bypass PyTorch's allocator."""
Values = Mapping[str, Any]
"""Values by option name; only options that the script has. And `most_swapped`: the largest blocks_to_swap."""


class ErrorHint(NamedTuple):
    """A setting that would help and is not in use yet."""

    helps: Callable[[Values], bool]
    words: str
    """Text with `{option}` for the value of that option."""
    option: str = ""
    """The option it names, if that works only for some families."""


def _off(name: str) -> Callable[[Values], bool]:
    """Return a test for whether the script has this option and it is off."""
    return lambda values: name in values and not values[name]


def _is_lora(values: Values) -> bool:
    return "network_dim" in values


def _is_quantized(values: Values) -> bool:
    return bool(values["fp8_base"] or values["fp8_base_unet"] or values.get("quantize_base", "none") != "none")


GPU: tuple[ErrorHint, ...] = (
    ErrorHint(lambda v: v["mixed_precision"] == "no", "set mixed_precision = bf16"),
    ErrorHint(lambda v: not _is_lora(v) and not v["full_bf16"] and not v["full_fp16"], "turn full_bf16 on"),
    ErrorHint(_off("gradient_checkpointing"), "turn gradient_checkpointing on"),
    ErrorHint(lambda v: _is_lora(v) and not _is_quantized(v), "turn fp8_base on", "fp8_base"),
    ErrorHint(
        lambda v: v["train_batch_size"] > 1,
        "lower train_batch_size (now {train_batch_size}) and raise gradient_accumulation_steps (now "
        "{gradient_accumulation_steps}) by the same factor",
    ),
    ErrorHint(_off("blocks_to_swap"), "set blocks_to_swap"),
    ErrorHint(
        lambda v: 0 < (v.get("blocks_to_swap") or 0) < v["most_swapped"], "raise blocks_to_swap (now {blocks_to_swap})"
    ),
    ErrorHint(
        lambda v: (
            not (_is_lora(v) or v["fused_optimizer_groups"] or v["fused_backward_pass"])
            and v["gradient_accumulation_steps"] == 1
        ),
        "turn fused_backward_pass on",
    ),
    ErrorHint(lambda v: not (v["cache_latents"] or v["cache_latents_to_disk"]), "turn cache_latents on"),
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
    ErrorHint(lambda v: v["cache_latents"] and not v["cache_latents_to_disk"], "turn cache_latents_to_disk on"),
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


def nonfinite_hint(settings: Settings) -> str:
    """Return the remedies for a non-finite loss."""
    values = settings.values()
    causes = [f"lower learning_rate (now {values['learning_rate']})"]
    if values["mixed_precision"] == "fp16":
        causes.append("set mixed_precision = bf16, since fp16 overflows")
        if _off("no_half_vae")(values) and settings.has_effect("no_half_vae"):
            causes.append("turn no_half_vae on")
    causes.append("look for a broken image in the last batches")
    return f"{', or '.join(causes)}; {SAVED_BEFORE}"


def explain(error: BaseException, settings: Settings) -> tuple[str, str] | None:
    """Explain a lack of memory, of a process or of a kernel, with the remedies that would help this run, the best
    first; return None for any other error."""
    if not (known := _known(error)):
        return None
    sentence, remedy = known
    if isinstance(remedy, str):
        return sentence, remedy
    facts = card_of(settings.script.family).plan.memory
    values = {**settings.values(), "most_swapped": facts.most_swapped if facts else math.inf}
    helping = (each for each in remedy if each.helps(values))
    working = (each for each in helping if not each.option or settings.has_effect(each.option))
    return sentence, ", or ".join(each.words.format_map(values) for each in islice(working, MOST_HELP))


def _known(error: BaseException) -> tuple[str, str | tuple[ErrorHint, ...]] | None:
    """Return a sentence about a known error, with its remedy or those that may help."""
    words = str(error)
    if isinstance(error, torch.OutOfMemoryError) or any(mark in words for mark in GPU_IS_FULL):
        return "the GPU is out of memory", GPU
    if isinstance(error, MemoryError) or "DefaultCPUAllocator: can't allocate" in words:
        return "the system is out of RAM", MAIN_MEMORY
    if "does not have a deterministic implementation" in words:
        return words.split(", but you set")[0], "turn deterministic off"
    if isinstance(error, RuntimeError) and words.startswith("DataLoader worker"):
        if "shared memory" in words or "Bus error" in words:
            remedy = "set max_data_loader_n_workers = 0, or give the container more with --shm-size"
            return "a data loader process ran out of shared memory", remedy
        killed = "a data loader process was killed, usually because the system ran out of RAM"
        return killed, MAIN_MEMORY
    return None


def brief(error: BaseException) -> str:
    """Return a short description without remedy, for warnings about errors that do not end the run."""
    if known := _known(error):
        return known[0]
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:300]}" if lines else type(error).__name__
