"""Translates flags that sd-scripts and musubi-tuner have for generating, so that their commands run here."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sd_scripts.families.cards.family_card import FamilyCard
from sd_scripts.options.generating.generate import GENERATE
from sd_scripts.options.generating.prompt_lines import CONTROLS
from sd_scripts.options.spec import OptionGroup, Remark, option, switch, truth
from sd_scripts.settings.compat.musubi import ATTENTION
from sd_scripts.settings.family_options import each_option
from sd_scripts.settings.settings import Problem

ALIASES = {
    **dict.fromkeys(("ckpt", "ckpt_path", "dit"), "pretrained_model_name_or_path"),
    **dict.fromkeys(("outdir", "output_dir", "save_path"), "image_dir"),
    **dict.fromkeys(("network_weights", "lora_weight"), "lora_weights"),
    **dict.fromkeys(("network_mul", "lora_multipliers"), "lora_multiplier"),
    **{"from_file": "prompt_file", "W": "width", "H": "height", "cfg_scale": "scale", "seed": "image_seed"},
    **{"infer_steps": "steps", "embedded_cfg_scale": "guidance"},
    "disable_numpy_memmap": "disable_mmap_load_safetensors",
}
"""Flag -> our option."""


class OtherFlags(OptionGroup, title="Flags of sd-scripts and musubi-tuner", methods=(GENERATE,)):
    """Accepted for their commands; each is replaced by another option, needed no more, or answered with what to do."""

    image_size: list[str] = option([], "Two numbers, height and width: now height and width.")
    fp8: bool = switch("Name of quantize_base = fp8.")
    fp8_scaled: bool = switch("Name of quantize_base = fp8.")
    fp8_t5: bool = switch("Name of quantize_text_encoders = fp8.")
    bf16: bool = switch("Name of dtype = bf16.")
    fp16: bool = switch("Name of dtype = fp16.")
    resize_control_to_image_size: bool = switch("This is so unless control_resolution or no_resize_control is set.")
    resize_control_to_official_size: bool = switch("Name of control_resolution = 1024.")
    edit: bool = switch("Old form of model_version = edit.")
    edit_plus: bool = switch("Old form of model_version = edit-2509.")
    num_layers: list[str] = option([], "The number of blocks is read from the file.")
    device: list[str] = option([], "The GPU is used if there is one.")
    attn_mode: list[str] = option([], "Attention is always PyTorch's.")
    xformers: bool = switch("Attention is always PyTorch's.")
    sdpa: bool = switch("Attention is always PyTorch's.")
    text_encoder_cpu: bool = switch("Text encoders compute on the GPU only if they fit there.")
    offload: bool = switch("Components are loaded one after the other.")
    use_pinned_memory_for_block_swap: bool = switch("Swapped blocks are always in pinned memory.")
    vae_enable_tiling: bool = switch("Images are decoded whole, one after the other.")
    vae_batch_size: list[str] = option([], "Images are decoded whole, one after the other.")
    lycoris: bool = switch("All kinds of adapters are read as they are.")
    network_module: list[str] = option([], "All kinds of adapters are read as they are.")
    network_merge: bool = switch("Adapters are always merged.")
    merge_lora_weights: bool = switch("Adapters are always merged.")
    append_original_name: bool = switch("Images are named by time and seed.")
    no_preview: bool = switch("Scripts show no images.")
    bell: bool = switch("Scripts are silent.")
    output_layers: list[str] = option([], "Only for Layered models, which are not supported.")
    automatic_prompt_lang_for_layered: list[str] = option([], "Only for Layered models, which are not supported.")
    output_type: list[str] = option([], "Only images are written.")
    latent_path: list[str] = option([], "Only images are written.")
    save_merged_model: list[str] = option([], "A tool merges.")
    include_patterns: list[str] = option([], "All layers of an adapter are applied.")
    exclude_patterns: list[str] = option([], "All layers of an adapter are applied.")
    flow_shift: list[str] = option([], "The shift follows from the size of the image.")
    interactive: bool = switch("The page, or a resident process, keeps the model.")
    mask_path: list[str] = option([], "Masks are not supported.")
    rcm_threshold: list[str] = option([], "Masks are not supported.")
    rcm_relative_threshold: bool = switch("Masks are not supported.")
    rcm_kernel_size: list[str] = option([], "Masks are not supported.")
    rcm_dilate_size: list[str] = option([], "Masks are not supported.")
    rcm_debug_save: bool = switch("Masks are not supported.")


VALUES: Mapping[str, Mapping[str, Any]] = {
    "fp8": {"quantize_base": "fp8"},
    "fp8_scaled": {"quantize_base": "fp8"},
    "fp8_t5": {"quantize_text_encoders": "fp8"},
    "bf16": {"dtype": "bf16"},
    "fp16": {"dtype": "fp16"},
    "edit": {"model_version": "edit"},
    "edit_plus": {"model_version": "edit-2509"},
    "resize_control_to_official_size": {"control_resolution": "1024"},
}
"""Switch -> values that it stands for."""
DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "float": "fp32"}
"""Names of precisions there -> here."""
WITH_STRENGTH = re.compile(r"(.+);(-?[0-9]*\.?[0-9]+)")
"""A file in lora_weights with its strength."""
SILENT = ("resize_control_to_image_size", "sdpa", "network_merge", "merge_lora_weights", "no_preview", "bell")
"""What is so anyway."""
NO_EFFECT: Mapping[str, str] = {
    "num_layers": "the number of blocks is read from the model's file",
    "device": "the GPU is used if there is one; CUDA_VISIBLE_DEVICES chooses among several",
    **dict.fromkeys(("attn_mode", "xformers"), ATTENTION),
    "text_encoder_cpu": "the text encoders compute on the GPU only if they fit there",
    "offload": "components are loaded one after the other",
    "use_pinned_memory_for_block_swap": "swapped blocks are always in pinned memory",
    **dict.fromkeys(("vae_enable_tiling", "vae_batch_size"), "images are decoded whole, one after the other"),
    **dict.fromkeys(("lycoris", "network_module"), "all kinds of adapters are read as they are"),
    "append_original_name": "images are named by time and seed; their parameters name the control images",
    **dict.fromkeys(("output_layers", "automatic_prompt_lang_for_layered"), "Layered models are not supported"),
}
"""Flag -> why it has no effect."""
REFUSED: Mapping[str, str] = {
    "output_type": "only images are written; leave it out",
    "latent_path": "latents are neither written nor read; generate the image again with its seed",
    "save_merged_model": "images only are made here; merge in the tab LoRA tools or with sd_scripts/tools",
    **dict.fromkeys(("include_patterns", "exclude_patterns"), "all layers of an adapter are applied; leave it out"),
    "flow_shift": "is not supported, since the shift follows from the size of the image; leave it out",
    "interactive": "is not supported; use the tab Generate, or --resident",
    **dict.fromkeys(
        (
            *("mask_path", "rcm_threshold", "rcm_relative_threshold", "rcm_kernel_size", "rcm_dilate_size"),
            "rcm_debug_save",
        ),
        "masks are not supported; leave it out",
    ),
}
"""Flag -> what to do, since the images would be others without it."""


@dataclass
class Translated:
    """Flags under our names."""

    values: dict[str, Any]
    remarks: list[Remark] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


def alias_of(name: str, card: FamilyCard) -> str | None:
    """Return the option that a flag of another program means; None if it is none, or has the same name."""
    if name == "guidance_scale":  # of a model without an embedded guidance it is that of two predictions
        return "guidance" if card.has("guidance") else "scale"
    return ALIASES.get(name)


def translate(flags: Mapping[str, Any], card: FamilyCard) -> Translated:
    """Replace the flags of OtherFlags."""
    other = {o.name for o in each_option(OtherFlags)}
    made = Translated(_as_here({name: value for name, value in flags.items() if name not in other}))
    for name, value in flags.items():
        if name in made.values or name in SILENT or truth(value) is False:
            continue
        if name == "image_size":
            _set_size(value, made)
        elif name in NO_EFFECT:
            made.remarks.append(Remark(name, f"has no effect: {NO_EFFECT[name]}"))
        elif name == "output_type" and value == ["images"]:
            continue
        elif name in REFUSED:
            made.problems.append(Problem((name,), REFUSED[name]))
        elif name == "resize_control_to_official_size" and not card.has(CONTROLS.needs):
            made.remarks.append(Remark(name, f"has no effect for {card.title}"))
        else:
            made.values = {**VALUES[name], **made.values}
    return made


def _as_here(values: dict[str, Any]) -> dict[str, Any]:
    """Return values that have other forms there as they are here: precisions, and `file;strength`."""
    found = [WITH_STRENGTH.fullmatch(file) for file in values.get("lora_weights", ())]
    if any(found) and "lora_multiplier" not in values:
        files = [match[1] if match else file for match, file in zip(found, values["lora_weights"], strict=True)]
        values |= {"lora_weights": files, "lora_multiplier": [match[2] if match else "1" for match in found]}
    if values.get("dtype") in DTYPES:
        values["dtype"] = DTYPES[values["dtype"]]
    return values


def _set_size(words: list[str], made: Translated) -> None:
    if len(words) != 2:
        made.problems.append(Problem(("image_size",), "needs two numbers, height and width"))
        return
    made.values = {"height": words[0], "width": words[1], **made.values}
