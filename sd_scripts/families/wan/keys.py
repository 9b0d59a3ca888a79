"""Layouts of Wan's files: the transformer under official and diffusers' keys, UMT5 and CLIP under official and
transformers'."""

import re
from collections.abc import Mapping

from sd_scripts.families.common.encoders.t5 import t5_encoder
from sd_scripts.library.files.state_dicts import State

OUTSIDE = {
    "text_embedding.0": "condition_embedder.text_embedder.linear_1",
    "text_embedding.2": "condition_embedder.text_embedder.linear_2",
    "time_embedding.0": "condition_embedder.time_embedder.linear_1",
    "time_embedding.2": "condition_embedder.time_embedder.linear_2",
    "time_projection.1": "condition_embedder.time_proj",
    "head.head": "proj_out",
    "head.modulation": "scale_shift_table",
    "img_emb.proj.0": "condition_embedder.image_embedder.norm1",
    "img_emb.proj.1": "condition_embedder.image_embedder.ff.net.0.proj",
    "img_emb.proj.3": "condition_embedder.image_embedder.ff.net.2",
    "img_emb.proj.4": "condition_embedder.image_embedder.norm2",
    "img_emb.emb_pos": "condition_embedder.image_embedder.pos_embed",
}
IN_BLOCK = {
    "modulation": "scale_shift_table",
    "norm3": "norm2",
    "ffn.0": "ffn.net.0.proj",
    "ffn.2": "ffn.net.2",
    "cross_attn.k_img": "attn2.add_k_proj",
    "cross_attn.v_img": "attn2.add_v_proj",
    "cross_attn.norm_k_img": "attn2.norm_added_k",
    **{
        f"{ours}.{name}": f"{theirs}.{other}"
        for ours, theirs in (("self_attn", "attn1"), ("cross_attn", "attn2"))
        for name, other in (
            *(("q", "to_q"), ("k", "to_k"), ("v", "to_v"), ("o", "to_out.0")),
            *(("norm_q", "norm_q"), ("norm_k", "norm_k")),
        )
    },
}
"""Official module or parameter -> diffusers', outside and inside of a block."""
TO_OFFICIAL = {theirs: ours for ours, theirs in OUTSIDE.items()}
TO_OFFICIAL_IN_BLOCK = {theirs: ours for ours, theirs in IN_BLOCK.items()}
BLOCK = re.compile(r"(blocks\.\d+\.)(.+)")
DIFFUSERS = "condition_embedder.time_proj.weight"
"""A key that only files of diffusers have."""

UMT5 = {
    "norm1": "layer.0.layer_norm",
    "norm2": "layer.1.layer_norm",
    "pos_embedding.embedding": "layer.0.SelfAttention.relative_attention_bias",
    "ffn.gate.0": "layer.1.DenseReluDense.wi_0",
    "ffn.fc1": "layer.1.DenseReluDense.wi_1",
    "ffn.fc2": "layer.1.DenseReluDense.wo",
    **{f"attn.{name}": f"layer.0.SelfAttention.{name}" for name in "qkvo"},
}
"""Official module of a block -> transformers'."""
UMT5_OUTSIDE = {"token_embedding": "shared", "norm": "encoder.final_layer_norm"}
UMT5_OFFICIAL = "blocks.0.pos_embedding.embedding.weight"
TOKENIZER = "spiece_model"
"""ComfyUI's files of UMT5 contain the tokenizer's vocabulary as bytes."""


CLIP = {
    "pre_norm": "pre_layrnorm",
    "post_norm": "post_layernorm",
    "patch_embedding": "embeddings.patch_embedding",
    "norm1": "layer_norm1",
    "norm2": "layer_norm2",
    "attn.proj": "self_attn.out_proj",
    "mlp.0": "mlp.fc1",
    "mlp.2": "mlp.fc2",
}
"""Official module of CLIP's image encoder, in a block or outside -> transformers'."""
CLIP_QKV = "attn.to_qkv."
CLIP_OFFICIAL, CLIP_TRANSFORMERS = "cls_embedding", "embeddings.class_embedding"


def diffusers_path(path: str) -> str:
    """Return diffusers' name of an official module or parameter."""
    if block := BLOCK.fullmatch(path):
        return block[1] + IN_BLOCK[block[2]]
    return OUTSIDE.get(path, path)


def transformer_from_diffusers(file: State) -> State:
    """Rename the tensors of diffusers' files to the official keys; official keys stay unchanged."""
    return {_official(key): tensor for key, tensor in file.items()} if DIFFUSERS in file else file


def _official(key: str) -> str:
    block = BLOCK.fullmatch(key)
    names: Mapping[str, str] = TO_OFFICIAL_IN_BLOCK if block else TO_OFFICIAL
    return (block[1] if block else "") + _renamed(block[2] if block else key, names)


def _renamed(key: str, names: Mapping[str, str]) -> str:
    """Rename the module of a key, or the whole key of a parameter of its own."""
    if key in names:
        return names[key]
    module, _, kind = key.rpartition(".")
    return f"{names[module]}.{kind}" if module in names else key


def umt5_encoder(file: State) -> State:
    """Return UMT5's encoder under transformers' keys, from these or from the official ones."""
    file = {key: tensor for key, tensor in file.items() if key != TOKENIZER}
    if UMT5_OFFICIAL in file:
        file = {_of_transformers(key): tensor for key, tensor in file.items()}
    return t5_encoder(file)


def _of_transformers(key: str) -> str:
    if block := BLOCK.fullmatch(key):
        return f"encoder.{block[1].replace('blocks', 'block')}{_renamed(block[2], UMT5)}"
    return _renamed(key, UMT5_OUTSIDE)


def clip_encoder(file: State) -> State:
    """Return CLIP's image encoder under transformers' keys, from these or from the official ones."""
    if CLIP_OFFICIAL not in file:
        return {key: tensor for key, tensor in file.items() if not key.endswith("position_ids")}
    state: State = {
        CLIP_TRANSFORMERS: file[CLIP_OFFICIAL].flatten(),
        "embeddings.position_embedding.weight": file["pos_embedding"][0],
    }
    for key, tensor in file.items():
        block = re.fullmatch(r"transformer\.(\d+)\.(.+)", key)
        place, inner = (f"encoder.layers.{block[1]}.", block[2]) if block else ("", key)
        if inner.startswith(CLIP_QKV):
            kind = inner.removeprefix(CLIP_QKV)
            names = (f"{place}self_attn.{name}_proj.{kind}" for name in "qkv")
            state |= dict(zip(names, tensor.chunk(3), strict=True))
        elif (renamed := _renamed(inner, CLIP)) != inner:
            state[place + renamed] = tensor  # the others belong to the head, which is not read
    return state
