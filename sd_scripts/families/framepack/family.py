"""FramePack as a record for the trainer."""

from dataclasses import replace

from sd_scripts.families.common.family import Conditions
from sd_scripts.families.framepack.card import CARD
from sd_scripts.families.framepack.card.options import FramePackOptions
from sd_scripts.families.framepack.load import BLOCK_LISTS, IMAGE_ENCODER, LAYOUTS, expected
from sd_scripts.families.framepack.lora import TEXT_ENCODERS, TRANSFORMER
from sd_scripts.families.framepack.objective import loss, step_inputs
from sd_scripts.families.framepack.sampling import sample
from sd_scripts.families.framepack.text import (
    IMAGE,
    encode_conditions,
    encode_text,
    prompt_captions,
    tokenize,
    trim_text,
)
from sd_scripts.families.hunyuan_video.family import HUNYUAN_VIDEO

FAMILY = FRAMEPACK = replace(
    HUNYUAN_VIDEO,
    card=CARD,
    identity=replace(
        HUNYUAN_VIDEO.identity,
        base_model_version="framepack",
        architecture=lambda components: "framepack",
        implementation="https://github.com/lllyasviel/FramePack",
    ),
    text=replace(
        HUNYUAN_VIDEO.text,
        tokenize=tokenize,
        cache_suffix="framepack_te",
        sees_controls=True,
        encode=encode_text,
        prompt_captions=prompt_captions,
        adapted=lambda settings: (True, True, False),
        trim=trim_text,
    ),
    blocks=replace(
        HUNYUAN_VIDEO.blocks,
        title="FramePack",
        denoiser=BLOCK_LISTS.of,
        graph_kinds=lambda framepack: {"HunyuanVideoTransformerBlock": 1, "HunyuanVideoSingleTransformerBlock": 1},
    ),
    latents=replace(HUNYUAN_VIDEO.latents, suffix="framepack"),
    layouts=LAYOUTS,
    expected=expected,
    block_lists=BLOCK_LISTS,
    conditions=Conditions(names=lambda components: (IMAGE,), encode=encode_conditions, components=(IMAGE_ENCODER,)),
    objective_group=FramePackOptions,
    step_inputs=step_inputs,
    loss=loss,
    lora=TRANSFORMER,
    lora_text_encoders=TEXT_ENCODERS,
    sample=sample,
)
