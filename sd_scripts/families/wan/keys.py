"""Layouts of Wan's transformer: official keys and diffusers'."""

from sd_scripts.library.files.key_tables import KeyTables, Names

OUTSIDE: Names = {
    "patch_embedding": "patch_embedding",
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
IN_BLOCK: Names = {
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
KEYS = KeyTables(blocks=(("blocks", "blocks", IN_BLOCK),), ends=OUTSIDE)
