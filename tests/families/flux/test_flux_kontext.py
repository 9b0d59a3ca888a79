"""FLUX.1 Kontext: the transformer and the samples of diffusers, and what its files are known by."""

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import FluxKontextPipeline
from PIL import Image

from sd_scripts.families.cards.model_file import describe, recognise
from sd_scripts.families.cards.registry import card_by_network, card_of, common_family
from sd_scripts.families.common.family import Components, TextOptions
from sd_scripts.families.flux.model import FluxParams, rope_table
from sd_scripts.families.flux.objective import predict
from sd_scripts.families.flux.sampling import prompt_captions, sample
from sd_scripts.families.flux.text import encode_text, tokenize
from sd_scripts.families.flux.tiny import tiny_modules
from sd_scripts.families.flux_kontext.card import CARD
from sd_scripts.families.flux_kontext.family import KONTEXT
from sd_scripts.formats.models.safetensors_header import Header
from sd_scripts.library.diffusion.dit_layers import pack, rope_widths, unpack
from sd_scripts.options.generating.prompt_lines import SamplePrompt
from sd_scripts.settings.catalog import script_for
from sd_scripts.settings.command_line import given_flags
from sd_scripts.settings.reading import from_values
from sd_scripts.settings.settings import Settings
from sd_scripts.testing.miniature import clip_tokenizer, t5_tokenizer
from tests.support.data import make_image
from tests.support.families.flux_pipeline import pipeline_of, transformer_of

pytestmark = pytest.mark.run

LORA = script_for("flux_kontext", "lora")
POSITIONS = json.loads((Path(__file__).parents[2] / "reference" / "fixtures_control_images.json").read_text())[
    "positions"
]
PROMPT: dict[str, Any] = {"prompt": "a red circle", "width": 64, "height": 80, "seed": 1, "steps": 3, "scale": 1.0}
T5_LENGTH = 16


def settings_of(**values: Any) -> Settings:
    return from_values(LORA, {"learning_rate": 1e-4, **values})


@pytest.fixture(scope="module")
def components() -> Components:
    clip = clip_tokenizer()
    modules = tiny_modules(len(clip))
    for module in modules.values():
        module.eval().requires_grad_(False)
    return Components(
        denoiser=modules["denoiser"],
        vae=modules["vae"],
        text_encoders=[modules["text_encoder1"], modules["text_encoder2"]],
        tokenizers=[clip, t5_tokenizer()],
        source="tiny",
        extras={"variant": "dev", "t5_length": T5_LENGTH, "apply_t5_attn_mask": False},
    )


def test_tokens_of_control_images_have_the_positions_of_the_reference() -> None:
    shape, ids = FluxParams(), torch.tensor(POSITIONS["ids"], dtype=torch.float64)
    rates = [
        10_000 ** -(torch.arange(0, width, 2, dtype=torch.float64) / width) for width in rope_widths(shape.head_width)
    ]
    angles = torch.cat([ids[:, [axis]] * rate for axis, rate in enumerate(rates)], dim=1)
    grids = tuple(POSITIONS["target_latent_tokens"]), tuple(POSITIONS["control_latent_tokens"])
    cos, sin = rope_table(shape, grids, 2, torch.device("cpu"))  # type: ignore[arg-type]
    torch.testing.assert_close(cos[0, :-2, 0], angles.cos().float())
    torch.testing.assert_close(sin[0, :-2, 0], angles.sin().float())


def ids_of(images: list[torch.Tensor]) -> torch.Tensor:
    """diffusers' img_ids: the noisy image has number 0, its control images 1, 2, ..."""
    made = []
    for number, image in enumerate(images):
        rows, columns = image.shape[-2] // 2, image.shape[-1] // 2
        grid = torch.zeros(rows, columns, 3)
        grid[..., 0], grid[..., 1], grid[..., 2] = number, torch.arange(rows)[:, None], torch.arange(columns)[None]
        made.append(grid.view(-1, 3))
    return torch.cat(made)


@pytest.mark.parametrize(("dtype", "error"), [(torch.float32, 1e-5), (torch.bfloat16, 4e-2)])
def test_the_prediction_matches_diffusers_with_control_images(
    components: Components, dtype: torch.dtype, error: float
) -> None:
    theirs = transformer_of(components).to(dtype)
    ours: Any = deepcopy(components.denoiser).to(dtype)
    generator = torch.Generator().manual_seed(2)
    shape = ours.shape
    text = {
        "t5_out": torch.randn(2, 5, shape.text_width, generator=generator),
        "l_pooled": torch.randn(2, shape.pooled_width, generator=generator),
    }
    noisy, *controls = images = [torch.randn(2, 16, *size, generator=generator) for size in ((8, 4), (4, 6), (2, 2))]
    # diffusers rounds both to bfloat16, times 1000; these stay unchanged
    t, guidance = torch.tensor([0.25, 0.5]), torch.tensor([4.0, 4.0])
    with torch.no_grad():
        expected = theirs(
            hidden_states=torch.cat([pack(image) for image in images], dim=1).to(dtype),
            encoder_hidden_states=text["t5_out"].to(dtype),
            pooled_projections=text["l_pooled"].to(dtype),
            timestep=t,
            guidance=guidance,
            img_ids=ids_of(images),
            txt_ids=torch.zeros(text["t5_out"].shape[1], 3),
        ).sample[:, : pack(noisy).shape[1]]
        found = predict(ours, noisy, t, text, guidance, masked=False, controls=controls)
        without = predict(ours, noisy, t, text, guidance, masked=False)
    scale = expected.float().abs().max()
    assert ((found - unpack(expected.float(), (4, 2))).abs().max() / scale).item() < error
    assert ((found - without).abs().max() / scale).item() > 3 * error


def made(components: Components, **changes: Any) -> np.ndarray:
    prompt, settings = SamplePrompt(**{**PROMPT, **changes}), settings_of()
    with torch.no_grad():
        text = encode_text(components, tokenize(components, prompt_captions(prompt), TextOptions.of(settings)))
    return sample(components, prompt, text, settings).frames[0].numpy() / 255


@pytest.mark.parametrize(("scale", "negative"), [(1.0, ""), (3.0, "a blue square")])
def test_a_sample_matches_diffusers_with_the_same_noise_and_control_image(
    components: Components, scale: float, negative: str, tmp_path: Path
) -> None:
    control = make_image(tmp_path / "before.png", (64, 80), seed=4)
    pipeline = pipeline_of(components, FluxKontextPipeline)
    theirs = pipeline(
        Image.open(control),
        PROMPT["prompt"],
        negative_prompt=negative or None,
        true_cfg_scale=scale,
        guidance_scale=2.5,
        width=64,
        height=80,
        max_area=64 * 80,
        _auto_resize=False,
        num_inference_steps=3,
        max_sequence_length=T5_LENGTH,
        generator=torch.Generator().manual_seed(1),
        output_type="np",
    ).images[0]
    changes = {"guidance": 2.5, "scale": scale, "negative_prompt": negative}
    ours = made(components, control_images=(str(control),), **changes)
    assert np.abs(ours - theirs).max() < 2 / 255
    assert np.abs(made(components, **changes) - theirs).max() > 8 / 255


def test_a_file_is_known_by_its_metadata_and_a_folder_by_its_pipeline(components: Components, tmp_path: Path) -> None:
    """Keys and shapes equal FLUX.1 dev's."""
    shapes = {"double_blocks.0.img_attn.qkv.weight": (9216, 3072), "guidance_in.in_layer.weight": (3072, 256)}
    told = {"modelspec.architecture": KONTEXT.identity.architecture(components)}
    assert recognise(Header(metadata=told, shapes=shapes, dtypes={})) == ("flux_kontext", "FLUX.1 Kontext")
    assert recognise(Header(metadata={}, shapes=shapes, dtypes={})) == ("flux", "FLUX.1 dev")
    lora = {"ss_base_model_version": "flux_kontext", "ss_network_module": "networks.lora"}
    assert recognise(Header(metadata=lora, shapes=shapes, dtypes={})) == ("flux_kontext", "FLUX.1 Kontext LoRA")
    (tmp_path / "model_index.json").write_text('{"_class_name": "FluxKontextPipeline"}')
    assert describe(tmp_path).family == "flux_kontext"


def test_kontext_trains_files_recognised_as_flux_but_not_the_reverse() -> None:
    assert CARD.trains("flux")
    assert CARD.trains("flux_kontext")
    assert not card_of("flux").trains("flux_kontext")
    assert not CARD.trains("sdxl")
    assert card_by_network("networks.lora_flux") is card_of("flux")
    assert not [p for p in settings_of(network_module="networks.lora_flux").problems() if "network_module" in p.names]


def test_tools_accept_its_files_that_look_like_flux() -> None:
    assert common_family(["flux", "flux_kontext"]) == "flux_kontext"
    assert common_family(["flux_kontext", "flux"]) == "flux_kontext"
    assert common_family(["flux", "flux"]) == "flux"
    assert common_family(["flux", "sdxl"]) is None


def test_flags_of_musubi_tuner_are_understood(tmp_path: Path) -> None:
    flags = [f"--{name}={name}" for name in ("dit", "vae", "text_encoder1", "text_encoder2")]
    flags += ["--fp8_base", "--fp8_scaled", "--sdpa"]
    given = given_flags(LORA, flags)
    settings = from_values(LORA, given.values)
    assert given.problems == []
    assert settings.unknown == {}
    names = ("pretrained_model_name_or_path", "ae", "t5xxl", "clip_l", "vae")
    assert [settings.value(name) for name in names] == ["dit", "vae", "text_encoder1", "text_encoder2", None]
    assert from_values(LORA, {"dit": "d", "pretrained_model_name_or_path": "m"}).value(names[0]) == "m"
    assert given_flags(script_for("flux", "lora"), ["--text_encoder1", "t"]).problems


def test_a_preset_is_for_the_family_in_its_name() -> None:
    from kohya_gui.form.presets import PRESETS
    from kohya_gui.lora_gui import LORA as TAB

    preset = PRESETS / "lora/flux_kontext_safe_start.toml"
    for shown in ("flux_kontext", "sdxl"):
        assert TAB.open_configuration(preset, shown).family == "flux_kontext"


def test_files_without_a_family_are_recognised_by_its_own_keys(tmp_path: Path) -> None:
    from kohya_gui.form.configuration import family_of

    assert family_of({"control_directory": "/before", "t5xxl": "/t5"}, "lora") == "flux_kontext"
    assert family_of({"t5xxl": "/t5"}, "lora") == "flux"
    assert family_of({"network_module": "networks.lora_flux"}, "lora") == "flux"
    assert family_of({"pretrained_model_name_or_path": "black-forest-labs/FLUX.1-Kontext-dev"}, "lora") == CARD.name
