"""FLUX.1's file layouts: BFL's keys and diffusers', and model configurations from tensor shapes.

Every function works at any width and depth. `parts` below are rows of one matrix, which diffusers stores separately.
"""

import re

from sd_scripts.library.files.state_dicts import JoinedLayout, State

_DOUBLE = {
    "img_mod.lin": ("norm1.linear",),
    "img_attn.qkv": ("attn.to_q", "attn.to_k", "attn.to_v"),
    "img_attn.norm.query_norm": ("attn.norm_q",),
    "img_attn.norm.key_norm": ("attn.norm_k",),
    "img_attn.proj": ("attn.to_out.0",),
    "img_mlp.0": ("ff.net.0.proj",),
    "img_mlp.2": ("ff.net.2",),
    "txt_mod.lin": ("norm1_context.linear",),
    "txt_attn.qkv": ("attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj"),
    "txt_attn.norm.query_norm": ("attn.norm_added_q",),
    "txt_attn.norm.key_norm": ("attn.norm_added_k",),
    "txt_attn.proj": ("attn.to_add_out",),
    "txt_mlp.0": ("ff_context.net.0.proj",),
    "txt_mlp.2": ("ff_context.net.2",),
}
_SINGLE = {
    "modulation.lin": ("norm.linear",),
    "linear1": ("attn.to_q", "attn.to_k", "attn.to_v", "proj_mlp"),
    "norm.query_norm": ("attn.norm_q",),
    "norm.key_norm": ("attn.norm_k",),
    "linear2": ("proj_out",),
}
_ENDS: dict[str, tuple[str, ...]] = {
    "img_in": ("x_embedder",),
    "txt_in": ("context_embedder",),
    "time_in.in_layer": ("time_text_embed.timestep_embedder.linear_1",),
    "time_in.out_layer": ("time_text_embed.timestep_embedder.linear_2",),
    "vector_in.in_layer": ("time_text_embed.text_embedder.linear_1",),
    "vector_in.out_layer": ("time_text_embed.text_embedder.linear_2",),
    "guidance_in.in_layer": ("time_text_embed.guidance_embedder.linear_1",),
    "guidance_in.out_layer": ("time_text_embed.guidance_embedder.linear_2",),
    "final_layer.adaLN_modulation.1": ("norm_out.linear",),
    "final_layer.linear": ("proj_out",),
}
_BLOCKS = (("double_blocks", "transformer_blocks", _DOUBLE), ("single_blocks", "single_transformer_blocks", _SINGLE))
_SWAPPED = "final_layer.adaLN_modulation.1."
"""Shift before scale in BFL's layout, scale before shift in diffusers'."""


def diffusers_modules(module: str) -> tuple[str, ...]:
    """Return diffusers' names of a module's parts, in the order of its rows.

    `double_blocks.3.txt_attn.proj` -> (`transformer_blocks.3.attn.to_add_out`,). Raises KeyError for any other name.
    """
    for ours, theirs, table in _BLOCKS:
        if found := re.fullmatch(rf"{ours}\.(\d+)\.(.+)", module):
            return tuple(f"{theirs}.{found[1]}.{part}" for part in table[found[2]])
    return _ENDS[module]


def swaps_halves(module: str) -> bool:
    """Return whether diffusers has the two halves of a module's rows in the opposite order."""
    return f"{module}." == _SWAPPED


def bfl_key(name: str) -> tuple[int, str]:
    """Return the number of the part and BFL's key for a key of diffusers.

    `single_transformer_blocks.2.proj_mlp.bias` -> (3, `single_blocks.2.linear1.bias`). Raises KeyError for any other.
    """
    module, _, kind = name.rpartition(".")
    start, table = "", _ENDS
    for ours, theirs, block_table in _BLOCKS:
        if found := re.fullmatch(rf"{theirs}\.(\d+)\.(.+)", module):
            start, module, table = f"{ours}.{found[1]}.", found[2], block_table
    place = {part: (index, key) for key, parts in table.items() for index, part in enumerate(parts)}
    index, key = place[module]
    return index, f"{start}{key}.{'scale' if '_norm' in key else kind}"


def from_diffusers(state: State) -> State:
    """Rename a transformer's tensors from diffusers' keys to BFL's, leaving other keys unchanged. Tensors are taken
    out of `state`, so that parts of a matrix can be freed once they are joined.

    Raises ValueError if a part of a matrix is missing.
    """
    return JoinedLayout(place=bfl_key, modules=diffusers_modules, swaps_halves=swaps_halves).from_diffusers(state)
