"""FLUX.2 klein as a record for the trainer."""

from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer

from sd_scripts.families.common.family import Blocks, Family, FileIdentity, TextEncoding, blocks_of
from sd_scripts.families.common.objective import FLOW_METADATA
from sd_scripts.families.flux2.card import CARD
from sd_scripts.families.flux2.load import BLOCK_LISTS, LAYOUTS, expected, prepare
from sd_scripts.families.flux2.lora import TEXT_ENCODERS, TRANSFORMER
from sd_scripts.families.flux2.objective import loss, step_inputs
from sd_scripts.families.flux2.sampling import prompt_captions, sample, sample_batch
from sd_scripts.families.flux2.text import encode_text, text_cache_fits, text_cache_key, text_limit, tokenize
from sd_scripts.families.flux2.vae import LATENTS, encode_images
from sd_scripts.library.files.lean_diffusers import ResnetBlock2D

FAMILY = FLUX2 = Family(
    card=CARD,
    identity=FileIdentity(
        base_model_version=CARD.name,
        architecture=lambda components: "Flux.2-klein",
        implementation="https://github.com/black-forest-labs/flux2",
        lora_options=FLOW_METADATA,
    ),
    text=TextEncoding(
        tokenize=tokenize,
        encode=encode_text,
        prompt_captions=prompt_captions,
        cache_suffix="flux2_te",
        cache_key=text_cache_key,
        cache_fits=text_cache_fits,
        limit=text_limit,
    ),
    blocks=Blocks(
        title=CARD.title,
        denoiser=BLOCK_LISTS.of,
        graph_kinds=lambda transformer: {"DoubleBlock": 1, "SingleBlock": 1},
        text_encoder=blocks_of(Qwen3DecoderLayer),
        vae=lambda vae: blocks_of(ResnetBlock2D)(vae.get_submodule("encoder")),
    ),
    latents=LATENTS,
    layouts=LAYOUTS,
    prepare=lambda components, settings: prepare(components),
    expected=expected,
    block_lists=BLOCK_LISTS,
    encode_images=encode_images,
    step_inputs=step_inputs,
    loss=loss,
    lora=TRANSFORMER,
    lora_text_encoders=TEXT_ENCODERS,
    sample=sample,
    sample_batch=sample_batch,
)
