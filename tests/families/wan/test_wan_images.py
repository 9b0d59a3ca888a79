"""Wan's image-to-video models: what they read of a clip's frames, CLIP's features, and a run."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import av
import pytest
import torch
from torch import Tensor
from transformers import CLIPVisionModel

from sd_scripts.families.common.components import VAE, Components
from sd_scripts.families.common.encoders.causal_vae import encode_clip
from sd_scripts.families.common.encoders.vision import CLIP, CLIP_SIZES, clip_encoder, vision_config
from sd_scripts.families.wan.conditions import (
    CONDITION,
    FEATURES,
    IMAGE_ENCODER,
    conditions_of,
    encode_conditions,
    see,
)
from sd_scripts.families.wan.tiny import PARAMS, tiny_modules, write_miniature
from sd_scripts.testing import clips
from tests.support.data import make_image
from tests.support.training import train

I2V = replace(PARAMS, in_channels=36, image_width=16)
FLF2V = replace(I2V, image_tokens=10)


@pytest.fixture(scope="module")
def modules() -> dict[str, Any]:
    return tiny_modules(100, I2V)


def components_of(modules: dict[str, Any], params: Any = I2V) -> Components:
    denoiser = torch.nn.Module()
    denoiser.params = params
    return Components(
        denoiser=denoiser,
        vae=modules[VAE],
        text_encoders=[],
        tokenizers=[],
        source="",
        others={IMAGE_ENCODER: modules[IMAGE_ENCODER]},
    )


@torch.no_grad()
@pytest.mark.parametrize("params", [I2V, FLF2V])
def test_a_clip_is_conditioned_on_its_first_frame_and_in_some_models_on_its_last(
    modules: dict[str, Any], params: Any
) -> None:
    """The mask has the four frames of a latent frame as channels; the first frame counts as four."""
    pixels = torch.rand(1, 3, 9, 32, 48) * 2 - 1
    both = params is FLF2V
    condition = encode_conditions(components_of(modules, params), pixels)
    mask, latents = condition[CONDITION][0].split((4, 16))
    expected = torch.zeros(4, 3)
    expected[:, 0] = 1
    expected[3, 2] = both
    torch.testing.assert_close(mask, expected[..., None, None].expand(-1, -1, 4, 6))
    filled = torch.zeros_like(pixels)
    filled[:, :, 0] = pixels[:, :, 0]
    filled[:, :, -1] = both * pixels[:, :, -1]
    torch.testing.assert_close(latents, encode_clip(modules[VAE], filled)[0])
    assert condition[FEATURES].shape == (1, 10 if both else 5, 16)


@torch.no_grad()
def test_a_clip_can_end_with_an_image_alone(modules: dict[str, Any]) -> None:
    condition = conditions_of(components_of(modules), None, 5, torch.zeros(1, 3, 1, 32, 32))
    assert condition[CONDITION][0, :4, :, 0, 0].tolist() == [[0, 0], [0, 0], [0, 0], [0, 1]]
    assert condition[FEATURES].shape == (1, 5, 16)


@torch.no_grad()
def test_clip_is_read_in_the_official_layout_and_sees_a_squashed_image(modules: dict[str, Any]) -> None:
    encoder: CLIPVisionModel = modules[IMAGE_ENCODER]
    state = encoder.state_dict()
    assert clip_encoder(dict(state)).keys() == state.keys()
    official = {f"visual.{key}": tensor for key, tensor in _official(state).items()} | {
        "visual.head": torch.zeros(1), "textual.log_scale": torch.zeros(1)
    }  # fmt: skip
    read = clip_encoder({key.removeprefix("visual."): t for key, t in official.items() if key.startswith("visual.")})
    torch.testing.assert_close(read, dict(state), rtol=0, atol=0)
    config = vision_config({key: tuple(tensor.shape) for key, tensor in read.items()}, **CLIP_SIZES)
    assert {name: getattr(encoder.config, name) for name in config} == config
    image = torch.full((1, 3, 1, 20, 40), 0.5)
    assert see(components_of(modules), image).shape == (1, 5, 16)


def _official(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Write CLIP's tensors under the official keys."""
    back = {theirs: ours for ours, theirs in CLIP.items()}
    official = {
        "cls_embedding": state["embeddings.class_embedding"].view(1, 1, -1),
        "pos_embedding": state["embeddings.position_embedding.weight"][None],
    }
    for key, tensor in state.items():
        place, inner = key, key
        if key.startswith("encoder.layers."):
            number, inner = key.removeprefix("encoder.layers.").split(".", 1)
            place = f"transformer.{number}."
            if inner.startswith("self_attn.q_proj"):
                kind = inner.rpartition(".")[2]
                parts = [state[f"encoder.layers.{number}.self_attn.{name}_proj.{kind}"] for name in "qkv"]
                official[f"{place}attn.to_qkv.{kind}"] = torch.cat(parts)
        else:
            place = ""
        module, _, kind = inner.rpartition(".")
        if module in back:
            official[f"{place}{back[module]}.{kind}"] = tensor
    return official


@pytest.mark.run
def test_it_trains_on_clips_from_the_cache_and_samples_from_an_image(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A sample of one frame would be its own condition: some are warned of, a dataset of nothing else is refused."""
    miniature = write_miniature(tmp_path / "model", I2V)
    data = clips.write_clips(tmp_path / "clips", size=(64, 64), frames=5, count=2)
    start = make_image(tmp_path / "start.png", (48, 48))
    prompts = tmp_path / "prompts.txt"
    prompts.write_text(f"a red circle --w 64 --h 64 --f 5 --s 2 --d 1 --i {start}\n")
    run = train(
        miniature,
        tmp_path / "out",
        train_data_dir=data,
        target_frames="1,5",
        caption_extension=".txt",
        sample_prompts=prompts,
        sample_every_n_steps=3,
    )
    assert run.status == 0
    (warning,) = run.events_of("warning")
    assert "2 of 4 samples have one frame" in warning["text"]
    layers = {key.partition(".")[0] for key in run.tensors()}
    assert sum(name.endswith(("_k_img", "_v_img")) for name in layers) == 2 * I2V.blocks
    (sample,) = run.events_of("sample")
    with av.open(sample["path"]) as clip:
        assert sum(1 for _ in clip.decode(video=0)) == 5
    without = train(miniature, tmp_path / "out2", clip=None)
    assert without.status != 0
    capsys.readouterr()
    assert train(miniature, tmp_path / "images").status == 2
    assert "target_frames: all samples have one frame" in capsys.readouterr().err
