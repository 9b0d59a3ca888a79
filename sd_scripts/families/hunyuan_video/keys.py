"""HunyuanVideo's file layouts: the official keys and diffusers'."""

from sd_scripts.library.files.key_tables import KeyTables, Names

_REFINER: Names = {
    "norm1": "norm1",
    "norm2": "norm2",
    "self_attn_qkv": ("attn.to_q", "attn.to_k", "attn.to_v"),
    "self_attn_proj": "attn.to_out.0",
    "mlp.fc1": "ff.net.0.proj",
    "mlp.fc2": "ff.net.2",
    "adaLN_modulation.1": "norm_out.linear",
}
_DOUBLE: Names = {
    "img_mod.linear": "norm1.linear",
    "img_attn_qkv": ("attn.to_q", "attn.to_k", "attn.to_v"),
    "img_attn_q_norm": "attn.norm_q",
    "img_attn_k_norm": "attn.norm_k",
    "img_attn_proj": "attn.to_out.0",
    "img_mlp.fc1": "ff.net.0.proj",
    "img_mlp.fc2": "ff.net.2",
    "txt_mod.linear": "norm1_context.linear",
    "txt_attn_qkv": ("attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj"),
    "txt_attn_q_norm": "attn.norm_added_q",
    "txt_attn_k_norm": "attn.norm_added_k",
    "txt_attn_proj": "attn.to_add_out",
    "txt_mlp.fc1": "ff_context.net.0.proj",
    "txt_mlp.fc2": "ff_context.net.2",
}
_SINGLE: Names = {
    "modulation.linear": "norm.linear",
    "linear1": ("attn.to_q", "attn.to_k", "attn.to_v", "proj_mlp"),
    "linear2": "proj_out",
    "q_norm": "attn.norm_q",
    "k_norm": "attn.norm_k",
}
_TIME, _TEXT = "time_text_embed", "context_embedder.time_text_embed"
_ENDS: Names = {
    "img_in.proj": "x_embedder.proj",
    "time_in.mlp.0": f"{_TIME}.timestep_embedder.linear_1",
    "time_in.mlp.2": f"{_TIME}.timestep_embedder.linear_2",
    "guidance_in.mlp.0": f"{_TIME}.guidance_embedder.linear_1",
    "guidance_in.mlp.2": f"{_TIME}.guidance_embedder.linear_2",
    "vector_in.in_layer": f"{_TIME}.text_embedder.linear_1",
    "vector_in.out_layer": f"{_TIME}.text_embedder.linear_2",
    "txt_in.input_embedder": "context_embedder.proj_in",
    "txt_in.t_embedder.mlp.0": f"{_TEXT}.timestep_embedder.linear_1",
    "txt_in.t_embedder.mlp.2": f"{_TEXT}.timestep_embedder.linear_2",
    "txt_in.c_embedder.linear_1": f"{_TEXT}.text_embedder.linear_1",
    "txt_in.c_embedder.linear_2": f"{_TEXT}.text_embedder.linear_2",
    "final_layer.linear": "proj_out",
    "final_layer.adaLN_modulation.1": "norm_out.linear",
}
KEYS = KeyTables(
    blocks=(
        ("txt_in.individual_token_refiner.blocks", "context_embedder.token_refiner.refiner_blocks", _REFINER),
        ("double_blocks", "transformer_blocks", _DOUBLE),
        ("single_blocks", "single_transformer_blocks", _SINGLE),
    ),
    ends=_ENDS,
    swapped="final_layer.adaLN_modulation.1",
)
