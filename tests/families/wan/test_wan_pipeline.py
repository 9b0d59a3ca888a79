"""Samples of Wan against diffusers' pipelines: the whole denoising, with equal noise, text and images."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import (
    FlowMatchEulerDiscreteScheduler,
    UniPCMultistepScheduler,
    WanImageToVideoPipeline,
    WanPipeline,
    WanTransformer3DModel,
)
from PIL import Image
from safetensors.torch import load_file, save_file

from sd_scripts.families.common.components import DENOISER, VAE, Components
from sd_scripts.families.common.encoders.umt5 import MASK, STATES
from sd_scripts.families.common.family import family_of
from sd_scripts.families.common.placing import placement_of
from sd_scripts.families.wan.conditions import see
from sd_scripts.families.wan.keys import KEYS
from sd_scripts.families.wan.model import WanTransformer
from sd_scripts.families.wan.tiny import PARAMS, write_miniature
from sd_scripts.library.diffusion.flow_solvers import make_solver
from sd_scripts.options.generating.prompt_lines import SamplePrompt
from sd_scripts.settings.catalog import script_for
from sd_scripts.settings.settings import Settings
from sd_scripts.testing.miniature import Miniature
from tests.support.data import make_image
from tests.support.training import settings_for

PROMPT = SamplePrompt(width=64, height=96, frames=5, steps=3, scale=4.0, seed=3)
SCHEDULERS: dict[str, Any] = {
    "euler": FlowMatchEulerDiscreteScheduler(),
    "unipc": UniPCMultistepScheduler(use_flow_sigmas=True, prediction_type="flow_prediction", flow_shift=1.0),
}

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture(scope="module")
def image_miniature(tmp_path_factory: pytest.TempPathFactory) -> Miniature:
    """Wan 2.1 I2V."""
    return write_miniature(tmp_path_factory.mktemp("i2v") / "model", replace(PARAMS, in_channels=36, image_width=16))


def loaded(miniature: Any, **values: Any) -> tuple[Components, Settings]:
    """Return the placed components of a miniature, and settings."""
    known = {name: value for name, value in {**settings_for(miniature), **values}.items() if value is not None}
    texts = {name: str(value) if isinstance(value, Path) else value for name, value in known.items()}
    settings = Settings(script_for(miniature.family, "lora"), {**texts, "output_dir": "out", "train_data_dir": "in"})
    family = family_of(miniature.family)
    components = family.open(settings, torch.float32).load(DENOISER, VAE)
    family.place(components, placement_of(settings), torch.device("cpu"))
    return components, settings


def diffusers_of(model: WanTransformer) -> Any:
    """Return diffusers' transformer with the weights of ours."""
    params = model.params
    theirs = WanTransformer3DModel(
        num_attention_heads=params.heads,
        attention_head_dim=params.head_width,
        in_channels=params.in_channels,
        out_channels=params.channels,
        text_dim=params.text_width,
        ffn_dim=params.mlp_width,
        num_layers=params.blocks,
        image_dim=params.image_width,
        added_kv_proj_dim=params.width if params.image_width else None,
    )
    state = theirs.state_dict()
    read = KEYS.from_diffusers(dict(state))
    names = {id(tensor): name for name, tensor in read.items()}
    ours = model.state_dict()
    theirs.load_state_dict({key: ours[names[id(tensor)]].clone() for key, tensor in state.items()})
    return theirs.eval()


def text_of(components: Components) -> dict[str, torch.Tensor]:
    """Return text outputs for a negative prompt and a prompt."""
    width = components.denoiser.params.text_width  # type: ignore[union-attr]
    states = torch.randn(2, 7, width, generator=torch.Generator().manual_seed(5))  # type: ignore[arg-type]
    return {STATES: states, MASK: torch.ones(2, 7, dtype=torch.bool)}


def frames_of(pipeline: Any, text: dict[str, torch.Tensor], solver: str, shift: float, **more: Any) -> np.ndarray:
    """Return the frames (F, H, W, 3) in 0..255 that a pipeline makes with our sigmas and noise."""
    sigmas = np.array(make_solver(solver, PROMPT.steps, shift).sigmas[:-1])
    scheduler = pipeline.scheduler

    def set_timesteps(count: int, device: torch.device) -> None:
        """Set ours, with whole timesteps, as in the official code and for UniPC in diffusers too."""
        type(scheduler).set_timesteps(scheduler, device=device, sigmas=sigmas)
        scheduler.timesteps = torch.from_numpy(np.floor(1000 * sigmas)).float()

    scheduler.set_timesteps = set_timesteps
    padded = torch.nn.functional.pad(text[STATES], (0, 0, 0, 505))
    scale = pipeline.vae.config.scale_factor_spatial
    channels = pipeline.vae.config.z_dim
    shape = (1, channels, PROMPT.frames // 4 + 1, PROMPT.height // scale, PROMPT.width // scale)
    made = pipeline(
        height=PROMPT.height,
        width=PROMPT.width,
        num_frames=PROMPT.frames,
        num_inference_steps=PROMPT.steps,
        negative_prompt_embeds=padded[:1],
        prompt_embeds=padded[1:],
        latents=torch.randn(shape, generator=torch.Generator().manual_seed(PROMPT.seed or 0)),
        output_type="np",
        **{"guidance_scale": PROMPT.scale, **more},
    )
    return np.asarray(made.frames[0]) * 255


def ours(components: Components, settings: Settings, prompt: SamplePrompt) -> np.ndarray:
    family = family_of(settings.script.family)
    return family.sample(components, prompt, text_of(components), settings).frames.numpy()


def pipeline_of(kind: Any, components: Components, solver: str, models: Sequence[Any], **more: Any) -> Any:
    named = dict(zip(("transformer", "transformer_2"), models, strict=False))
    pipeline = kind(
        tokenizer=None, text_encoder=None, vae=components.vae, scheduler=SCHEDULERS[solver], **named, **more
    )
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def assert_same_frames(found: np.ndarray, expected: np.ndarray) -> None:
    """Rounded to 8 bits."""
    assert found.shape == expected.shape
    assert expected.std() > 10
    assert np.abs(found - expected).max() < 0.51 + 0.02


@pytest.mark.parametrize("solver", SCHEDULERS)
def test_a_clip_equals_the_pipelines(wan_miniature: Any, solver: str) -> None:
    components, settings = loaded(wan_miniature, sample_solver=solver)
    pipeline = pipeline_of(WanPipeline, components, solver, [diffusers_of(components.denoiser)])  # type: ignore[arg-type]
    expected = frames_of(pipeline, text_of(components), solver, 5.0)
    assert_same_frames(ours(components, settings, PROMPT), expected)


def test_a_clip_of_two_models_equals_the_pipelines(wan_miniature: Any, tmp_path: Path) -> None:
    """Each model has its own guidance."""
    state = {
        name: tensor * (0.7 if name.startswith("head.head") else 1)
        for name, tensor in load_file(wan_miniature.checkpoint).items()
    }
    save_file(state, tmp_path / "high.safetensors")
    more = {"dit_high_noise": tmp_path / "high.safetensors", "guidance_scale_high_noise": 2.0}
    components, settings = loaded(wan_miniature, sample_solver="euler", task="t2v-A14B", **more)
    low = diffusers_of(components.denoiser)  # type: ignore[arg-type]
    assert components.experts
    components.experts.use_for(1.0)
    high = diffusers_of(components.denoiser)  # type: ignore[arg-type]
    pipeline = pipeline_of(WanPipeline, components, "euler", [high, low], boundary_ratio=0.875)
    text = text_of(components)
    expected = frames_of(pipeline, text, "euler", 12.0, guidance_scale=2.0, guidance_scale_2=PROMPT.scale)
    assert_same_frames(ours(components, settings, PROMPT), expected)


def test_a_clip_from_an_image_equals_the_pipelines(image_miniature: Miniature, start: Path) -> None:
    """CLIP's features are ours: the pipeline crops images where the official code squashes them."""
    components, settings = loaded(image_miniature, sample_solver="unipc")
    components.load("image_encoder")
    image = Image.open(start)
    pixels = torch.from_numpy(np.asarray(image) / 127.5 - 1).float().permute(2, 0, 1)[None, :, None]
    transformer = diffusers_of(components.denoiser)  # type: ignore[arg-type]
    pipeline = pipeline_of(WanImageToVideoPipeline, components, "unipc", [transformer])
    pipeline.encode_image = lambda image, device: see(components, pixels)
    expected = frames_of(pipeline, text_of(components), "unipc", 5.0, image=image)
    assert_same_frames(ours(components, settings, replace(PROMPT, start_image=str(start))), expected)


def test_a_clip_of_the_5b_model_keeps_its_image_as_in_the_pipeline(wan_5b_miniature: Any, start: Path) -> None:
    components, settings = loaded(wan_5b_miniature, sample_solver="euler")
    transformer = diffusers_of(components.denoiser)  # type: ignore[arg-type]
    pipeline = pipeline_of(WanImageToVideoPipeline, components, "euler", [transformer], expand_timesteps=True)
    expected = frames_of(pipeline, text_of(components), "euler", 5.0, image=Image.open(start))
    assert_same_frames(ours(components, settings, replace(PROMPT, start_image=str(start))), expected)


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An image of the size of the clips."""
    return make_image(tmp_path_factory.mktemp("start") / "start.png", (PROMPT.width, PROMPT.height))
