"""Qwen-Image as a record for the trainer."""

from diffusers.models.autoencoders.autoencoder_kl_qwenimage import QwenImageResidualBlock
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLDecoderLayer

from sd_scripts.families.common.encoders.causal_vae import encode_images, image_latents
from sd_scripts.families.common.family import Blocks, Family, FileIdentity, TextEncoding, blocks_of
from sd_scripts.families.common.objective import FLOW_METADATA
from sd_scripts.families.qwen_image.card import CARD
from sd_scripts.families.qwen_image.load import BLOCK_LISTS, LAYOUTS, expected, problems
from sd_scripts.families.qwen_image.lora import TEXT_ENCODERS, TRANSFORMER
from sd_scripts.families.qwen_image.objective import draw_timesteps, loss, step_inputs
from sd_scripts.families.qwen_image.sampling import prompt_captions, sample, sample_batch
from sd_scripts.families.qwen_image.text import OUTPUTS, TEMPLATE, encode_text, tokenize

FAMILY = QWEN_IMAGE = Family(
    card=CARD,
    identity=FileIdentity(
        base_model_version="qwen_image",
        architecture=lambda components: "Qwen-Image",
        implementation="https://github.com/QwenLM/Qwen-Image",
        lora_options=FLOW_METADATA,
    ),
    text=TextEncoding(
        tokenize=tokenize,
        encode=encode_text,
        prompt_captions=prompt_captions,
        cache_suffix="qwen_image_te",
        cache_key=TEMPLATE.cache_key,
        cache_fits=OUTPUTS.cache_fits,
        limit=TEMPLATE.limit,
        trim=OUTPUTS.trim,
        pad=OUTPUTS.pad,
    ),
    blocks=Blocks(
        title="Qwen-Image",
        denoiser=BLOCK_LISTS.of,
        graph_kinds=lambda transformer: {"QwenImageTransformerBlock": 1},
        text_encoder=blocks_of(Qwen2_5_VLDecoderLayer),
        vae=lambda vae: blocks_of(QwenImageResidualBlock)(vae.get_submodule("encoder")),
    ),
    latents=image_latents(CARD.name),
    layouts=LAYOUTS,
    expected=expected,
    problems=lambda sources, settings: problems(sources),
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
