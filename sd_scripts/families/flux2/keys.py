"""FLUX.2's file layouts: BFL's keys and diffusers' of the transformer, and of the autoencoder."""

import re
from collections.abc import Iterable, Mapping

from sd_scripts.library.files import ldm_layout
from sd_scripts.library.files.key_tables import KeyTables, Names
from sd_scripts.library.files.state_dicts import State

_DOUBLE: Names = {
    "img_attn.qkv": ("attn.to_q", "attn.to_k", "attn.to_v"),
    "img_attn.norm.query_norm": "attn.norm_q",
    "img_attn.norm.key_norm": "attn.norm_k",
    "img_attn.proj": "attn.to_out.0",
    "img_mlp.0": "ff.linear_in",
    "img_mlp.2": "ff.linear_out",
    "txt_attn.qkv": ("attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj"),
    "txt_attn.norm.query_norm": "attn.norm_added_q",
    "txt_attn.norm.key_norm": "attn.norm_added_k",
    "txt_attn.proj": "attn.to_add_out",
    "txt_mlp.0": "ff_context.linear_in",
    "txt_mlp.2": "ff_context.linear_out",
}
_SINGLE: Names = {
    "linear1": "attn.to_qkv_mlp_proj",
    "norm.query_norm": "attn.norm_q",
    "norm.key_norm": "attn.norm_k",
    "linear2": "attn.to_out",
}
_ENDS: Names = {
    "img_in": "x_embedder",
    "txt_in": "context_embedder",
    "time_in.in_layer": "time_guidance_embed.timestep_embedder.linear_1",
    "time_in.out_layer": "time_guidance_embed.timestep_embedder.linear_2",
    "double_stream_modulation_img.lin": "double_stream_modulation_img.linear",
    "double_stream_modulation_txt.lin": "double_stream_modulation_txt.linear",
    "single_stream_modulation.lin": "single_stream_modulation.linear",
    "final_layer.adaLN_modulation.1": "norm_out.linear",
    "final_layer.linear": "proj_out",
}
KEYS = KeyTables(
    blocks=(("double_blocks", "transformer_blocks", _DOUBLE), ("single_blocks", "single_transformer_blocks", _SINGLE)),
    ends=_ENDS,
    swapped="final_layer.adaLN_modulation.1",
    scales=("query_norm", "key_norm"),
)
_COMFYUI_NORM = re.compile(r"(?<=\.)(query|key)_norm\.weight")


def original_layout(file: State) -> State:
    """Rename a transformer's tensors from any layout to BFL's keys. Tensors are taken out of `file`.

    Raises ValueError if a part of a matrix is missing.
    """
    if "x_embedder.weight" in file:
        return KEYS.from_diffusers(file)
    return {_COMFYUI_NORM.sub(r"\1_norm.scale", key): file.pop(key) for key in list(file)}


# autoencoder

_INSIDE = {"quant_conv.": "encoder.quant_conv.", "post_quant_conv.": "decoder.post_quant_conv."}
"""Start of diffusers' names -> of BFL's keys."""
COUNTER = "bn.num_batches_tracked"
"""An integer that nothing reads."""


def vae_layout(file: State) -> State:
    """Return an autoencoder's tensors under BFL's keys, from either layout."""
    file = {key: tensor for key, tensor in file.items() if key != COUNTER}
    return vae_file(file) if any("_blocks.0.resnets." in key for key in file) else file


def vae_file(state: State) -> State:
    """Return the tensors of BFL's file, from those under diffusers' names."""
    return _renamed(ldm_layout.vae_from_diffusers(state), _INSIDE)


def read_vae(file: State, names: Iterable[str]) -> State:
    """Return the autoencoder's tensors by name, from those under BFL's keys."""
    return ldm_layout.read_vae(_renamed(file, {inside: outside for outside, inside in _INSIDE.items()}), names)


def _renamed(state: State, starts: Mapping[str, str]) -> State:
    """Replace the beginnings of keys."""
    for start, new in starts.items():
        state = {new + key.removeprefix(start) if key.startswith(start) else key: t for key, t in state.items()}
    return state
