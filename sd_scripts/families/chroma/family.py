"""Chroma as a record for the trainer: FLUX.1's blocks and objective, captions read by T5 alone."""

from dataclasses import replace

from sd_scripts.families.chroma.card import ARCHITECTURE, CARD
from sd_scripts.families.chroma.keys import APPROXIMATOR
from sd_scripts.families.chroma.load import LAYOUTS, expected, prepare
from sd_scripts.families.chroma.lora import TEXT_ENCODERS, TRANSFORMER
from sd_scripts.families.chroma.objective import loss, metadata
from sd_scripts.families.chroma.sampling import prompt_captions, sample, sample_batch
from sd_scripts.families.chroma.text import (
    OUTPUTS,
    encode_text,
    text_cache_fits,
    text_cache_key,
    text_limit,
    tokenize,
)
from sd_scripts.families.common.family import FileIdentity, TextEncoding
from sd_scripts.families.flux.card.options import FluxModelOptions, FluxNetworkOptions, trains_t5xxl
from sd_scripts.families.flux.family import FLUX
from sd_scripts.families.flux.objective import OBJECTIVE_METADATA
from sd_scripts.options.networks.network import NetworkOptions

FAMILY = CHROMA = replace(
    FLUX,
    card=CARD,
    identity=FileIdentity(
        base_model_version=CARD.name,
        architecture=lambda components: ARCHITECTURE,
        implementation="https://huggingface.co/lodestones/Chroma",
        lora_options=OBJECTIVE_METADATA,
        lora_metadata=metadata,
    ),
    text=TextEncoding(
        tokenize=tokenize,
        encode=encode_text,
        prompt_captions=prompt_captions,
        adapted=lambda settings: (trains_t5xxl(settings[NetworkOptions], settings[FluxNetworkOptions]),),
        cache_suffix="chroma_te",
        cache_key=text_cache_key,
        cache_fits=text_cache_fits,
        limit=text_limit,
        reads=lambda limit: (limit - 1,),  # without T5's end
        trim=OUTPUTS.trim,
        pad=OUTPUTS.pad,
    ),
    blocks=replace(FLUX.blocks, title=CARD.title),
    layouts=LAYOUTS,
    prepare=lambda components, settings: prepare(components, settings[FluxModelOptions]),
    expected=expected,
    problems=lambda sources, settings: [],
    loss=loss,
    frozen=APPROXIMATOR,
    lora=TRANSFORMER,
    lora_text_encoders=TEXT_ENCODERS,
    sample=sample,
    sample_batch=sample_batch,
)
