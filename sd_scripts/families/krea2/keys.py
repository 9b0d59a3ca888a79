"""Krea 2's file layouts: Krea's keys and diffusers' of the transformer."""

from sd_scripts.library.files.key_tables import KeyTables, Names
from sd_scripts.library.files.state_dicts import State

_IN_BLOCK: Names = {
    "mod.lin": "scale_shift_table",
    "prenorm": "norm1",
    "postnorm": "norm2",
    "attn.wq": "attn.to_q",
    "attn.wk": "attn.to_k",
    "attn.wv": "attn.to_v",
    "attn.gate": "attn.to_gate",
    "attn.wo": "attn.to_out.0",
    "attn.qknorm.qnorm": "attn.norm_q",
    "attn.qknorm.knorm": "attn.norm_k",
    "mlp.gate": "ff.gate",
    "mlp.up": "ff.up",
    "mlp.down": "ff.down",
}
_ENDS: Names = {
    "first": "img_in",
    "tmlp.0": "time_embed.linear_1",
    "tmlp.2": "time_embed.linear_2",
    "tproj.1": "time_mod_proj",
    "txtfusion.projector": "text_fusion.projector",
    "txtmlp.0": "txt_in.norm",
    "txtmlp.1": "txt_in.linear_1",
    "txtmlp.3": "txt_in.linear_2",
    "last.modulation.lin": "final_layer.scale_shift_table",
    "last.norm": "final_layer.norm",
    "last.linear": "final_layer.linear",
}
KEYS = KeyTables(
    blocks=(
        ("blocks", "transformer_blocks", _IN_BLOCK),
        ("txtfusion.layerwise_blocks", "text_fusion.layerwise_blocks", _IN_BLOCK),
        ("txtfusion.refiner_blocks", "text_fusion.refiner_blocks", _IN_BLOCK),
    ),
    ends=_ENDS,
    scales=("prenorm", "postnorm", "qnorm", "knorm", "txtmlp.0", "last.norm"),
)


def original_layout(file: State) -> State:
    """Rename a transformer's tensors from any layout to Krea's keys."""
    file = KEYS.from_diffusers(file)
    return {key: tensor.flatten() if key.endswith(".mod.lin") else tensor for key, tensor in file.items()}
