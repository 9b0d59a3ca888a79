"""Wan 2.2 TI2V 5B as a record for the trainer: Wan's parts around a VAE of its own.

The first frame of a clip may be given: its latents stay as they are, at timestep 0.
"""

from dataclasses import replace
from functools import partial

from sd_scripts.families.common.flow_sampling import sample_clip
from sd_scripts.families.wan.family import WAN
from sd_scripts.families.wan.sampling import CLIP_VAE, generate
from sd_scripts.families.wan_5b.card import CARD
from sd_scripts.families.wan_5b.card.options import Wan5BOptions
from sd_scripts.families.wan_5b.load import LAYOUTS, expected
from sd_scripts.families.wan_5b.objective import loss, step_inputs
from sd_scripts.families.wan_5b.vae import LATENTS

FAMILY = replace(
    WAN,
    card=CARD,
    identity=replace(
        WAN.identity,
        base_model_version=CARD.name,
        implementation="https://github.com/Wan-Video/Wan2.2",
    ),
    text=replace(WAN.text, cache_suffix="wan_clip_te"),
    blocks=replace(WAN.blocks, title=CARD.title),
    latents=LATENTS,
    layouts=LAYOUTS,
    expected=expected,
    conditions=None,
    objective_group=Wan5BOptions,
    step_inputs=step_inputs,
    loss=loss,
    sample=partial(
        sample_clip, vae=replace(CLIP_VAE, shape=LATENTS.shape), generate=partial(generate, keeps_start=True)
    ),
)
