"""Krea 2 as a record for the trainer."""

from diffusers.models.autoencoders.autoencoder_kl_qwenimage import QwenImageResidualBlock
from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer

from sd_scripts.families.common.encoders.causal_vae import encode_images, image_latents
from sd_scripts.families.common.family import Blocks, Family, FileIdentity, TextEncoding, blocks_of
from sd_scripts.families.common.objective import FLOW_METADATA
from sd_scripts.families.krea2.card import CARD
from sd_scripts.families.krea2.load import BLOCK_LISTS, LAYOUTS, expected
from sd_scripts.families.krea2.lora import TEXT_ENCODERS, TRANSFORMER
from sd_scripts.families.krea2.objective import draw_timesteps, loss, step_inputs
from sd_scripts.families.krea2.sampling import prompt_captions, sample, sample_batch
from sd_scripts.families.krea2.text import OUTPUTS, TEMPLATE, encode_text, text_cache_fits, tokenize

FAMILY = KREA2 = Family(
    card=CARD,
    identity=FileIdentity(
        base_model_version=CARD.name,
        architecture=lambda components: "Krea-2",
        implementation="https://github.com/krea-ai/krea-2",
        lora_options=FLOW_METADATA,
    ),
    text=TextEncoding(
        tokenize=tokenize,
        encode=encode_text,
        prompt_captions=prompt_captions,
        cache_suffix="krea2_te",
        cache_key=TEMPLATE.cache_key,
        cache_fits=text_cache_fits,
        limit=TEMPLATE.limit,
        trim=OUTPUTS.trim,
        pad=OUTPUTS.pad,
    ),
    blocks=Blocks(
        title=CARD.title,
        denoiser=BLOCK_LISTS.of,
        graph_kinds=lambda transformer: {"Block": 1},
        text_encoder=blocks_of(Qwen3DecoderLayer),
        vae=lambda vae: blocks_of(QwenImageResidualBlock)(vae.get_submodule("encoder")),
    ),
    latents=image_latents(CARD.name),
    layouts=LAYOUTS,
    expected=expected,
    block_lists=BLOCK_LISTS,
    encode_images=encode_images,
    step_inputs=step_inputs,
    draw_timesteps=draw_timesteps,
    loss=loss,
    lora=TRANSFORMER,
    lora_text_encoders=TEXT_ENCODERS,
    sample=sample,
    sample_batch=sample_batch,
)
