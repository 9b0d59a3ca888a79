"""Z-Image as a record for the trainer."""

from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer

from sd_scripts.families.common.encoders.flux_vae import encode_images, latent_layout
from sd_scripts.families.common.family import Blocks, Family, FileIdentity, TextEncoding, blocks_of
from sd_scripts.families.common.objective import FLOW_METADATA, flow_inputs
from sd_scripts.families.z_image.card import CARD
from sd_scripts.families.z_image.load import BLOCK_LISTS, COMPILED, LAYOUTS, expected
from sd_scripts.families.z_image.lora import TEXT_ENCODERS, TRANSFORMER
from sd_scripts.families.z_image.objective import loss
from sd_scripts.families.z_image.sampling import prompt_captions, sample, sample_batch
from sd_scripts.families.z_image.text import OUTPUTS, TEMPLATE, encode_text, tokenize
from sd_scripts.library.files.lean_diffusers import ResnetBlock2D

FAMILY = Z_IMAGE = Family(
    card=CARD,
    identity=FileIdentity(
        base_model_version=CARD.name,
        architecture=lambda components: "Z-Image",
        implementation="https://github.com/Tongyi-MAI/Z-Image",
        lora_options=FLOW_METADATA,
    ),
    text=TextEncoding(
        tokenize=tokenize,
        encode=encode_text,
        prompt_captions=prompt_captions,
        cache_suffix="z_image_te",
        cache_key=TEMPLATE.cache_key,
        cache_fits=OUTPUTS.cache_fits,
        limit=TEMPLATE.limit,
        trim=OUTPUTS.trim,
        pad=OUTPUTS.pad,
    ),
    blocks=Blocks(
        title=CARD.title,
        denoiser=COMPILED.of,
        graph_kinds=lambda transformer: {"ZImageTransformerBlock": 2},
        text_encoder=blocks_of(Qwen3DecoderLayer),
        vae=lambda vae: blocks_of(ResnetBlock2D)(vae.get_submodule("encoder")),
    ),
    latents=latent_layout("z_image"),
    layouts=LAYOUTS,
    expected=expected,
    block_lists=BLOCK_LISTS,
    encode_images=encode_images,
    step_inputs=flow_inputs,
    loss=loss,
    lora=TRANSFORMER,
    lora_text_encoders=TEXT_ENCODERS,
    sample=sample,
    sample_batch=sample_batch,
)
