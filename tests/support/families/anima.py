"""Anima in diffusers at any size: its transformer, its adapter, its modular pipeline."""

import re
from types import SimpleNamespace
from typing import Any

import torch.nn.functional as F
from diffusers import AnimaAutoBlocks, AnimaTextConditioner, FlowMatchEulerDiscreteScheduler
from diffusers.guiders import ClassifierFreeGuidance
from diffusers.models.transformers import transformer_cosmos
from torch import Tensor

from benchmarks.pipelines.anima import make_transformer
from sd_scripts.families.anima.adapter import PREFIX, AdapterParams
from sd_scripts.families.anima.keys import diffusers_modules
from sd_scripts.families.anima.text import T5_TOKENIZER
from sd_scripts.families.common.components import Components
from sd_scripts.library.files.state_dicts import State


def _resize(mask: Tensor, size: list[int], interpolation: str) -> Tensor:
    return F.interpolate(mask, size=size, mode=interpolation)


# the only function of torchvision that the transformer calls, for its padding mask
transformer_cosmos.transforms = SimpleNamespace(
    functional=SimpleNamespace(resize=_resize), InterpolationMode=SimpleNamespace(NEAREST="nearest")
)


def make_conditioner(params: AdapterParams) -> Any:
    """Return diffusers' adapter of these sizes."""
    return AnimaTextConditioner(
        source_dim=params.states_width,
        target_dim=params.width,
        model_dim=params.width,
        num_layers=params.blocks,
        num_attention_heads=params.heads,
        mlp_ratio=params.mlp_width / params.width,
        target_vocab_size=params.words,
    ).eval()


def to_diffusers(state: State) -> tuple[State, State]:
    """Return the tensors of diffusers' transformer and of its adapter, from the official keys."""
    adapter = {key.removeprefix(PREFIX): tensor for key, tensor in state.items() if key.startswith(PREFIX)}
    others = (re.fullmatch(r"(.+)\.(\w+)", key) for key in state if not key.startswith(PREFIX))
    return {f"{diffusers_modules(key[1])[0]}.{key[2]}": state[key[0]] for key in others if key}, adapter


def in_diffusers(transformer: Any) -> tuple[Any, Any]:
    """Return diffusers' transformer and adapter with the weights of ours."""
    made = make_transformer(transformer.params).eval(), make_conditioner(transformer.params.adapter)
    for module, state in zip(made, to_diffusers(transformer.state_dict()), strict=True):
        module.load_state_dict(state)
    return made


def pipeline_of(components: Components, scale: float) -> Any:
    """Return the pipeline with the weights of our components, at this guidance."""
    transformer, conditioner = in_diffusers(components.denoiser)
    pipeline = AnimaAutoBlocks().init_pipeline()
    pipeline.update_components(
        transformer=transformer,
        text_conditioner=conditioner,
        text_encoder=components.text_encoders[0],
        tokenizer=components.tokenizers[0],
        t5_tokenizer=components.extras[T5_TOKENIZER][0],
        vae=components.vae,
        guider=ClassifierFreeGuidance(guidance_scale=scale),
        scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0),
    )
    pipeline.set_progress_bar_config(disable=True)
    return pipeline
