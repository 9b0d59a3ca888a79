"""Translates flags that sd-scripts and musubi-tuner have for generating, so that their commands run here."""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sd_scripts.families.cards.family_card import FamilyCard
from sd_scripts.options.generating.generate import GENERATE
from sd_scripts.options.generating.prompt_lines import CONTROLS
from sd_scripts.options.spec import OptionGroup, Remark, declared_options, option, switch, truth
from sd_scripts.settings.compat.flags import name_of, refused, unused
from sd_scripts.settings.compat.musubi import ATTENTION, IN_DTYPE, NUM_LAYERS, SWAPPING, TILES
from sd_scripts.settings.settings import Problem

ALIASES = {
    **dict.fromkeys(("ckpt", "ckpt_path", "dit"), "pretrained_model_name_or_path"),
    **dict.fromkeys(("outdir", "output_dir", "save_path"), "image_dir"),
    **dict.fromkeys(("network_weights", "lora_weight"), "lora_weights"),
    **dict.fromkeys(("network_mul", "lora_multipliers"), "lora_multiplier"),
    **{"from_file": "prompt_file", "W": "width", "H": "height", "cfg_scale": "scale", "seed": "image_seed"},
    **dict.fromkeys(("num-images", "num_images"), "images_per_prompt"),
    **{"infer_steps": "steps", "embedded_cfg_scale": "guidance", "video_length": "frames"},
    "disable_numpy_memmap": "disable_mmap_load_safetensors",
}
"""Flag -> our option."""

WHOLE = "images are decoded whole, one at a time"
ADAPTERS = "all kinds of adapters are read unchanged"
LAYERED = "Layered models are not supported"
ALL_LAYERS = "all layers of an adapter are applied; leave it out"
SLOPE = "the shift follows from the size of the image as the model was trained; leave it out"
MASKS = "masks are not supported; leave it out"


class OtherFlags(OptionGroup, title="Flags of sd-scripts and musubi-tuner", methods=(GENERATE,)):
    """Accepted for their commands; each is replaced by another option, no longer needed, or answered with the
    remedy."""

    image_size: list[str] = option([], "Two numbers, height and width: now height and width.")
    video_size: list[str] = option([], "The same for clips.")
    guidance_scale: list[str] = option([], "One number: now scale, for families whose guidance counts from 0 there.")
    fp8: bool = name_of("quantize_base", "fp8")
    fp8_scaled: bool = name_of("quantize_base", "fp8")
    fp8_llm: bool = name_of("quantize_text_encoders", "fp8")
    fp8_t5: bool = name_of("quantize_text_encoders", "fp8")
    bf16: bool = name_of("dtype", "bf16")
    fp16: bool = name_of("dtype", "fp16")
    resize_control_to_image_size: bool = switch("Default unless control_resolution or no_resize_control is set.")
    resize_control_to_official_size: bool = name_of("control_resolution", "1024")
    edit: bool = name_of("model_version", "edit", "Old form")
    edit_plus: bool = name_of("model_version", "edit-2509", "Old form")
    num_layers: list[str] = unused(NUM_LAYERS, [])
    device: list[str] = unused("the GPU is used if there is one; CUDA_VISIBLE_DEVICES chooses among several", [])
    attn_mode: list[str] = unused(ATTENTION, [])
    xformers: bool = unused(ATTENTION)
    split_attn: bool = unused(ATTENTION)
    sdpa: bool = switch("Attention is always PyTorch's.")
    use_32bit_attention: bool = unused(IN_DTYPE)
    text_encoder_cpu: bool = unused("the text encoders compute on the GPU only if they fit there")
    offload: bool = unused("components are loaded one at a time")
    use_pinned_memory_for_block_swap: bool = unused("swapped blocks are always in pinned memory")
    block_swap_h2d_only: bool = unused(SWAPPING)
    block_swap_ring_size: list[str] = unused(SWAPPING, [])
    vae_enable_tiling: bool = unused(WHOLE)
    vae_tiling: bool = unused(TILES)
    vae_chunk_size: list[str] = unused(TILES, [])
    vae_spatial_tile_sample_min_size: list[str] = unused(TILES, [])
    bulk_decode: bool = unused("clips are always decoded as a whole")
    vae_batch_size: list[str] = unused(WHOLE, [])
    lycoris: bool = unused(ADAPTERS)
    network_module: list[str] = unused(ADAPTERS, [])
    network_merge: bool = switch("Adapters are always merged.")
    merge_lora_weights: bool = switch("Adapters are always merged.")
    append_original_name: bool = unused("images are named by time and seed; their parameters name the control images")
    no_preview: bool = switch("Scripts show no images.")
    bell: bool = switch("Scripts are silent.")
    output_layers: list[str] = unused(LAYERED, [])
    automatic_prompt_lang_for_layered: list[str] = unused(LAYERED, [])
    output_type: list[str] = refused("only images and clips are written; leave it out", [])
    latent_path: list[str] = refused("latents are neither written nor read; generate the image again with its seed", [])
    save_merged_model: list[str] = refused(
        "these scripts only generate images; merge in the tab LoRA tools or with sd_scripts/tools", []
    )
    include_patterns: list[str] = refused(ALL_LAYERS, [])
    exclude_patterns: list[str] = refused(ALL_LAYERS, [])
    flow_shift: list[str] = refused(
        "is not supported, since the shift follows from the size of the image; leave it out", []
    )
    mu: list[str] = refused("is not supported, since the shift follows from the size of the image; leave it out", [])
    y1: list[str] = refused(SLOPE, [])
    y2: list[str] = refused(SLOPE, [])
    interactive: bool = refused("is not supported; use the tab Generate, or --resident")
    force_v2_1_time_embedding: bool = unused("all frames of a clip share one timestep anyway")
    lazy_loading: bool = unused("components are loaded one at a time")
    vae_dtype: list[str] = unused("the VAE computes in dtype, or in float32 with no_half_vae", [])
    vae_cache_cpu: bool = unused("the VAE keeps the frames that it needs on its device")
    cpu_noise: bool = switch("Noise always comes from the CPU.")
    fp8_fast: bool = unused("weights in fp8 multiply in dtype")
    ckpt_dir: list[str] = refused("name the files instead: dit, t5, vae", [])
    video_path: list[str] = refused("clips are not changed into others; leave it out", [])
    one_frame_inference: list[str] = refused("is not supported; leave it out", [])
    trim_tail_frames: list[str] = refused("clips are not trimmed; set fewer frames", [])
    compile_args: list[str] = refused("set compile and the options that begin with compile_", [])
    control_image_mask_path: list[str] = refused(MASKS, [])
    mask_path: list[str] = refused(MASKS, [])
    rcm_threshold: list[str] = refused(MASKS, [])
    rcm_relative_threshold: bool = refused(MASKS)
    rcm_kernel_size: list[str] = refused(MASKS, [])
    rcm_dilate_size: list[str] = refused(MASKS, [])
    rcm_debug_save: bool = refused(MASKS)


DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "float": "fp32"}
"""Names of precisions there -> here."""
WITH_STRENGTH = re.compile(r"(.+);(-?[0-9]*\.?[0-9]+)")
"""A file in lora_weights with its strength."""


@dataclass
class Translated:
    """Flags under our names."""

    values: dict[str, Any]
    remarks: list[Remark] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


def alias_of(name: str, card: FamilyCard) -> str | None:
    """Return the option that a flag of another program means; None if it has no equivalent, or the same name."""
    if name == "guidance_scale":  # without an embedded guidance it is the guidance of two predictions
        return "guidance" if card.has("guidance") else "scale" if card.no_guidance == 1 else None
    return ALIASES.get(name)


def translate(flags: Mapping[str, Any], card: FamilyCard) -> Translated:
    """Replace the flags of OtherFlags."""
    others = {o.name: o for o in declared_options(OtherFlags)}
    made = Translated(_as_here({name: value for name, value in flags.items() if name not in others}))
    for name, value in flags.items():
        if name in made.values or truth(value) is False:
            continue
        flag = others[name]
        if name in ("image_size", "video_size"):
            _set_size(name, value, made)
        elif name == "guidance_scale":
            _set_number(name, "scale", value, lambda guidance: guidance + 1 - card.no_guidance, made)
        elif name == "flow_shift" and card.has("flow_shift"):
            made.values = {"shift": value[0], **made.values} if value else made.values
        elif name == "mu" and card.has("flow_shift"):
            _set_number(name, "shift", value, math.exp, made)
        elif flag.not_yet:
            made.remarks.append(Remark(name, f"has no effect: {flag.not_yet}"))
        elif name == "output_type" and value == ["video" if card.has("clips") else "images"]:
            continue
        elif flag.refused:
            made.problems.append(Problem((name,), flag.refused))
        elif name == "resize_control_to_official_size" and not card.has(CONTROLS.needs):
            made.remarks.append(Remark(name, f"has no effect for {card.title}"))
        else:
            made.values = {**flag.stands_for, **made.values}
    return made


def _as_here(values: dict[str, Any]) -> dict[str, Any]:
    """Return values converted to the form they have here: precisions, and `file;strength`."""
    found = [WITH_STRENGTH.fullmatch(file) for file in values.get("lora_weights", ())]
    if any(found) and "lora_multiplier" not in values:
        files = [match[1] if match else file for match, file in zip(found, values["lora_weights"], strict=True)]
        values |= {"lora_weights": files, "lora_multiplier": [match[2] if match else "1" for match in found]}
    if values.get("dtype") in DTYPES:
        values["dtype"] = DTYPES[values["dtype"]]
    return values


def _set_number(name: str, ours: str, words: list[str], convert: Callable[[float], float], made: Translated) -> None:
    """Set our option from the number that a flag of another program gives."""
    try:
        made.values = {ours: f"{convert(float(words[0])):.6g}", **made.values}
    except (IndexError, ValueError, OverflowError):
        made.problems.append(Problem((name,), "needs one number"))


def _set_size(name: str, words: list[str], made: Translated) -> None:
    if len(words) != 2:
        made.problems.append(Problem((name,), "needs two numbers, height and width"))
        return
    made.values = {"height": words[0], "width": words[1], **made.values}
