"""Anima as a record for the trainer."""

from diffusers.models.autoencoders.autoencoder_kl_qwenimage import QwenImageResidualBlock
from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer

from sd_scripts.families.anima.card import CARD
from sd_scripts.families.anima.card.options import part_of
from sd_scripts.families.anima.load import BLOCK_LISTS, LAYOUTS, prepare, problems
from sd_scripts.families.anima.lora import TEXT_ENCODERS, TRANSFORMER
from sd_scripts.families.anima.objective import loss, step_inputs
from sd_scripts.families.anima.sampling import prompt_captions, sample, sample_batch
from sd_scripts.families.anima.text import (
    encode_text,
    pad,
    text_cache_fits,
    text_cache_key,
    text_limit,
    tokenize,
    trim,
)
from sd_scripts.families.anima.vae import LATENTS, encode_images
from sd_scripts.families.common.family import Blocks, Family, FileIdentity, Saving, TextEncoding, blocks_of
from sd_scripts.families.common.objective import flow_metadata

FAMILY = ANIMA = Family(
    card=CARD,
    identity=FileIdentity(
        base_model_version=CARD.name,
        architecture=lambda components: "anima-preview",
        implementation="https://huggingface.co/circlestone-labs/Anima",
        lora_metadata=flow_metadata,
    ),
    text=TextEncoding(
        tokenize=tokenize,
        encode=encode_text,
        prompt_captions=prompt_captions,
        adapted=lambda settings: (True,),
        cache_suffix="anima_te",
        cache_key=text_cache_key,
        cache_fits=text_cache_fits,
        limit=text_limit,
        trim=trim,
        pad=pad,
    ),
    blocks=Blocks(
        title=CARD.title,
        denoiser=BLOCK_LISTS.of,
        graph_kinds=lambda transformer: {"AnimaBlock": 1},
        index=part_of,
        text_encoder=blocks_of(Qwen3DecoderLayer),
        vae=lambda vae: blocks_of(QwenImageResidualBlock)(vae.get_submodule("encoder")),
    ),
    latents=LATENTS,
    layouts=LAYOUTS,
    prepare=prepare,
    problems=problems,
    encode_images=encode_images,
    place=BLOCK_LISTS.place,
    step_inputs=step_inputs,
    loss=loss,
    lora=TRANSFORMER,
    lora_text_encoders=TEXT_ENCODERS,
    sample=sample,
    sample_batch=sample_batch,
    saving=Saving(
        tensors=lambda components, weights: {f"net.{name}": each for name, each in weights.denoiser.items()},
        writes_all=False,
    ),
)
