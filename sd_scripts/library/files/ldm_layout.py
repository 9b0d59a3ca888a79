"""The single-file layout of latent diffusion models that families share: autoencoder and CLIP text encoder.

Keys are without prefix, `names` below are a module's state-dict keys; every function works at any width and depth.
"""

import re
from collections.abc import Iterable
from typing import Any

from sd_scripts.library.files.state_dicts import Shapes, State, count, take

HEAD_WIDTH = 64
"""Channels of an attention head in U-Nets and CLIP, the only size that shapes do not determine."""

_VAE_ATTENTION = {"group_norm": "norm", "to_q": "q", "to_k": "k", "to_v": "v", "to_out.0": "proj_out"}
_VAE_PARTS = {"conv_shortcut": "nin_shortcut", "conv_norm_out": "norm_out"}


def vae_key(name: str, levels: int) -> str:
    """`encoder.down_blocks.0.resnets.1.conv1.bias` -> `encoder.down.0.block.1.conv1.bias`."""
    if block := re.match(r"(en|de)coder\.(down|up)_blocks\.(\d+)\.(.*)", name):
        # the file counts up blocks backwards
        level = int(block[3]) if block[2] == "down" else levels - 1 - int(block[3])
        rest = re.sub(r"resnets\.(\d+)", r"block.\1", block[4])
        rest = re.sub(r"(down|up)samplers\.0", r"\1sample", rest)
        name = f"{block[1]}coder.{block[2]}.{level}.{rest}"
    name = re.sub(r"mid_block\.resnets\.(\d+)", lambda found: f"mid.block_{int(found[1]) + 1}", name)
    if middle := re.match(r"(.*)mid_block\.attentions\.0\.(.*)", name):
        return f"{middle[1]}mid.attn_1.{replace_start(middle[2], _VAE_ATTENTION)}"
    for ours, theirs in _VAE_PARTS.items():
        name = name.replace(ours, theirs)
    return name


def read_vae(file: State, names: Iterable[str]) -> State:
    """Return the autoencoder's tensors. In the file, the attention's linear layers are 1x1 convolutions."""
    names = list(names)
    levels = vae_levels(names)
    state = take(file, {name: vae_key(name, levels) for name in names})
    return {
        name: tensor.flatten(1) if _is_vae_linear(name) and tensor.ndim == 4 else tensor
        for name, tensor in state.items()
    }


def vae_from_diffusers(state: State) -> State:
    """Return a VAE's tensors under the file's keys, without prefix, from those under diffusers' names."""
    levels = vae_levels(state)
    return {
        vae_key(name, levels): tensor[:, :, None, None] if _is_vae_linear(name) and tensor.ndim == 2 else tensor
        for name, tensor in state.items()
    }


def vae_levels(names: Iterable[str]) -> int:
    """Return the number of down blocks."""
    return len({found[0] for name in names if (found := re.match(r"encoder\.down_blocks\.\d+", name))})


def vae_config(shapes: Shapes) -> dict[str, Any]:
    """Return the arguments of diffusers' AutoencoderKL, except its scaling factor, from a file's shapes."""
    levels = count(shapes, r"encoder\.down\.(\d+)\.block\.0\.conv1\.weight")
    widths = tuple(shapes[f"encoder.down.{level}.block.0.conv1.weight"][0] for level in range(levels))
    return {
        "sample_size": 1024,
        "in_channels": shapes["encoder.conv_in.weight"][1],
        "out_channels": shapes["decoder.conv_out.weight"][0],
        "block_out_channels": widths,
        "layers_per_block": count(shapes, r"encoder\.down\.0\.block\.(\d+)\.conv1\.weight"),
        "down_block_types": ("DownEncoderBlock2D",) * levels,
        "up_block_types": ("UpDecoderBlock2D",) * levels,
        "latent_channels": shapes["decoder.conv_in.weight"][1],
    }


def clip_config(shapes: Shapes) -> dict[str, Any]:
    """Return the arguments of transformers' CLIPTextConfig for CLIP-L, from a file's shapes."""
    vocabulary, width = shapes["embeddings.token_embedding.weight"]
    return {
        **clip_sizes(vocabulary, width),
        "intermediate_size": shapes["encoder.layers.0.mlp.fc1.weight"][0],
        "num_hidden_layers": count(shapes, r"encoder\.layers\.(\d+)\.mlp\.fc1\.weight"),
        "max_position_embeddings": shapes["embeddings.position_embedding.weight"][0],
        "projection_dim": width,
        "hidden_act": "quick_gelu",
    }


def clip_sizes(vocabulary: int, width: int) -> dict[str, Any]:
    """Return the arguments that both CLIP text encoders have. CLIP's vocabulary ends with its start and end tokens."""
    heads = max(width // HEAD_WIDTH, 1)
    ends = {"bos_token_id": vocabulary - 2, "eos_token_id": vocabulary - 1, "pad_token_id": vocabulary - 1}
    return {"vocab_size": vocabulary, "hidden_size": width, "num_attention_heads": heads, **ends}


def replace_start(name: str, table: dict[str, str]) -> str:
    """Replace the beginning of a dotted name by the table."""
    for ours, theirs in table.items():
        if name == ours or name.startswith(ours + "."):
            return theirs + name[len(ours) :]
    return name


def _is_vae_linear(name: str) -> bool:
    return bool(re.search(r"mid_block\.attentions\.0\.to_.*weight$", name))
