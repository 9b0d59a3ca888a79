"""Wan's components: how each is created from its files and stored in memory, and which do not fit together."""

from collections.abc import Mapping
from typing import Any

from torch import nn

from sd_scripts.families.common.components import DENOISER, VAE, Components, WeightSource
from sd_scripts.families.common.encoders import umt5
from sd_scripts.families.common.encoders.causal_vae import LEVELS, vae_config, vae_from_single_file
from sd_scripts.families.common.encoders.vision import CLIP_LAYOUT
from sd_scripts.families.common.layouts import Layout
from sd_scripts.families.common.placing import BlockLists
from sd_scripts.families.common.problems import Expected, params_of
from sd_scripts.families.wan.card import HIGH_NOISE
from sd_scripts.families.wan.card.options import WanModelOptions
from sd_scripts.families.wan.card.tasks import Task, task_of
from sd_scripts.families.wan.conditions import IMAGE_ENCODER, READS_START, follows_control
from sd_scripts.families.wan.keys import KEYS
from sd_scripts.families.wan.model import WanParams, WanTransformer
from sd_scripts.library.files.lean_diffusers import AutoencoderKLWan
from sd_scripts.library.files.state_dicts import Shapes

TEXT_ENCODER = "text_encoder1"
BLOCK_LISTS = BlockLists(names={"blocks": ""})


def make_vae(shapes: Shapes) -> nn.Module:
    """Return the VAE of Wan 2.1, from shapes under diffusers' keys. Raises KeyError with a missing key, or ValueError
    for Wan 2.2's."""
    if LEVELS in shapes:
        raise ValueError("it is the VAE of Wan 2.2's 5B model")
    config = vae_config(shapes)
    channels = config.pop("input_channels")
    return AutoencoderKLWan(**config, in_channels=channels, out_channels=channels)


TRANSFORMER = Layout(
    make=lambda shapes: WanTransformer(WanParams.of(shapes)), unify=KEYS.from_diffusers, quantizable=BLOCK_LISTS.weights
)
LAYOUTS = {
    DENOISER: TRANSFORMER,
    TEXT_ENCODER: umt5.LAYOUT,
    HIGH_NOISE: TRANSFORMER,
    VAE: Layout(make=make_vae, unify=vae_from_single_file),
    IMAGE_ENCODER: CLIP_LAYOUT,
}


def prepare(components: Components, options: WanModelOptions) -> None:
    components.extras[READS_START] = task_of(options.task).reads_start


def expected(sources: Mapping[str, WeightSource]) -> Expected:
    params: WanParams = params_of(sources)
    return {TEXT_ENCODER: ("d_model", params.text_width), VAE: ("z_dim", params.channels)}


def problems(sources: Mapping[str, WeightSource], options: WanModelOptions) -> list[str]:
    """Return problems of the second model and of the image encoder."""
    params: WanParams = params_of(sources)
    return [
        *_expert_problems(sources.get(HIGH_NOISE), params),
        *_image_problems(sources.get(IMAGE_ENCODER), params, task_of(options.task)),
    ]


def _expert_problems(source: WeightSource | None, params: WanParams) -> list[str]:
    """Return a problem if the model for high noise is of different sizes."""
    high: Any = source.empty if source else None
    if source is None or high.params == params:
        return []
    return [
        f"dit_high_noise: '{source.path}' is not of the same model as the transformer; choose the one that belongs "
        "to it"
    ]


def _image_problems(clip: WeightSource | None, params: WanParams, task: Task) -> list[str]:
    """Return a problem if the transformer reads image features that no encoder makes."""
    needed = task.reads_start or not follows_control(params)
    if params.image_width is None or (clip is None and not needed):
        return []
    if clip is None:
        return ["clip: not set, but this model reads an image; set it to the file of CLIP's image encoder"]
    config: Any = clip.empty.config
    if config.hidden_size == params.image_width:
        return []
    return [
        f"clip: '{clip.path}' produces vectors of {config.hidden_size} values, but the transformer expects "
        f"{params.image_width}; choose the CLIP ViT-H image encoder of Wan"
    ]
