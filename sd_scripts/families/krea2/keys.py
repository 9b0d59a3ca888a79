"""Krea 2's file layouts: Krea's keys and diffusers' of the transformer."""

import re

from sd_scripts.library.files.state_dicts import State

_IN_BLOCK = {
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
_ENDS = {
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
_BLOCKS = {
    "blocks": "transformer_blocks",
    "txtfusion.layerwise_blocks": "text_fusion.layerwise_blocks",
    "txtfusion.refiner_blocks": "text_fusion.refiner_blocks",
}
_THEIR_BLOCKS = {theirs: ours for ours, theirs in _BLOCKS.items()}
_THEIR_IN_BLOCK = {theirs: ours for ours, theirs in _IN_BLOCK.items()}
_THEIR_ENDS = {theirs: ours for ours, theirs in _ENDS.items()}
_BLOCK = re.compile(r"(.*blocks)\.(\d+)\.(.+)")
TABLE = "scale_shift_table"
SCALES = ("prenorm", "postnorm", "qnorm", "knorm", "txtmlp.0", "last.norm")
"""Ends of the names of norms, whose weight is called scale here."""


def diffusers_modules(module: str) -> tuple[str]:
    """Return diffusers' name of a module, `blocks.3.attn.wq` -> (`transformer_blocks.3.attn.to_q`,). Raises KeyError
    for any other name."""
    if block := _BLOCK.fullmatch(module):
        return (f"{_BLOCKS[block[1]]}.{block[2]}.{_IN_BLOCK[block[3]]}",)
    return (_ENDS[module],)


def krea_key(name: str) -> str:
    """Return Krea's key for a key of diffusers; any other stays unchanged."""
    module, _, kind = name.rpartition(".")
    if kind == TABLE:
        module, kind = name, ""
    try:
        if block := _BLOCK.fullmatch(module):
            ours = f"{_THEIR_BLOCKS[block[1]]}.{block[2]}.{_THEIR_IN_BLOCK[block[3]]}"
        else:
            ours = _THEIR_ENDS[module]
    except KeyError:
        return name
    return f"{ours}.{'scale' if ours.endswith(SCALES) else kind}".removesuffix(".")


def original_layout(file: State) -> State:
    """Rename a transformer's tensors from any layout to Krea's keys."""
    if "img_in.weight" not in file:
        return file
    renamed = {krea_key(name): tensor for name, tensor in file.items()}
    return {key: tensor.flatten() if key.endswith(".mod.lin") else tensor for key, tensor in renamed.items()}
