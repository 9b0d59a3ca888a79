"""Panels shared by several training tabs."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from gradio.components import FormComponent

from kohya_gui import recognise
from kohya_gui.allowed_paths import AllowedPaths
from kohya_gui.controls import Advice, Form
from kohya_gui.dataset_tools_gui import FolderHelper
from kohya_gui.prompt_editor import prompt_editor
from kohya_gui.training import Panel
from sd_scripts.options.dataset import CacheOptions
from sd_scripts.options.flux import RECOMMENDED, FluxMemoryOptions, FluxModelOptions, FluxObjectiveOptions
from sd_scripts.options.full import FullOptions, FusedOptions, ModelFileOptions
from sd_scripts.options.metadata import MetadataOptions
from sd_scripts.options.sampling import SampleOptions
from sd_scripts.options.saving import EmaOptions, LoraFileOptions, SavingOptions
from sd_scripts.runs.queue import RunQueue

BASE_MODEL = "pretrained_model_name_or_path"


def good_timesteps(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the recommended values; schnell has no guidance embedding, so guidance_scale keeps its default there."""
    schnell = recognise.model(values.get(BASE_MODEL) or "", "flux").text.startswith("FLUX.1 schnell")
    return {**RECOMMENDED, "guidance_scale": FluxObjectiveOptions.guidance_scale} if schnell else RECOMMENDED


GOOD_TIMESTEPS = Advice(
    family="flux",
    about=(BASE_MODEL, *RECOMMENDED),
    good=good_timesteps,
    text="**Recommended for FLUX.1:** "
    + ", ".join(f"`{name} = {value}`" for name, value in RECOMMENDED.items())
    + f" (schnell has no guidance and keeps {FluxObjectiveOptions.guidance_scale}). "
    "The sd-scripts defaults do not match what FLUX.1 predicts.",
    button="Apply",
)


def folder_helper(tab: str, queue: RunQueue, allowed_paths: AllowedPaths) -> Callable[[Form, FormComponent], None]:
    """Lay out the helper that creates folders named like 10_cat."""
    helper = FolderHelper(tab, allowed_paths)
    return lambda form, family: helper.connect(form)


MODEL = Panel(
    "Model",
    (
        *("pretrained_model_name_or_path", "clip_l", "t5xxl", "ae", "t5xxl_max_token_length"),
        *("apply_t5_attn_mask", "vae", "max_token_length", "clip_skip", "no_half_vae", "v_parameterization"),
    ),
    rest=(FluxModelOptions,),
    open=True,
)
SAVING = Panel(
    "Saving", ("output_dir", "output_name"), rest=(ModelFileOptions, SavingOptions, LoraFileOptions), open=True
)
FULL = Panel(FullOptions.title, ("train_text_encoder", "learning_rate_te1", "learning_rate_te2", "block_lr"), open=True)
BASIC = Panel(
    "Basic",
    (
        *("max_train_steps", "max_train_epochs", "train_batch_size"),
        *("resolution", "caption_extension", "enable_bucket"),
        *("learning_rate", "unet_lr", "text_encoder_lr"),
        *("optimizer_type", "lr_scheduler", "lr_warmup_steps"),
        *("mixed_precision", "seed", "gradient_accumulation_steps"),
        *("cache_latents", "cache_text_encoder_outputs", "shuffle_caption"),
    ),
    rest=(CacheOptions,),
    open=True,
)
TIMESTEPS = Panel(
    FluxObjectiveOptions.title,
    (
        *("timestep_sampling", "discrete_flow_shift", "model_prediction_type"),
        *("guidance_scale", "sigmoid_scale", "weighting_scheme"),
    ),
    rest=(FluxObjectiveOptions,),
    advice=GOOD_TIMESTEPS,
    open=True,
)
MEMORY = Panel(
    "Memory",
    (
        *("gradient_checkpointing", "cpu_offload_checkpointing", "blocks_to_swap"),
        *("fp8_base", "fp8_base_unet", "fp8_compute", "lowram"),
    ),
    rest=(FluxMemoryOptions,),
    open=True,
)
MEMORY_OF_FULL = replace(
    MEMORY,
    names=(
        *("gradient_checkpointing", "full_bf16", "fused_backward_pass"),
        *("fused_optimizer_groups", "blockwise_fused_optimizers"),
        *("blocks_to_swap", "cpu_offload_checkpointing", "lowram"),
    ),
    rest=(FusedOptions, FluxMemoryOptions),
)
EMA = Panel(EmaOptions.title, rest=(EmaOptions,))
SAMPLES = Panel("Samples", rest=(SampleOptions,), tool=prompt_editor, tool_inside=True, late=True)
METADATA = Panel("Metadata", rest=(MetadataOptions,), late=True)
