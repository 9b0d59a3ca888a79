"""Translates option names of musubi-tuner that differ from sd-scripts' on reading, so that its commands run here."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

from sd_scripts.formats.words import listed
from sd_scripts.options.spec import Option, OptionGroup, declared_options, optional, switch, truth
from sd_scripts.settings.compat.flags import name_of, unused

Translator = Callable[[Any, dict[str, Any]], tuple[dict[str, Any], str]]
"""(value, the other settings) -> (values to set, remark)."""

ATTENTION = "attention is always PyTorch's scaled dot-product attention"
IN_DTYPE = "attention computes in the dtype of the transformer"
SWAPPING = "only blocks_to_swap decides how blocks are swapped"
NUM_LAYERS = "the number of blocks is read from the model's file"
METADATA = "the metadata shows what was trained"
TILES = "large and long clips are encoded and decoded in tiles without it"
TURBO_CACHE = "the weights of sample_model always wait in RAM between samples"
COMPILE = "set compile and the options that begin with compile_"


class MusubiOptions(OptionGroup, title="Names of musubi-tuner"):
    """Accepted for its commands; each is replaced by another option, or no longer needed."""

    dit: str | None = optional("Name of pretrained_model_name_or_path.")
    gradient_checkpointing_cpu_offload: bool = switch("Name of cpu_offload_checkpointing.")
    disable_numpy_memmap: bool = switch("Name of disable_mmap_load_safetensors.")
    fp8_scaled: bool = switch("Part of fp8_base.")
    fp8_vl: bool = switch("Part of fp8_base.")
    fp8_llm: bool = switch("Part of fp8_base.")
    edit: bool = name_of("model_version", "edit", "Old form")
    edit_plus: bool = name_of("model_version", "edit-2509", "Old form")
    remove_first_image_from_target: bool = unused("Qwen-Image-Layered is not supported")
    flash_attn: bool = unused(ATTENTION)
    flash3: bool = unused(ATTENTION)
    sage_attn: bool = unused(ATTENTION)
    split_attn: bool = unused(ATTENTION)
    use_32bit_attention: bool = unused(IN_DTYPE)
    attn_mode: str | None = unused(ATTENTION, None)
    use_pinned_memory_for_block_swap: bool = unused(SWAPPING)
    block_swap_h2d_only: bool = unused(SWAPPING)
    block_swap_ring_size: int | None = unused(SWAPPING, None, within=(1, 100))
    img_in_txt_in_offloading: bool = unused(SWAPPING)
    vae_dtype: str | None = unused("the VAE computes in mixed_precision, or in float32 with no_half_vae", None)
    dit_dtype: str | None = unused("the transformer computes in mixed_precision", None)
    text_encoder_dtype: str | None = unused("text encoders compute in mixed_precision", None)
    vae_tiling: bool = unused(TILES)
    vae_chunk_size: int | None = unused(TILES, None, within=(1, 100_000))
    vae_spatial_tile_sample_min_size: int | None = unused(TILES, None, within=(1, 100_000))
    dit_in_channels: int | None = unused("the input channels are read from the model's file", None, within=(1, 1000))
    latent_window_size: int | None = unused("sections have 9 latent frames", None, within=(1, 1000))
    one_frame: bool = unused("images are always trained as single frames")
    bulk_decode: bool = unused("clips are always decoded as a whole")
    num_layers: int | None = unused(NUM_LAYERS, None, within=(1, 1000))
    metadata_reso: str | None = unused(METADATA, None)
    metadata_arch: str | None = unused(METADATA, None)
    turbo_dit: str | None = optional("Name of sample_model.")
    turbo_dit_cache: bool = unused(TURBO_CACHE)
    num_timestep_buckets: int | None = unused("timesteps are drawn independently", None, within=(0, 10_000))
    fp8_text_encoder: bool = name_of("quantize_text_encoders", "fp8")
    fp8_t5: bool = name_of("quantize_text_encoders", "fp8")
    vae_cache_cpu: bool = unused("the VAE keeps the frames that it needs on its device")
    force_v2_1_time_embedding: bool = unused("all frames of a clip share one timestep anyway")
    show_timesteps: str | None = unused("timesteps are drawn while training", None)
    dynamo_mode: str | None = unused(COMPILE, None)
    dynamo_fullgraph: bool = unused(COMPILE)
    dynamo_dynamic: bool = unused(COMPILE)


def renamed(new_name: str) -> Translator:
    """Return a reading that gives an option its name here."""

    def rename(value: Any, others: dict[str, Any]) -> tuple[dict[str, Any], str]:
        return ({} if new_name in others else {new_name: value}), f"is called {new_name} here"

    return rename


def _translator_of(flag: Option) -> Translator:
    """Return the replacement of a flag that stands for values of other options, or has no effect."""

    def replace(value: Any, others: dict[str, Any]) -> tuple[dict[str, Any], str]:
        if value is None or truth(value) is False:
            return {}, ""
        if flag.not_yet:
            return {}, f"has no effect: {flag.not_yet}"
        return (dict(flag.stands_for) if truth(value) else {}), ""

    return replace


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
"""Settings that always apply there without an option -> the value, and other options that decide about it here."""


def always_there(values: Mapping[str, Any], here: Collection[str]) -> tuple[dict[str, Any], str]:
    """Return the implied settings of a command with musubi-tuner's `dit`: (values to set, remark). `here`:
    names of the options that have an effect for the family."""
    missing = {
        name: value
        for name, (value, others) in ALWAYS.items()
        if name in here and values.keys().isdisjoint((name, *others))
    }
    told = [name if value is True else f"{name} = {value}" for name, value in missing.items()]
    return missing, f"turns on what musubi-tuner always does: {listed(told)}"


RENAMED = {
    "dit": "pretrained_model_name_or_path",
    "gradient_checkpointing_cpu_offload": "cpu_offload_checkpointing",
    "disable_numpy_memmap": "disable_mmap_load_safetensors",
    "turbo_dit": "sample_model",
}
"""Name in musubi-tuner -> our option."""
PARTS_OF_FP8 = ("fp8_scaled", "fp8_vl", "fp8_llm")

MUSUBI: dict[str, Translator] = {
    **{name: renamed(ours) for name, ours in RENAMED.items()},
    **dict.fromkeys(PARTS_OF_FP8, _part_of_fp8),
    **{o.name: _translator_of(o) for o in declared_options(MusubiOptions) if o.not_yet or o.stands_for},
}

DECIDED_BY: dict[str, str] = {
    **RENAMED,
    **dict.fromkeys(PARTS_OF_FP8, "fp8_base"),
    **{o.name: ours for o in declared_options(MusubiOptions) for ours in o.stands_for},
}
"""Name in musubi-tuner -> our option that decides about the same; a name without effect here has none."""
