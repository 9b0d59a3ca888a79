"""Anima's file layouts: the official keys, which are the modules' names, and diffusers'."""

from sd_scripts.families.anima.adapter import PREFIX as ADAPTER
from sd_scripts.library.files.key_tables import KeyTables, Names
from sd_scripts.library.files.state_dicts import State

_BLOCK: Names = {
    "adaln_modulation_self_attn.1": "norm1.linear_1",
    "adaln_modulation_self_attn.2": "norm1.linear_2",
    "adaln_modulation_cross_attn.1": "norm2.linear_1",
    "adaln_modulation_cross_attn.2": "norm2.linear_2",
    "adaln_modulation_mlp.1": "norm3.linear_1",
    "adaln_modulation_mlp.2": "norm3.linear_2",
    **{
        f"{ours}_attn.{layer}": f"{theirs}.{name}"
        for ours, theirs in (("self", "attn1"), ("cross", "attn2"))
        for layer, name in (
            *(("q_proj", "to_q"), ("k_proj", "to_k"), ("v_proj", "to_v"), ("output_proj", "to_out.0")),
            *(("q_norm", "norm_q"), ("k_norm", "norm_k")),
        )
    },
    "mlp.layer1": "ff.net.0.proj",
    "mlp.layer2": "ff.net.2",
}
_ENDS: Names = {
    "x_embedder.proj.1": "patch_embed.proj",
    "t_embedder.1.linear_1": "time_embed.t_embedder.linear_1",
    "t_embedder.1.linear_2": "time_embed.t_embedder.linear_2",
    "t_embedding_norm": "time_embed.norm",
    "final_layer.adaln_modulation.1": "norm_out.linear_1",
    "final_layer.adaln_modulation.2": "norm_out.linear_2",
    "final_layer.linear": "proj_out",
}
KEYS = KeyTables(blocks=(("blocks", "transformer_blocks", _BLOCK),), ends=_ENDS)
CONDITIONER = "text_conditioner."
"""Where diffusers has the adapter: in a component of its own."""
_BUFFERS = "pos_embedder."
"""Positions that official files may contain, and that the transformer computes."""


def diffusers_modules(module: str) -> tuple[str, ...]:
    """Return diffusers' name of a module of the transformer or of the adapter. Raises KeyError for any other name."""
    if module.startswith(ADAPTER):
        return (module.replace(ADAPTER, CONDITIONER, 1),)
    return KEYS.diffusers_modules(module)


def original_layout(file: State) -> State:
    """Rename a transformer's tensors from either layout to the official keys."""
    return {key: tensor for key, tensor in KEYS.from_diffusers(file).items() if not key.startswith(_BUFFERS)}
