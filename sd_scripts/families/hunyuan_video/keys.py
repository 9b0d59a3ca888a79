"""HunyuanVideo's file layouts: the official keys and diffusers'.

Every function works at any width and depth. Several names below are rows of one matrix, which diffusers stores
separately.
"""

import re

from sd_scripts.library.files.state_dicts import JoinedLayout, State

_REFINER = {
    "norm1": ("norm1",),
    "norm2": ("norm2",),
    "self_attn_qkv": ("attn.to_q", "attn.to_k", "attn.to_v"),
    "self_attn_proj": ("attn.to_out.0",),
    "mlp.fc1": ("ff.net.0.proj",),
    "mlp.fc2": ("ff.net.2",),
    "adaLN_modulation.1": ("norm_out.linear",),
}
_DOUBLE = {
    "img_mod.linear": ("norm1.linear",),
    "img_attn_qkv": ("attn.to_q", "attn.to_k", "attn.to_v"),
    "img_attn_q_norm": ("attn.norm_q",),
    "img_attn_k_norm": ("attn.norm_k",),
    "img_attn_proj": ("attn.to_out.0",),
    "img_mlp.fc1": ("ff.net.0.proj",),
    "img_mlp.fc2": ("ff.net.2",),
    "txt_mod.linear": ("norm1_context.linear",),
    "txt_attn_qkv": ("attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj"),
    "txt_attn_q_norm": ("attn.norm_added_q",),
    "txt_attn_k_norm": ("attn.norm_added_k",),
    "txt_attn_proj": ("attn.to_add_out",),
    "txt_mlp.fc1": ("ff_context.net.0.proj",),
    "txt_mlp.fc2": ("ff_context.net.2",),
}
_SINGLE = {
    "modulation.linear": ("norm.linear",),
    "linear1": ("attn.to_q", "attn.to_k", "attn.to_v", "proj_mlp"),
    "linear2": ("proj_out",),
    "q_norm": ("attn.norm_q",),
    "k_norm": ("attn.norm_k",),
}
_TIME, _TEXT = "time_text_embed", "context_embedder.time_text_embed"
_ENDS: dict[str, tuple[str, ...]] = {
    "img_in.proj": ("x_embedder.proj",),
    "time_in.mlp.0": (f"{_TIME}.timestep_embedder.linear_1",),
    "time_in.mlp.2": (f"{_TIME}.timestep_embedder.linear_2",),
    "guidance_in.mlp.0": (f"{_TIME}.guidance_embedder.linear_1",),
    "guidance_in.mlp.2": (f"{_TIME}.guidance_embedder.linear_2",),
    "vector_in.in_layer": (f"{_TIME}.text_embedder.linear_1",),
    "vector_in.out_layer": (f"{_TIME}.text_embedder.linear_2",),
    "txt_in.input_embedder": ("context_embedder.proj_in",),
    "txt_in.t_embedder.mlp.0": (f"{_TEXT}.timestep_embedder.linear_1",),
    "txt_in.t_embedder.mlp.2": (f"{_TEXT}.timestep_embedder.linear_2",),
    "txt_in.c_embedder.linear_1": (f"{_TEXT}.text_embedder.linear_1",),
    "txt_in.c_embedder.linear_2": (f"{_TEXT}.text_embedder.linear_2",),
    "final_layer.linear": ("proj_out",),
    "final_layer.adaLN_modulation.1": ("norm_out.linear",),
}
_BLOCKS = (
    ("txt_in.individual_token_refiner.blocks", "context_embedder.token_refiner.refiner_blocks", _REFINER),
    ("double_blocks", "transformer_blocks", _DOUBLE),
    ("single_blocks", "single_transformer_blocks", _SINGLE),
)
_SWAPPED = "final_layer.adaLN_modulation.1"
"""Shift before scale in the official layout, scale before shift in diffusers'."""


def diffusers_modules(module: str) -> tuple[str, ...]:
    """Return diffusers' names of a module's parts, in the order of its rows. Raises KeyError for any other name."""
    for ours, theirs, table in _BLOCKS:
        if found := re.fullmatch(rf"{re.escape(ours)}\.(\d+)\.(.+)", module):
            return tuple(f"{theirs}.{found[1]}.{part}" for part in table[found[2]])
    return _ENDS[module]


def swaps_halves(module: str) -> bool:
    """Return whether diffusers has the two halves of a module's rows in the opposite order."""
    return module == _SWAPPED


def official_key(name: str) -> tuple[int, str]:
    """Return the number of the part and the official key for a key of diffusers.

    `single_transformer_blocks.2.proj_mlp.bias` -> (3, `single_blocks.2.linear1.bias`). Raises KeyError for any other.
    """
    module, _, kind = name.rpartition(".")
    start, table = "", _ENDS
    for ours, theirs, block_table in _BLOCKS:
        if found := re.fullmatch(rf"{re.escape(theirs)}\.(\d+)\.(.+)", module):
            start, module, table = f"{ours}.{found[1]}.", found[2], block_table
    place = {part: (index, key) for key, parts in table.items() for index, part in enumerate(parts)}
    index, key = place[module]
    return index, f"{start}{key}.{kind}"


def part_of(module: str) -> tuple[str, int, int]:
    """Return the official module that contains a module of diffusers, the number of the part, and the number of
    parts; any other module contains itself."""
    try:
        part, key = official_key(f"{module}.weight")
    except KeyError:
        return module, 0, 1
    whole = key.rpartition(".")[0]
    return whole, part, len(diffusers_modules(whole))


def from_diffusers(state: State) -> State:
    """Rename a transformer's tensors from diffusers' keys to the official ones, leaving other keys unchanged. Tensors
    are taken out of `state`, so that parts of a matrix can be freed once they are joined.

    Raises ValueError if a part of a matrix is missing.
    """
    return JoinedLayout(place=official_key, modules=diffusers_modules, swaps_halves=swaps_halves).from_diffusers(state)
