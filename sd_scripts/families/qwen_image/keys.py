"""Layouts of Qwen-Image's files: the VAE under ComfyUI's and diffusers' keys, sizes from tensor shapes."""

import re
from typing import Any

from sd_scripts.library.files.state_dicts import Shapes, State, count

HEAD_WIDTH = 128
"""The same for every Qwen2.5 model; shapes do not determine it."""
MROPE_SECTIONS = [16, 24, 24]
"""Rotary pairs of a head for time, row and column."""

_RENAMED = (
    (r"conv1\.", "quant_conv."),
    (r"conv2\.", "post_quant_conv."),
    (r"(encoder|decoder)\.conv1\.", r"\1.conv_in."),
    (r"(encoder|decoder)\.head\.0\.", r"\1.norm_out."),
    (r"(encoder|decoder)\.head\.2\.", r"\1.conv_out."),
    (r"(encoder|decoder)\.middle\.0\.", r"\1.mid_block.resnets.0."),
    (r"(encoder|decoder)\.middle\.1\.", r"\1.mid_block.attentions.0."),
    (r"(encoder|decoder)\.middle\.2\.", r"\1.mid_block.resnets.1."),
    (r"encoder\.downsamples\.", "encoder.down_blocks."),
)
"""Beginning of a key of a single file, as a regular expression -> the same in diffusers."""
_IN_BLOCKS = (
    (".residual.0.", ".norm1."),
    (".residual.2.", ".conv1."),
    (".residual.3.", ".norm2."),
    (".residual.6.", ".conv2."),
    (".shortcut.", ".conv_shortcut."),
)


def vae_from_single_file(file: State) -> State:
    """Rename the VAE's tensors from the keys of ComfyUI's file to diffusers'; diffusers' keys stay unchanged."""
    if "encoder.conv_in.weight" in file:
        return file
    shapes = {key: tuple(tensor.shape) for key, tensor in file.items()}
    residual_blocks = count(shapes, r"decoder\.upsamples\.\d+\.residual\.2\.weight")
    levels = 1 + count(shapes, r"decoder\.upsamples\.\d+\.resample\.1\.weight")  # the last level has none
    return {_vae_key(key, residual_blocks // levels + 1): tensor for key, tensor in file.items()}


def _vae_key(key: str, per_level: int) -> str:
    """`per_level`: entries of `upsamples` in each level, the residual blocks and what makes the image larger."""
    for pattern, ours in _RENAMED:
        renamed, found = re.subn(f"^{pattern}", ours, key)
        if found:
            key = renamed
            break
    if found_level := re.match(r"decoder\.upsamples\.(\d+)\.(.+)", key):
        level, place = divmod(int(found_level[1]), per_level)
        part = "upsamplers.0" if place == per_level - 1 else f"resnets.{place}"
        key = f"decoder.up_blocks.{level}.{part}.{found_level[2]}"
    for theirs, ours in _IN_BLOCKS:
        key = key.replace(theirs, ours)
    return key


def vae_config(shapes: Shapes) -> dict[str, Any]:
    """Return the arguments of diffusers' AutoencoderKLQwenImage, from shapes under its keys. Its statistics of the
    latents are the defaults. Raises KeyError if a needed key is missing."""
    base, channels = shapes["encoder.conv_in.weight"][:2]
    widths, residuals, temporal = [0], 0, []
    number = 0
    while True:
        block = f"encoder.down_blocks.{number}"
        if f"{block}.conv1.weight" in shapes:
            widths[-1] = shapes[f"{block}.conv1.weight"][0]
            residuals += len(widths) == 1
        elif f"{block}.resample.1.weight" in shapes:
            temporal.append(f"{block}.time_conv.weight" in shapes)
            widths.append(0)
        else:
            break
        number += 1
    return {
        "base_dim": base,
        "z_dim": shapes["post_quant_conv.weight"][0],
        "dim_mult": [width // base for width in widths],
        "num_res_blocks": residuals,
        "temperal_downsample": temporal,
        "input_channels": channels,
    }


def language_model(file: State) -> State:
    """Return the language model of Qwen2.5-VL, without vision tower and output layer, under its own names.

    transformers 5 writes it as `model.language_model.`, and `model.visual.` next to it; earlier versions wrote
    `model.`, and `visual.`, as in the official files.
    """
    inside = "model.language_model." if any(key.startswith("model.language_model.") for key in file) else "model."
    return {key.removeprefix(inside): tensor for key, tensor in file.items() if key.startswith(inside)}


def language_config(shapes: Shapes) -> dict[str, Any]:
    """Return the arguments of transformers' Qwen2_5_VLTextConfig. Raises KeyError if a needed key is missing."""
    vocabulary, width = shapes["embed_tokens.weight"]
    return {
        "vocab_size": vocabulary,
        "hidden_size": width,
        "intermediate_size": shapes["layers.0.mlp.gate_proj.weight"][0],
        "num_hidden_layers": count(shapes, r"layers\.\d+\.mlp\.gate_proj\.weight"),
        "num_attention_heads": width // HEAD_WIDTH,
        "num_key_value_heads": shapes["layers.0.self_attn.k_proj.weight"][0] // HEAD_WIDTH,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": MROPE_SECTIONS},
        "max_position_embeddings": 128_000,
        "use_cache": False,
        "bos_token_id": None,
        "eos_token_id": None,
    }
