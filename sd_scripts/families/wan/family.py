"""Wan as a record for the trainer."""

from diffusers.models.autoencoders.autoencoder_kl_wan import WanResidualBlock

from sd_scripts.families.common.encoders.causal_vae import encode_clips
from sd_scripts.families.common.encoders.umt5 import (
    OUTPUTS,
    encode_text,
    pad_text,
    text_cache_key,
    text_limit,
    tokenize,
)
from sd_scripts.families.common.family import Blocks, Family, FileIdentity, TextEncoding, blocks_named, blocks_of
from sd_scripts.families.common.objective import FLOW_METADATA
from sd_scripts.families.wan.card import CARD
from sd_scripts.families.wan.card.options import WanModelOptions
from sd_scripts.families.wan.conditions import CONDITIONS
from sd_scripts.families.wan.experts import expert_metadata, prepare
from sd_scripts.families.wan.load import BLOCK_LISTS, LAYOUTS, expected, problems
from sd_scripts.families.wan.lora import TEXT_ENCODERS, TRANSFORMER
from sd_scripts.families.wan.objective import loss, step_inputs
from sd_scripts.families.wan.sampling import LATENTS, prompt_captions, sample

FAMILY = WAN = Family(
    card=CARD,
    identity=FileIdentity(
        base_model_version="wan",
        architecture=lambda components: "wan",
        implementation="https://github.com/Wan-Video/Wan2.1",
        lora_options=(*FLOW_METADATA, "preserve_distribution_shape"),
        lora_metadata=expert_metadata,
    ),
    text=TextEncoding(
        tokenize=tokenize,
        encode=encode_text,
        prompt_captions=prompt_captions,
        cache_suffix="wan_clip_te",
        cache_key=text_cache_key,
        cache_fits=OUTPUTS.cache_fits,
        limit=text_limit,
        reads=lambda limit: (limit - 1,),  # without the end
        trim=OUTPUTS.trim,
        pad=pad_text,
    ),
    blocks=Blocks(
        title="Wan",
        denoiser=BLOCK_LISTS.of,
        graph_kinds=lambda transformer: {"WanAttentionBlock": 1},
        text_encoder=blocks_named("UMT5Block"),
        vae=lambda vae: blocks_of(WanResidualBlock)(vae.get_submodule("encoder")),
    ),
    latents=LATENTS,
    layouts=LAYOUTS,
    prepare=prepare,
    expected=expected,
    problems=lambda sources, settings: problems(sources, settings[WanModelOptions]),
    block_lists=BLOCK_LISTS,
    encode_images=encode_clips,
    conditions=CONDITIONS,
    step_inputs=step_inputs,
    loss=loss,
    lora=TRANSFORMER,
    lora_text_encoders=TEXT_ENCODERS,
    sample=sample,
)
