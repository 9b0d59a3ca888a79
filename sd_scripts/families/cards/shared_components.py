"""Components of several families: how the files of encoders and autoencoders that they share, and of their own
transformers, are named and recognised."""

from sd_scripts.families.cards.family_card import DENOISER, VAE, ComponentCard, FirstLayer, Mark

PREFIXES = ("", "model.diffusion_model.")
"""Of the keys of a transformer, in a file of its own and in ComfyUI's."""


def transformer(
    kind: str, *signature_keys: str, prefixes: tuple[str, ...] = PREFIXES, first_layer: FirstLayer | None = None
) -> ComponentCard:
    """Return the transformer of a family."""
    return ComponentCard(
        name=DENOISER,
        kind=kind,
        folder="transformer",
        prefixes=prefixes,
        signature_keys=signature_keys,
        first_layer=first_layer,
    )


def marks_of(component: ComponentCard, kind: str) -> tuple[Mark, ...]:
    """Return the marks of a component's files, which are of this kind."""
    return tuple((prefix + key, None, kind) for prefix in component.prefixes for key in component.signature_keys)


CLIP_L = ComponentCard(
    name="text_encoder1",
    option="clip_l",
    kind="CLIP text encoder",
    title="the CLIP-L text encoder",
    folder="text_encoder",
    fitting=("CLIP-L text encoder", "CLIP text encoder"),
    prefixes=("text_model.", "", "text_encoders.clip_l.transformer.text_model."),
    signature_keys=("encoder.layers.0.self_attn.q_proj.weight",),
)

LLAMA_TOKENS = 256
"""Tokens of caption and suffix that transformers read of LLaMA's; longer captions are truncated."""
_LLAMA, _LLAMA_8B = "LLaMA-like text encoder", "LLaVA-LLaMA-3-8B text encoder"
_LLAMA_PREFIXES = ("model.", "language_model.model.", "model.language_model.", "")
_QUERY = "layers.0.self_attn.q_proj.weight"
LLAMA = ComponentCard(
    name="text_encoder1",
    option="text_encoder1",
    kind="LLaMA text encoder",
    title="the LLaVA-LLaMA-3-8B text encoder",
    folder="text_encoder",
    fitting=(_LLAMA_8B, _LLAMA),
    prefixes=(*_LLAMA_PREFIXES, "text_encoders.llama.transformer.model."),
    signature_keys=(_QUERY,),
)
LLAMA_MARKS: tuple[Mark, ...] = tuple((prefix + _QUERY, None, _LLAMA) for prefix in _LLAMA_PREFIXES)
LLAMA_WIDTHS = ((_LLAMA, "layers.0.self_attn.k_proj.weight", 0, 1_024, _LLAMA_8B),)

UMT5_TOKENS = 512
"""Tokens of a caption, end token included; longer captions are truncated."""
_UMT5, _UMT5_XXL = "UMT5 text encoder", "UMT5-XXL text encoder"
UMT5 = ComponentCard(
    name="text_encoder1",
    option="t5",
    kind=_UMT5,
    title="the UMT5-XXL text encoder",
    folder="text_encoder",
    fitting=(_UMT5_XXL, _UMT5),
    prefixes=("",),
    signature_keys=(  # in T5 the first layer alone has a position bias
        "blocks.0.pos_embedding.embedding.weight",
        "encoder.block.1.layer.0.SelfAttention.relative_attention_bias.weight",
    ),
)
UMT5_MARKS = marks_of(UMT5, _UMT5)
UMT5_WIDTHS = tuple((_UMT5, key, 1, 4096, _UMT5_XXL) for key in ("SelfAttention.q.weight", "blocks.0.attn.q.weight"))

CLIP_VISION_KIND = "CLIP image encoder"
CLIP_VISION = ComponentCard(
    name="image_encoder",
    option="clip",
    kind=CLIP_VISION_KIND,
    title="CLIP's image encoder",
    folder="image_encoder",
    fitting=(CLIP_VISION_KIND,),
    prefixes=("visual.", "vision_model.", ""),
    signature_keys=("cls_embedding", "embeddings.class_embedding"),
    optional=True,
)
CLIP_VISION_MARKS = marks_of(CLIP_VISION, CLIP_VISION_KIND)

SIGLIP_KIND = "SigLIP image encoder"
SIGLIP = ComponentCard(
    name="text_encoder3",
    option="image_encoder",
    kind=SIGLIP_KIND,
    title="the SigLIP image encoder",
    folder="image_encoder",
    fitting=(SIGLIP_KIND,),
    prefixes=("vision_model.", "", "clip_vision."),
    signature_keys=("embeddings.patch_embedding.weight",),
)
SIGLIP_MARKS = marks_of(SIGLIP, SIGLIP_KIND)[:2]
"""Files of its own have the first two prefixes."""

FLUX_VAE_KIND = "FLUX.1 autoencoder"
FLUX_VAE = ComponentCard(
    name=VAE,
    option="vae",
    kind="autoencoder",
    title="FLUX.1's autoencoder",
    folder="vae",
    fitting=(FLUX_VAE_KIND,),
    prefixes=("", "vae."),
    signature_keys=("decoder.conv_in.weight",),
    first_layer=FirstLayer(keys=("encoder.conv_in.weight",), channels=3, kind="autoencoder"),
)

CAUSAL_VAE_KEYS = ("decoder.middle.0.residual.0.gamma", "decoder.mid_block.resnets.0.norm1.gamma")
"""Keys of Qwen-Image's VAE and of Wan's, in official files and ComfyUI's, and in diffusers'."""
CAUSAL_VAE_KIND = "Qwen-Image or Wan 2.1 VAE"
CAUSAL_VAE = ComponentCard(
    name=VAE,
    option="vae",
    kind="VAE",
    title="Qwen-Image's VAE",
    folder="vae",
    fitting=(CAUSAL_VAE_KIND,),
    prefixes=("", "vae."),
    signature_keys=CAUSAL_VAE_KEYS,
)
CAUSAL_VAE_MARKS: tuple[Mark, ...] = tuple((key, None, CAUSAL_VAE_KIND) for key in CAUSAL_VAE_KEYS)

HUNYUAN_VAE_KIND = "HunyuanVideo VAE"
HUNYUAN_VAE = ComponentCard(
    name=VAE,
    option="vae",
    kind="VAE",
    title="HunyuanVideo's VAE",
    folder="vae",
    fitting=(HUNYUAN_VAE_KIND,),
    prefixes=("", "vae."),
    signature_keys=("decoder.conv_in.conv.weight",),
)
HUNYUAN_VAE_MARKS = marks_of(HUNYUAN_VAE, HUNYUAN_VAE_KIND)
