"""SDXL's single-file layout (SGM): its keys, and model configurations from tensor shapes.

Keys are translated in one direction only, from the names of diffusers and transformers to the file's, both for
reading and for writing, so that there is one table. Keys are without prefix, `names` below are a module's state-dict
keys; every function works at any width and depth.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor

from sd_scripts.library.files.ldm_layout import HEAD_WIDTH, clip_sizes, replace_start
from sd_scripts.library.files.state_dicts import Shapes, State, count, take

LOGIT_SCALE = "conditioner.embedders.1.model.logit_scale"
"""CLIP's temperature: training does not use it, but a complete checkpoint contains it."""

VAE_SCALE = 0.13025
LAYERS_PER_BLOCK = 2
"""Resnets in a down block of SDXL and all models of its architecture."""

_UNET_ENDS = {
    "time_embedding.linear_1": "time_embed.0",
    "time_embedding.linear_2": "time_embed.2",
    "add_embedding.linear_1": "label_emb.0.0",
    "add_embedding.linear_2": "label_emb.0.2",
    "conv_in": "input_blocks.0.0",
    "conv_norm_out": "out.0",
    "conv_out": "out.2",
    "mid_block.resnets.0": "middle_block.0",
    "mid_block.attentions.0": "middle_block.1",
    "mid_block.resnets.1": "middle_block.2",
}
_UNET_RESNET = {
    "norm1": "in_layers.0",
    "conv1": "in_layers.2",
    "time_emb_proj": "emb_layers.1",
    "norm2": "out_layers.0",
    "conv2": "out_layers.3",
    "conv_shortcut": "skip_connection",
}
_OPEN_CLIP = {
    "text_model.embeddings.token_embedding": "token_embedding",
    "text_model.embeddings.position_embedding.weight": "positional_embedding",
    "text_model.final_layer_norm": "ln_final",
    "text_model.encoder.layers": "transformer.resblocks",
    "text_projection.weight": "text_projection",
    "layer_norm1": "ln_1",
    "layer_norm2": "ln_2",
    "mlp.fc1": "mlp.c_fc",
    "mlp.fc2": "mlp.c_proj",
    "self_attn.out_proj": "attn.out_proj",
}
_QKV = re.compile(r"self_attn\.([qkv])_proj\.(weight|bias)$")


def unet_key(name: str) -> str:
    """`down_blocks.1.attentions.0.norm.weight` -> `input_blocks.4.1.norm.weight`. Takes module paths as well."""
    block = re.match(r"(down|up)_blocks\.(\d+)\.(resnets|attentions|downsamplers|upsamplers)\.(\d+)\.?(.*)", name)
    if not block:
        name = replace_start(name, _UNET_ENDS)
        head = re.match(r"(middle_block\.[02])\.(.*)", name)
        return f"{head[1]}.{replace_start(head[2], _UNET_RESNET)}" if head else name
    side, level, kind, index, rest = block[1], int(block[2]), block[3], int(block[4]), block[5]
    if side == "down":
        first = 1 + level * (LAYERS_PER_BLOCK + 1)  # block 0 is conv_in; each level ends with its downsampler
        if kind == "downsamplers":
            return f"input_blocks.{first + LAYERS_PER_BLOCK}.0.{rest.replace('conv', 'op', 1)}"
        place = f"input_blocks.{first + index}"
    else:
        first = level * (LAYERS_PER_BLOCK + 1)
        if kind == "upsamplers":  # shares a place with the level's last resnet and its attention
            return f"output_blocks.{first + LAYERS_PER_BLOCK}.2.{rest}"
        place = f"output_blocks.{first + index}"
    if kind == "attentions":
        return f"{place}.1.{rest}".rstrip(".")
    return f"{place}.0.{replace_start(rest, _UNET_RESNET)}".rstrip(".")


def text_encoder1_key(name: str) -> str:
    """transformers 5 dropped the prefix `text_model.` from CLIPTextModel; files and LoRA names have it."""
    return f"text_model.{name}"


def text_encoder2_key(name: str) -> str:
    """Return OpenCLIP's key for a name of transformers. An attention's three projections share `attn.in_proj_*`."""
    name = _QKV.sub(r"attn.in_proj_\2", name)
    for ours, theirs in _OPEN_CLIP.items():
        name = name.replace(ours, theirs)
    return name


def lora_unet_name(path: str) -> str:
    """Return a LoRA file's name for a module path in the U-Net, without the dot and what follows."""
    return "lora_unet_" + unet_key(path).replace(".", "_")


def lora_text_encoder_name(index: int, path: str) -> str:
    """Return a LoRA file's name for a module path in text encoder 0 or 1: `lora_te1_text_model_encoder_layers_0_...`"""
    full = text_encoder1_key(path) if index == 0 else path
    return f"lora_te{index + 1}_{full.replace('.', '_')}"


def read_unet(file: State, names: Iterable[str]) -> State:
    """Return the U-Net's tensors by name. A name whose key is not in the file is left out."""
    return take(file, {name: unet_key(name) for name in names})


def write_unet(state: State) -> State:
    """Return the U-Net's tensors by the file's keys."""
    return {unet_key(name): tensor for name, tensor in state.items()}


def read_text_encoder2(file: State, names: Iterable[str]) -> State:
    """Return the tensors by name. OpenCLIP stacks q, k and v in one matrix and multiplies by text_projection from the
    right."""
    state = take(file, {name: text_encoder2_key(name) for name in names})
    for name in state:
        if part := _QKV.search(name):
            state[name] = state[name].chunk(3)["qkv".index(part[1])]
        elif name == "text_projection.weight":
            state[name] = state[name].T.contiguous()
    return state


def write_text_encoder2(state: State) -> State:
    """Return the tensors by the file's keys."""
    file = {}
    for name, tensor in state.items():
        part = _QKV.search(name)
        if part and part[1] == "q":
            tensor = _stacked([state[_QKV.sub(rf"self_attn.{letter}_proj.\2", name)] for letter in "qkv"])
        elif name == "text_projection.weight":
            tensor = tensor.T.contiguous()
        if not part or part[1] == "q":
            file[text_encoder2_key(name)] = tensor
    return file


def _stacked(parts: Sequence[Tensor]) -> Tensor:
    """Return parts of one shape as one tensor, as torch.cat does; that would import PyTorch's compiler where they are
    on the meta device."""
    stacked = parts[0].new_empty(len(parts), *parts[0].shape)
    for place, part in zip(stacked, parts, strict=True):
        place.copy_(part)
    return stacked.flatten(0, 1)


def unet_config(shapes: Shapes) -> dict[str, Any]:
    """Return the arguments of diffusers' UNet2DConditionModel, from the shapes in a file."""
    per_level = LAYERS_PER_BLOCK + 1
    levels = count(shapes, r"input_blocks\.(\d+)\.0\.op\.weight") + 1
    starts = [f"input_blocks.{1 + level * per_level}." for level in range(levels)]
    widths = tuple(shapes[f"{start}0.out_layers.3.weight"][0] for start in starts)
    depths = [count(shapes, re.escape(start) + r"1\.transformer_blocks\.(\d+)\.norm1\.weight") for start in starts]
    return {
        "sample_size": 128,
        "in_channels": shapes["input_blocks.0.0.weight"][1],
        "out_channels": shapes["out.2.weight"][0],
        "block_out_channels": widths,
        "layers_per_block": LAYERS_PER_BLOCK,
        "down_block_types": tuple("CrossAttnDownBlock2D" if depth else "DownBlock2D" for depth in depths),
        "up_block_types": tuple("CrossAttnUpBlock2D" if depth else "UpBlock2D" for depth in reversed(depths)),
        "transformer_layers_per_block": tuple(max(depth, 1) for depth in depths),
        "attention_head_dim": tuple(max(width // HEAD_WIDTH, 1) for width in widths),
        "cross_attention_dim": shapes["middle_block.1.transformer_blocks.0.attn2.to_k.weight"][1],
        "use_linear_projection": len(shapes["middle_block.1.proj_in.weight"]) == 2,
        "addition_embed_type": "text_time",
        "addition_time_embed_dim": 256,
        "projection_class_embeddings_input_dim": shapes["label_emb.0.0.weight"][1],
    }


def text_encoder2_config(shapes: Shapes) -> dict[str, Any]:
    """Return the arguments of transformers' CLIPTextConfig for the second encoder (OpenCLIP bigG)."""
    vocabulary, width = shapes["token_embedding.weight"]
    return {
        **clip_sizes(vocabulary, width),
        "intermediate_size": shapes["transformer.resblocks.0.mlp.c_fc.weight"][0],
        "num_hidden_layers": count(shapes, r"transformer\.resblocks\.(\d+)\.mlp\.c_fc\.weight"),
        "max_position_embeddings": shapes["positional_embedding"][0],
        "projection_dim": shapes["text_projection"][1],
        "hidden_act": "gelu",
    }
