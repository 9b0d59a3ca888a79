"""Translates option names of musubi-tuner that differ from sd-scripts' on reading, so that its commands run here."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

from sd_scripts.formats.words import listed
from sd_scripts.options.spec import OptionGroup, optional, switch, truth

Translator = Callable[[Any, dict[str, Any]], tuple[dict[str, Any], str]]
"""(value, the other settings) -> (values to set, remark)."""


class MusubiOptions(OptionGroup, title="Names of musubi-tuner"):
    """Accepted for its commands; each is replaced by another option, or needed no more."""

    dit: str | None = optional("Name of pretrained_model_name_or_path.")
    gradient_checkpointing_cpu_offload: bool = switch("Name of cpu_offload_checkpointing.")
    disable_numpy_memmap: bool = switch("Name of disable_mmap_load_safetensors.")
    fp8_scaled: bool = switch("Part of fp8_base.")
    fp8_vl: bool = switch("Part of fp8_base.")
    edit: bool = switch("Old form of model_version = edit.")
    edit_plus: bool = switch("Old form of model_version = edit-2509.")
    remove_first_image_from_target: bool = switch("Only for Qwen-Image-Layered, which is not supported.")
    flash_attn: bool = switch("Attention is always PyTorch's.")
    flash3: bool = switch("Attention is always PyTorch's.")
    sage_attn: bool = switch("Attention is always PyTorch's.")
    split_attn: bool = switch("Attention is always PyTorch's.")
    use_pinned_memory_for_block_swap: bool = switch("Swapped blocks are always in pinned memory.")
    block_swap_h2d_only: bool = switch("Frozen blocks are always only copied to the GPU.")
    block_swap_ring_size: int | None = optional("Swapped blocks always share two places on the GPU.", within=(1, 100))
    img_in_txt_in_offloading: bool = switch("Only blocks are swapped.")
    vae_dtype: str | None = optional("The VAE computes in mixed_precision, or in float32 with no_half_vae.")
    num_layers: int | None = optional("The number of blocks is read from the file.", within=(1, 1000))
    metadata_reso: str | None = optional("The resolution in the metadata is that of the training.")
    metadata_arch: str | None = optional("The architecture in the metadata is that of the model.")
    preserve_distribution_shape: bool = switch("Timesteps are scaled into min_timestep to max_timestep.")
    num_timestep_buckets: int | None = optional("Timesteps are drawn independently.", within=(0, 10_000))
    show_timesteps: str | None = optional("The page shows a run; timesteps are not drawn ahead.")
    dynamo_mode: str | None = optional("Set compile and compile_mode.")
    dynamo_fullgraph: bool = switch("Set compile and compile_fullgraph.")
    dynamo_dynamic: bool = switch("Set compile and compile_dynamic.")


def renamed(new_name: str) -> Translator:
    """Return what gives an option its name here."""

    def rename(value: Any, others: dict[str, Any]) -> tuple[dict[str, Any], str]:
        return ({} if new_name in others else {new_name: value}), f"is called {new_name} here"

    return rename


def _without_effect(why: str) -> Translator:
    def drop(value: Any, others: dict[str, Any]) -> tuple[dict[str, Any], str]:
        return {}, "" if value is None or truth(value) is False else f"has no effect: {why}"

    return drop


def _version(name: str) -> Translator:
    def choose(value: Any, others: dict[str, Any]) -> tuple[dict[str, Any], str]:
        return ({"model_version": name} if truth(value) else {}), ""

    return choose


def _part_of_fp8(value: Any, others: dict[str, Any]) -> tuple[dict[str, Any], str]:
    if not truth(value) or truth(others.get("fp8_base")):
        return {}, ""
    return {}, "has no effect without fp8_base"


ALWAYS: dict[str, tuple[Any, tuple[str, ...]]] = {
    "cache_latents_to_disk": (True, ("cache_latents",)),
    "cache_text_encoder_outputs_to_disk": (True, ("cache_text_encoder_outputs",)),
    "network_train_unet_only": (True, ("network_train_text_encoder_only", "train_text_encoder", "text_encoder_lr")),
    "model_prediction_type": ("raw", ()),
}
"""What is so in every training there without an option -> its value, and other options that decide about it here."""


def always_there(values: Mapping[str, Any], here: Collection[str]) -> tuple[dict[str, Any], str]:
    """Return what a command with musubi-tuner's `dit` leaves unsaid: (values to set, remark). `here`:
    names of the options that have an effect for the family."""
    missing = {
        name: value
        for name, (value, others) in ALWAYS.items()
        if name in here and values.keys().isdisjoint((name, *others))
    }
    told = [name if value is True else f"{name} = {value}" for name, value in missing.items()]
    return missing, f"turns on what is always so in musubi-tuner: {listed(told)}"


ATTENTION = "attention is always PyTorch's scaled dot-product attention"
MUSUBI: dict[str, Translator] = {
    "dit": renamed("pretrained_model_name_or_path"),
    "gradient_checkpointing_cpu_offload": renamed("cpu_offload_checkpointing"),
    "disable_numpy_memmap": renamed("disable_mmap_load_safetensors"),
    "fp8_scaled": _part_of_fp8,
    "fp8_vl": _part_of_fp8,
    "edit": _version("edit"),
    "edit_plus": _version("edit-2509"),
    "remove_first_image_from_target": _without_effect("Qwen-Image-Layered is not supported"),
    **dict.fromkeys(("flash_attn", "flash3", "sage_attn", "split_attn"), _without_effect(ATTENTION)),
    **dict.fromkeys(
        ("use_pinned_memory_for_block_swap", "block_swap_h2d_only", "block_swap_ring_size", "img_in_txt_in_offloading"),
        _without_effect("blocks_to_swap decides alone how blocks are swapped"),
    ),
    "vae_dtype": _without_effect("the VAE computes in mixed_precision, or in float32 with no_half_vae"),
    "num_layers": _without_effect("the number of blocks is read from the model's file"),
    **dict.fromkeys(("metadata_reso", "metadata_arch"), _without_effect("the metadata tell what was trained")),
    "preserve_distribution_shape": _without_effect("timesteps are scaled into min_timestep to max_timestep"),
    "num_timestep_buckets": _without_effect("timesteps are drawn independently"),
    "show_timesteps": _without_effect("timesteps are drawn while training"),
    **dict.fromkeys(
        ("dynamo_mode", "dynamo_fullgraph", "dynamo_dynamic"),
        _without_effect("set compile and the options that begin with compile_"),
    ),
}
