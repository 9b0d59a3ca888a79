"""SDXL's components: how each is made from its files, and the other contents of a checkpoint."""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sd_scripts.families.common.components import DENOISER, VAE, Components, WeightSource
from sd_scripts.families.common.encoders.outlines import CLIPTextProjectionOutline
from sd_scripts.families.common.layouts import CLIP_LINEAR, Layout, autoencoder, clip_l, make_text_encoder, whole_file
from sd_scripts.families.sdxl import keys as sgm
from sd_scripts.families.sdxl.card import CARD
from sd_scripts.families.sdxl.unet import prepare_exact_unet, prepare_unet
from sd_scripts.library.files.lean_diffusers import UNet2DConditionModel
from sd_scripts.library.files.model_reader import read_weights
from sd_scripts.library.files.state_dicts import State
from sd_scripts.library.text.tokenizers import CLIP, OPEN_CLIP
from sd_scripts.options.model import MODEL, ModelOptions
from sd_scripts.options.optimization.loss import NoiseOptions

LOGIT_SCALE = 4.6055
"""OpenCLIP bigG's value, for files saved without it."""
MARKERS = {"v_pred": "velocity", "ztsnr": "zero_terminal_snr"}
"""Marker tensor by which programs recognise how to sample a checkpoint -> its entry in the schedule."""
SIZE_WIDTH = 6 * 256
"""Values in which the U-Net reads original size, crop and target size."""

LINEAR = re.compile(r".*\.(transformer_blocks\.\d+\..*|time_emb_proj)\.weight")
"""Names of the U-Net's weights that can be quantized: the Linears in the blocks that `place` moves one by one."""

LAYOUTS = {
    DENOISER: Layout(
        make=lambda shapes: UNet2DConditionModel(**sgm.unet_config(shapes)),
        read=sgm.read_unet,
        write=sgm.write_unet,
        finish=prepare_unet,
        library="diffusers.UNet2DConditionModel",
        quantizable=LINEAR,
    ),
    "text_encoder1": clip_l(library="transformers.CLIPTextModel", tokenizer=CLIP, quantizable=CLIP_LINEAR),
    "text_encoder2": Layout(
        make=lambda shapes: make_text_encoder(
            "CLIPTextModelWithProjection", "CLIPTextConfig", sgm.text_encoder2_config(shapes)
        ),
        outline=lambda shapes: CLIPTextProjectionOutline(**sgm.text_encoder2_config(shapes)),
        read=sgm.read_text_encoder2,
        write=sgm.write_text_encoder2,
        library="transformers.CLIPTextModelWithProjection",
        tokenizer=OPEN_CLIP,
        quantizable=CLIP_LINEAR,
    ),
    VAE: autoencoder({"scaling_factor": sgm.VAE_SCALE}, library="diffusers.AutoencoderKL"),
}


def single_file(states: Mapping[str, State], logit_scale: Tensor | None = None) -> State:
    """Return the tensors of a checkpoint with these components, given as state dicts by component."""
    scale = torch.tensor(LOGIT_SCALE) if logit_scale is None else logit_scale
    return whole_file(CARD, LAYOUTS, states) | {sgm.LOGIT_SCALE: scale}


def prepare(components: Components, model: ModelOptions, noise: NoiseOptions, *, exact_norms: bool) -> None:
    """Keep tensors that saving writes unchanged, and values that sampling and encoding read. `exact_norms`: norms are
    computed in float32."""
    if exact_norms:
        components.sources[DENOISER] = replace(components.sources[DENOISER], finish=prepare_exact_unet)
    components.extras = {
        **_read_extras(Path(components.source)),
        "schedule": {
            "velocity": model.v_parameterization,
            "zero_terminal_snr": noise.zero_terminal_snr,
        },
        "clip_skip": model.clip_skip,
    }


def width_problems(sources: Mapping[str, WeightSource]) -> list[str]:
    """Return a problem for each layer of the U-Net whose text or size input has a different width."""
    if not {DENOISER, "text_encoder1", "text_encoder2"} <= sources.keys():
        return []
    configs: list[Any] = [sources[name].empty.config for name in (DENOISER, "text_encoder1", "text_encoder2")]
    unet, first, second = configs
    pairs = (
        ("captions", unet.cross_attention_dim, first.hidden_size + second.hidden_size),
        ("size and pooled caption", unet.projection_class_embeddings_input_dim, SIZE_WIDTH + second.projection_dim),
    )
    return [
        f"{MODEL}: the U-Net of '{sources[DENOISER].path}' reads {what} as {expected} values, but SDXL's encoders "
        f"produce {width}; choose {CARD.files.base_file}"
        for what, expected, width in pairs
        if expected != width
    ]


def _read_extras(source: Path) -> dict[str, Any]:
    """Return the tensors of a checkpoint besides the components."""
    file = read_weights(source, MODEL, prefix=(sgm.LOGIT_SCALE, *MARKERS)) if source.is_file() else {}
    return {
        "logit_scale": file.get(sgm.LOGIT_SCALE, torch.tensor(LOGIT_SCALE)).clone(),
        "marks": {key: file[key].clone() for key in MARKERS if key in file},
    }
