"""SDXL's single-file layout (SGM): its keys, and what tensor shapes tell about the model. Speaks in state dicts.

Keys are translated in one direction, from the names of diffusers and transformers to those of the file; reading a file
asks for the names that a module wants, writing one gives all names. So no second table can disagree with the first.
`names` below are a module's state-dict keys; every function works at any width and depth.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

State = dict[str, Tensor]
Shapes = Mapping[str, tuple[int, ...]]

UNET_PREFIX = "model.diffusion_model."
TEXT_ENCODER1_PREFIX = "conditioner.embedders.0.transformer."
TEXT_ENCODER2_PREFIX = "conditioner.embedders.1.model."
VAE_PREFIX = "first_stage_model."
LOGIT_SCALE = TEXT_ENCODER2_PREFIX + "logit_scale"
"""CLIP's temperature: training images does not use it, but a whole checkpoint has it."""

VAE_SCALE = 0.13025
HEAD_WIDTH = 64
"""Channels of one attention head, in the U-Net and both text encoders; the one number no shape tells."""
LAYERS_PER_BLOCK = 2
"""Resnets in a down block of SDXL and of all its cousins."""

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
_VAE_ATTENTION = {"group_norm": "norm", "to_q": "q", "to_k": "k", "to_v": "v", "to_out.0": "proj_out"}
_VAE_PARTS = {"conv_shortcut": "nin_shortcut", "conv_norm_out": "norm_out"}
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
        name = _replace_start(name, _UNET_ENDS)
        head = re.match(r"(middle_block\.[02])\.(.*)", name)
        return f"{head[1]}.{_replace_start(head[2], _UNET_RESNET)}" if head else name
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
    return f"{place}.0.{_replace_start(rest, _UNET_RESNET)}".rstrip(".")


def vae_key(name: str, levels: int) -> str:
    """`encoder.down_blocks.0.resnets.1.conv1.bias` -> `encoder.down.0.block.1.conv1.bias`."""
    if block := re.match(r"(en|de)coder\.(down|up)_blocks\.(\d+)\.(.*)", name):
        level = (
            int(block[3]) if block[2] == "down" else levels - 1 - int(block[3])
        )  # the file counts up blocks backwards
        rest = re.sub(r"resnets\.(\d+)", r"block.\1", block[4])
        rest = re.sub(r"(down|up)samplers\.0", r"\1sample", rest)
        name = f"{block[1]}coder.{block[2]}.{level}.{rest}"
    name = re.sub(r"mid_block\.resnets\.(\d+)", lambda found: f"mid.block_{int(found[1]) + 1}", name)
    if middle := re.match(r"(.*)mid_block\.attentions\.0\.(.*)", name):
        return f"{middle[1]}mid.attn_1.{_replace_start(middle[2], _VAE_ATTENTION)}"
    for ours, theirs in _VAE_PARTS.items():
        name = name.replace(ours, theirs)
    return name


def text_encoder1_key(name: str) -> str:
    """transformers 5 dropped the prefix `text_model.` from CLIPTextModel; files and LoRA names have it."""
    return f"text_model.{name}"


def text_encoder2_key(name: str) -> str:
    """Transformers' name -> OpenCLIP's. The three projections of an attention share one key, `attn.in_proj_*`."""
    name = _QKV.sub(r"attn.in_proj_\2", name)
    for ours, theirs in _OPEN_CLIP.items():
        name = name.replace(ours, theirs)
    return name


def lora_unet_name(path: str) -> str:
    """Module path in the U-Net -> its name in a LoRA file, without the dot and what follows."""
    return "lora_unet_" + unet_key(path).replace(".", "_")


def lora_text_encoder_name(index: int, path: str) -> str:
    """Module path in text encoder 0 or 1 -> its name in a LoRA file: `lora_te1_text_model_encoder_layers_0_...`."""
    full = text_encoder1_key(path) if index == 0 else path
    return f"lora_te{index + 1}_{full.replace('.', '_')}"


def read_unet(file: State, names: Iterable[str]) -> State:
    """The U-Net's tensors out of a whole checkpoint. A name whose key is not in the file is left out."""
    return _take(file, {name: UNET_PREFIX + unet_key(name) for name in names})


def read_vae(file: State, names: Iterable[str], prefix: str = VAE_PREFIX) -> State:
    """The autoencoder's tensors. The file keeps the attention's linear layers as 1x1 convolutions."""
    names = list(names)
    levels = vae_levels(names)
    state = _take(file, {name: prefix + vae_key(name, levels) for name in names})
    return {
        name: tensor.flatten(1) if _is_vae_linear(name) and tensor.ndim == 4 else tensor
        for name, tensor in state.items()
    }


def read_text_encoder1(file: State, names: Iterable[str]) -> State:
    return _take(file, {name: TEXT_ENCODER1_PREFIX + text_encoder1_key(name) for name in names})


def read_text_encoder2(file: State, names: Iterable[str]) -> State:
    """OpenCLIP stacks q, k and v in one matrix and multiplies by text_projection from the right."""
    state = _take(file, {name: TEXT_ENCODER2_PREFIX + text_encoder2_key(name) for name in names})
    for name in state:
        if part := _QKV.search(name):
            state[name] = state[name].chunk(3)["qkv".index(part[1])]
        elif name == "text_projection.weight":
            state[name] = state[name].T.contiguous()
    return state


def vae_from_diffusers(state: State) -> State:
    """A VAE under diffusers' names -> the same tensors under the file's keys, without prefix."""
    levels = vae_levels(state)
    return {vae_key(name, levels): _as_convolution(name, tensor) for name, tensor in state.items()}


def checkpoint(unet: State, vae: State, text_encoder1: State, text_encoder2: State, logit_scale: Tensor) -> State:
    """All parts in the single-file layout, under the file's keys."""
    state = {UNET_PREFIX + unet_key(name): tensor for name, tensor in unet.items()}
    for name, tensor in text_encoder1.items():
        state[TEXT_ENCODER1_PREFIX + text_encoder1_key(name)] = tensor
    for name, tensor in text_encoder2.items():
        key = TEXT_ENCODER2_PREFIX + text_encoder2_key(name)
        if part := _QKV.search(name):
            if part[1] == "q":
                stack = [text_encoder2[_QKV.sub(rf"self_attn.{letter}_proj.\2", name)] for letter in "qkv"]
                state[key] = torch.cat(stack)
        else:
            state[key] = tensor.T.contiguous() if name == "text_projection.weight" else tensor
    for key, tensor in vae_from_diffusers(vae).items():
        state[VAE_PREFIX + key] = tensor
    state[LOGIT_SCALE] = logit_scale
    return state


def unet_config(shapes: Shapes) -> dict[str, Any]:
    """Arguments of diffusers' UNet2DConditionModel, from the shapes of a whole checkpoint."""
    at = ShapesBelow(shapes, UNET_PREFIX)
    per_level = LAYERS_PER_BLOCK + 1
    levels = at.count(r"input_blocks\.(\d+)\.0\.op\.weight") + 1
    starts = [f"input_blocks.{1 + level * per_level}." for level in range(levels)]
    widths = tuple(at[f"{start}0.out_layers.3.weight"][0] for start in starts)
    depths = [at.count(re.escape(start) + r"1\.transformer_blocks\.(\d+)\.norm1\.weight") for start in starts]
    return {
        "sample_size": 128,
        "in_channels": at["input_blocks.0.0.weight"][1],
        "out_channels": at["out.2.weight"][0],
        "block_out_channels": widths,
        "layers_per_block": LAYERS_PER_BLOCK,
        "down_block_types": tuple("CrossAttnDownBlock2D" if depth else "DownBlock2D" for depth in depths),
        "up_block_types": tuple("CrossAttnUpBlock2D" if depth else "UpBlock2D" for depth in reversed(depths)),
        "transformer_layers_per_block": tuple(max(depth, 1) for depth in depths),
        "attention_head_dim": tuple(max(width // HEAD_WIDTH, 1) for width in widths),
        "cross_attention_dim": at["middle_block.1.transformer_blocks.0.attn2.to_k.weight"][1],
        "use_linear_projection": len(at["middle_block.1.proj_in.weight"]) == 2,
        "addition_embed_type": "text_time",
        "addition_time_embed_dim": 256,
        "projection_class_embeddings_input_dim": at["label_emb.0.0.weight"][1],
    }


def vae_config(shapes: Shapes, prefix: str = VAE_PREFIX) -> dict[str, Any]:
    """Arguments of diffusers' AutoencoderKL, from the shapes of a checkpoint or of a VAE file in the same layout."""
    at = ShapesBelow(shapes, prefix)
    levels = at.count(r"encoder\.down\.(\d+)\.block\.0\.conv1\.weight")
    widths = tuple(at[f"encoder.down.{level}.block.0.conv1.weight"][0] for level in range(levels))
    return {
        "sample_size": 1024,
        "in_channels": at["encoder.conv_in.weight"][1],
        "out_channels": at["decoder.conv_out.weight"][0],
        "block_out_channels": widths,
        "layers_per_block": at.count(r"encoder\.down\.0\.block\.(\d+)\.conv1\.weight"),
        "down_block_types": ("DownEncoderBlock2D",) * levels,
        "up_block_types": ("UpDecoderBlock2D",) * levels,
        "latent_channels": at["decoder.conv_in.weight"][1],
        "scaling_factor": VAE_SCALE,
    }


def text_encoder1_config(shapes: Shapes, prefix: str = TEXT_ENCODER1_PREFIX + "text_model.") -> dict[str, Any]:
    """Arguments of transformers' CLIPTextConfig for the first encoder (CLIP-L), also from a file of its own."""
    at = ShapesBelow(shapes, prefix)
    vocabulary, width = at["embeddings.token_embedding.weight"]
    return {
        **_clip_config(vocabulary, width),
        "intermediate_size": at["encoder.layers.0.mlp.fc1.weight"][0],
        "num_hidden_layers": at.count(r"encoder\.layers\.(\d+)\.mlp\.fc1\.weight"),
        "max_position_embeddings": at["embeddings.position_embedding.weight"][0],
        "projection_dim": width,
        "hidden_act": "quick_gelu",
    }


def text_encoder2_config(shapes: Shapes) -> dict[str, Any]:
    """Arguments of transformers' CLIPTextConfig for the second encoder (OpenCLIP bigG)."""
    at = ShapesBelow(shapes, TEXT_ENCODER2_PREFIX)
    vocabulary, width = at["token_embedding.weight"]
    return {
        **_clip_config(vocabulary, width),
        "intermediate_size": at["transformer.resblocks.0.mlp.c_fc.weight"][0],
        "num_hidden_layers": at.count(r"transformer\.resblocks\.(\d+)\.mlp\.c_fc\.weight"),
        "max_position_embeddings": at["positional_embedding"][0],
        "projection_dim": at["text_projection"][1],
        "hidden_act": "gelu",
    }


def _clip_config(vocabulary: int, width: int) -> dict[str, Any]:
    """CLIP's vocabulary ends with <|startoftext|> and <|endoftext|>."""
    heads = max(width // HEAD_WIDTH, 1)
    ends = {"bos_token_id": vocabulary - 2, "eos_token_id": vocabulary - 1, "pad_token_id": vocabulary - 1}
    return {"vocab_size": vocabulary, "hidden_size": width, "num_attention_heads": heads, **ends}


class ShapesBelow:
    """Shapes below a prefix; a key that is not there is a ValueError that names it."""

    def __init__(self, shapes: Shapes, prefix: str):
        self.prefix = prefix
        self.shapes = {key.removeprefix(prefix): tuple(s) for key, s in shapes.items() if key.startswith(prefix)}

    def __getitem__(self, key: str) -> tuple[int, ...]:
        if key not in self.shapes:
            raise ValueError(f"'{self.prefix}{key}' is missing")
        return self.shapes[key]

    def count(self, numbered: str) -> int:
        """How many keys match `numbered` whole."""
        return sum(bool(re.fullmatch(numbered, key)) for key in self.shapes)


def _take(file: State, keys: dict[str, str]) -> State:
    return {name: file[key] for name, key in keys.items() if key in file}


def _replace_start(name: str, table: dict[str, str]) -> str:
    for ours, theirs in table.items():
        if name == ours or name.startswith(ours + "."):
            return theirs + name[len(ours) :]
    return name


def vae_levels(names: Iterable[str]) -> int:
    return len({found[0] for name in names if (found := re.match(r"encoder\.down_blocks\.\d+", name))})


def _as_convolution(name: str, tensor: Tensor) -> Tensor:
    """The file keeps the attention's linear layers as 1x1 convolutions."""
    return tensor[:, :, None, None] if _is_vae_linear(name) and tensor.ndim == 2 else tensor


def _is_vae_linear(name: str) -> bool:
    return bool(re.search(r"mid_block\.attentions\.0\.to_.*weight$", name))
