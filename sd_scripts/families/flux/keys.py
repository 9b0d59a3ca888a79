"""FLUX.1's file layouts: BFL's keys and diffusers'."""

from sd_scripts.library.files.key_tables import KeyTables, Names

_DOUBLE: Names = {
    "img_mod.lin": "norm1.linear",
    "img_attn.qkv": ("attn.to_q", "attn.to_k", "attn.to_v"),
    "img_attn.norm.query_norm": "attn.norm_q",
    "img_attn.norm.key_norm": "attn.norm_k",
    "img_attn.proj": "attn.to_out.0",
    "img_mlp.0": "ff.net.0.proj",
    "img_mlp.2": "ff.net.2",
    "txt_mod.lin": "norm1_context.linear",
    "txt_attn.qkv": ("attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj"),
    "txt_attn.norm.query_norm": "attn.norm_added_q",
    "txt_attn.norm.key_norm": "attn.norm_added_k",
    "txt_attn.proj": "attn.to_add_out",
    "txt_mlp.0": "ff_context.net.0.proj",
    "txt_mlp.2": "ff_context.net.2",
}
_SINGLE: Names = {
    "modulation.lin": "norm.linear",
    "linear1": ("attn.to_q", "attn.to_k", "attn.to_v", "proj_mlp"),
    "norm.query_norm": "attn.norm_q",
    "norm.key_norm": "attn.norm_k",
    "linear2": "proj_out",
}
_ENDS: Names = {
    "img_in": "x_embedder",
    "txt_in": "context_embedder",
    "time_in.in_layer": "time_text_embed.timestep_embedder.linear_1",
    "time_in.out_layer": "time_text_embed.timestep_embedder.linear_2",
    "vector_in.in_layer": "time_text_embed.text_embedder.linear_1",
    "vector_in.out_layer": "time_text_embed.text_embedder.linear_2",
    "guidance_in.in_layer": "time_text_embed.guidance_embedder.linear_1",
    "guidance_in.out_layer": "time_text_embed.guidance_embedder.linear_2",
    "final_layer.adaLN_modulation.1": "norm_out.linear",
    "final_layer.linear": "proj_out",
}
KEYS = KeyTables(
    blocks=(("double_blocks", "transformer_blocks", _DOUBLE), ("single_blocks", "single_transformer_blocks", _SINGLE)),
    ends=_ENDS,
    swapped="final_layer.adaLN_modulation.1",
    scales=("query_norm", "key_norm"),
)
diffusers_modules, bfl_key, from_diffusers = KEYS.diffusers_modules, KEYS.original_key, KEYS.from_diffusers
"""Names that users import."""
