"""Chroma's mathematics, keys, captions and samples against diffusers and transformers, at tiny size."""

import json
import re
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import ChromaPipeline
from torch import Tensor, nn

from benchmarks.pipelines.chroma import make_pipeline, make_transformer, to_diffusers
from sd_scripts.data.sources.captions import Caption
from sd_scripts.families.cards.model_file import recognise
from sd_scripts.families.cards.registry import card_of
from sd_scripts.families.chroma.card import CARD
from sd_scripts.families.chroma.card.memory_facts import DOUBLE, MEMORY, SINGLE
from sd_scripts.families.chroma.family import CHROMA
from sd_scripts.families.chroma.full_size import modules as full_size
from sd_scripts.families.chroma.load import LAYOUTS, T5XXL
from sd_scripts.families.chroma.lora import TRANSFORMER
from sd_scripts.families.chroma.model import ChromaParams, ChromaTransformer
from sd_scripts.families.chroma.objective import predict
from sd_scripts.families.chroma.sampling import prompt_captions, sample
from sd_scripts.families.chroma.text import MASK, OUTPUTS, STATES, encode_text, tokenize
from sd_scripts.families.chroma.tiny import SHAPE, tiny_modules
from sd_scripts.families.common.components import DENOISER, VAE
from sd_scripts.families.common.family import Components, TextOptions
from sd_scripts.families.flux import model as flux_model
from sd_scripts.families.flux.family import FLUX
from sd_scripts.families.flux.model import FluxParams, FluxTransformer
from sd_scripts.formats.models.safetensors_header import Header
from sd_scripts.library.diffusion.dit_layers import pack, unpack
from sd_scripts.networks.targets import adaptable
from sd_scripts.options.compile import CompileOptions
from sd_scripts.options.generating.prompt_lines import SamplePrompt
from sd_scripts.settings.catalog import script_for
from sd_scripts.settings.reading import from_values
from sd_scripts.settings.settings import Settings
from sd_scripts.testing.miniature import t5_tokenizer
from tests.support.families.formula_weights import formula_input, formula_weights

pytestmark = pytest.mark.run

REFERENCE = json.loads((Path(__file__).parents[2] / "reference/chroma.json").read_text())
GRID = (4, 2)
CAPTIONS = ["a red circle", "a blue square on a red circle"]
PROMPT: dict[str, Any] = {"prompt": CAPTIONS[0], "width": 64, "height": 80, "seed": 1, "steps": 3}


def settings_of(**values: Any) -> Settings:
    return from_values(script_for("chroma", "lora"), {"learning_rate": 1e-4, **values})


@pytest.fixture(scope="module")
def components() -> Components:
    modules = tiny_modules()
    for module in modules.values():
        module.eval().requires_grad_(False)
    return Components(
        denoiser=modules[DENOISER],
        vae=modules[VAE],
        text_encoders=[modules[T5XXL]],
        tokenizers=[t5_tokenizer()],
        source="tiny",
        extras={"t5_length": 16},
    )


def transformer_of(components: Components) -> Any:
    transformer = make_transformer(SHAPE)
    transformer.load_state_dict(to_diffusers(components.denoiser.state_dict()))
    return transformer.eval()


def encode(components: Components, captions: list[str]) -> dict[str, Tensor]:
    with torch.no_grad():
        tokens = tokenize(components, [*map(Caption, captions)], TextOptions.of(settings_of()))
        return encode_text(components, tokens)


# transformer


def test_the_forward_equals_the_official_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    reference = REFERENCE["forward"]
    config = reference["config"]
    monkeypatch.setattr(flux_model, "rope_widths", lambda head_width: config["axes_dim"])
    model = ChromaTransformer(
        ChromaParams(
            width=config["hidden_size"],
            heads=config["num_heads"],
            mlp_width=4 * config["hidden_size"],
            text_width=config["context_in_dim"],
            double_blocks=config["depth"],
            single_blocks=config["depth_single_blocks"],
            approximator_width=config["approximator_hidden_size"],
            approximator_layers=config["approximator_depth"],
        )
    )
    model.load_state_dict(formula_weights(model.state_dict()))
    inputs = reference["inputs"]
    img, txt = (formula_input(name, tuple(inputs[name])) for name in ("image", "context"))
    with torch.no_grad():
        output = model(img, txt, None, torch.tensor(inputs["t"]), None, tuple(inputs["grid"]))
    first, expected = output.flatten()[:24], reference["output"]
    torch.testing.assert_close(first, torch.tensor(expected["first"]), rtol=1e-4, atol=1e-4)
    assert output.square().sum().item() == pytest.approx(expected["sum_of_squares"], rel=1e-4)


def inputs_of(lengths: list[int]) -> tuple[Tensor, dict[str, Tensor], Tensor]:
    """Noisy latents, text of these lengths and timesteps, which diffusers' bfloat16 does not round."""
    generator = torch.Generator().manual_seed(2)
    noisy = torch.randn(2, 16, 2 * GRID[0], 2 * GRID[1], generator=generator)
    states = torch.randn(2, max(lengths), SHAPE.text_width, generator=generator)
    mask = torch.arange(max(lengths))[None] < torch.tensor(lengths)[:, None]
    return noisy, {STATES: states, MASK: mask}, torch.tensor([0.25, 0.5])


@pytest.mark.parametrize(("dtype", "error"), [(torch.float32, 1e-5), (torch.bfloat16, 4e-2)])
def test_the_prediction_matches_diffusers(components: Components, dtype: torch.dtype, error: float) -> None:
    theirs, ours = transformer_of(components).to(dtype), deepcopy(components.denoiser).to(dtype)
    noisy, text, t = inputs_of([7, 4])
    rows = torch.zeros(*GRID, 3)
    rows[..., 1], rows[..., 2] = torch.arange(GRID[0])[:, None], torch.arange(GRID[1])[None]
    with torch.no_grad():
        expected = theirs(
            hidden_states=pack(noisy).to(dtype),
            encoder_hidden_states=text[STATES].to(dtype),
            timestep=t,
            img_ids=rows.view(-1, 3),
            txt_ids=torch.zeros(7, 3),
            attention_mask=torch.cat((text[MASK], torch.ones(2, 8, dtype=torch.bool)), dim=1),
        ).sample
        found = predict(ours, noisy, t, text)
        unmasked = predict(ours, noisy, t, {STATES: text[STATES]})
    scale = expected.float().abs().max()
    assert ((found - unpack(expected.float(), GRID)).abs().max() / scale).item() < error
    assert ((found - unmasked)[1].abs().max() / scale).item() > 3 * error


def test_the_content_of_padding_changes_nothing(components: Components) -> None:
    noisy, text, t = inputs_of([7, 4])
    with torch.no_grad():
        alone = predict(components.denoiser, noisy[1:], t[1:], {STATES: text[STATES][1:, :4]})
        padded = predict(components.denoiser, noisy, t, text)
    torch.testing.assert_close(padded[1:], alone, rtol=1e-4, atol=1e-5)


def test_timesteps_are_not_rounded_in_half_precision(components: Components) -> None:
    ours: Any = deepcopy(components.denoiser).bfloat16()
    near = ours.conditioning(None, torch.tensor([0.5, 0.5005]), None)[2]
    assert not torch.equal(near[0], near[1])


# keys


def full_keys() -> dict[str, tuple[int, ...]]:
    return {
        key.replace(".N.", f".{number}."): tuple(shape)
        for key, (shape, *ends) in REFERENCE["transformer"].items()
        for number in (range(ends[0], ends[1] + 1) if ends else [0])
    }


def test_the_transformer_has_the_keys_and_shapes_of_the_official_file() -> None:
    model = full_size()[DENOISER]
    keys = full_keys()
    assert len(keys) == 643
    assert {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()} == keys
    assert ChromaParams.of(keys) == ChromaParams()
    assert sum(p.numel() for p in model.parameters()) == REFERENCE["parameters"] == MEMORY.values[DENOISER]


def block_layers(model: nn.Module) -> dict[str, Any]:
    """The layers that a LoRA adapts by default, by name."""
    layers = adaptable(model, TRANSFORMER, conv=False)
    return {TRANSFORMER.name(path): layer for path, layer in layers if "_blocks." in path}


def test_the_plan_counts_the_values_of_blocks_and_layers() -> None:
    model: Any = full_size()[DENOISER]
    sizes = [sum(p.numel() for p in blocks[0].parameters()) for blocks in (model.double_blocks, model.single_blocks)]
    assert sizes == [DOUBLE, SINGLE]
    layers = list(block_layers(model).values())
    assert sum(sum(layer.weight.shape) for layer in layers) == MEMORY.lora[DENOISER]
    projections = sum(each.count * (each.inputs * sum(each.outputs)) for each in MEMORY.projections)
    weights = sum(layer.weight.numel() for layer in layers)
    assert projections == weights == MEMORY.quantized[DENOISER][0]
    assert sum(len(layer.weight) for layer in layers) == MEMORY.quantized[DENOISER][1]


def test_layers_have_the_names_of_fluxs_without_its_modulations() -> None:
    with torch.device("meta"):
        flux = FluxTransformer(FluxParams())
    names = {name for name in block_layers(flux) if "_mod_" not in name and "_modulation_" not in name}
    assert block_layers(full_size()[DENOISER]).keys() == names
    assert len(names) == 19 * 8 + 38 * 2


def test_diffusers_finds_the_module_of_every_layer_in_our_file() -> None:
    file: dict[str, Tensor] = {}
    for name, layer in block_layers(full_size()[DENOISER]).items():
        file[f"{name}.lora_down.weight"] = torch.zeros(1, layer.in_features)
        file[f"{name}.lora_up.weight"] = torch.zeros(layer.out_features, 1)
        file[f"{name}.alpha"] = torch.tensor(1.0)
    read, *_ = ChromaPipeline.lora_state_dict(file, return_alphas=True)
    with torch.device("meta"):
        theirs = {
            f"transformer.{name}": tuple(part.weight.shape)
            for name, part in make_transformer(ChromaParams()).named_modules()
            if isinstance(part, nn.Linear) and "transformer_blocks." in name
        }
    rows = {key.removesuffix(".lora_B.weight"): len(each) for key, each in read.items() if ".lora_B." in key}
    columns = {key.removesuffix(".lora_A.weight"): each.shape[1] for key, each in read.items() if ".lora_A." in key}
    assert {name: (rows[name], columns[name]) for name in rows} == theirs


def layouts_of(components: Components) -> dict[str, dict[str, Tensor]]:
    original = dict(components.denoiser.state_dict())
    comfyui = {re.sub(r"(_norm|norms\.\d+)\.scale$", r"\1.weight", key): tensor for key, tensor in original.items()}
    return {"original": original, "comfyui": comfyui, "diffusers": dict(transformer_of(components).state_dict())}


@pytest.mark.parametrize("name", ["original", "comfyui", "diffusers"])
def test_every_layout_of_the_transformer_is_the_same_model(components: Components, name: str) -> None:
    file = LAYOUTS[DENOISER].unify(layouts_of(components)[name])
    expected = components.denoiser.state_dict()
    assert file.keys() == expected.keys()
    assert all(torch.equal(file[key], expected[key]) for key in expected)
    assert ChromaParams.of({key: tuple(tensor.shape) for key, tensor in file.items()}) == SHAPE


# captions


def test_captions_are_encoded_as_in_diffusers(components: Components) -> None:
    (encoder,), (tokenizer,) = components.text_encoders, components.tokenizers
    pipeline = make_pipeline(None, None, encoder, tokenizer)
    states, mask = pipeline._get_t5_prompt_embeds(CAPTIONS, max_sequence_length=16, device="cpu")
    ours = encode(components, CAPTIONS)
    tokens = ours[MASK].shape[1]
    assert torch.equal(ours[MASK], mask[:, :tokens].bool())
    assert not mask[:, tokens:].any()
    torch.testing.assert_close(ours[STATES], states[:, :tokens] * mask[:, :tokens, None], rtol=1e-4, atol=1e-5)


def test_one_token_of_padding_is_read_unless_the_caption_fills_the_length(components: Components) -> None:
    (tokenizer,) = components.tokenizers
    short, long = "a red circle", "circle " * 40
    text = encode(components, [short, long])
    assert text[MASK].sum(1).tolist() == [len(tokenizer(short).input_ids) + 1, 16]
    cached = CHROMA.text.trim({name: tensor[0] for name, tensor in text.items()})
    assert len(cached[STATES]) == len(cached[MASK]) == text[MASK][0].sum()
    assert cached[MASK].all()


def test_only_a_single_caption_of_an_uncompiled_run_has_no_mask(components: Components) -> None:
    one, two = encode(components, CAPTIONS[:1]), encode(components, CAPTIONS)
    eager, compiled = CompileOptions(), CompileOptions(compile=True)
    assert OUTPUTS.pad(one, eager).keys() == {STATES}
    assert OUTPUTS.pad(two, eager)[MASK].equal(two[MASK])
    for text in (one, two):
        padded = OUTPUTS.pad(text, compiled)
        assert padded[STATES].shape[1] == padded[MASK].shape[1] == 128
        assert padded[MASK].sum() == text[MASK].sum()


# samples


def made(components: Components, **changes: Any) -> np.ndarray:
    prompt, settings = SamplePrompt(**{**PROMPT, **changes}), settings_of()
    text = encode(components, [caption.text for caption in prompt_captions(prompt)])
    return sample(components, prompt, text, settings).frames[0].numpy() / 255


@pytest.mark.parametrize(("scale", "negative"), [(1.0, ""), (4.0, ""), (4.0, "a blue square")])
def test_a_sample_matches_diffusers_with_the_same_noise(components: Components, scale: float, negative: str) -> None:
    (encoder,), (tokenizer,) = components.text_encoders, components.tokenizers
    pipeline = make_pipeline(transformer_of(components), components.vae, encoder, tokenizer)
    pipeline.set_progress_bar_config(disable=True)
    theirs = pipeline(
        PROMPT["prompt"],
        negative_prompt=negative,
        guidance_scale=scale,
        width=64,
        height=80,
        num_inference_steps=3,
        max_sequence_length=16,
        generator=torch.Generator().manual_seed(1),
        output_type="np",
    ).images[0]
    ours = made(components, scale=scale, negative_prompt=negative)
    assert np.abs(ours - theirs).max() < 2 / 255
    assert scale == 1 or np.abs(made(components, scale=1.0) - theirs).max() > 8 / 255


# recognition


def header_of(shapes: Mapping[str, tuple[int, ...]], **metadata: str) -> Header:
    return Header(metadata=metadata, shapes=dict(shapes), dtypes={})


def test_files_are_recognised_by_their_approximator(components: Components) -> None:
    keys = full_keys()
    assert recognise(header_of(keys)) == ("chroma", "Chroma")
    comfyui = {f"model.diffusion_model.{key}": shape for key, shape in keys.items()}
    assert recognise(header_of(comfyui)) == ("chroma", "Chroma")
    diffusers = {key: tuple(each.shape) for key, each in layouts_of(components)["diffusers"].items()}
    assert recognise(header_of(diffusers)) == ("chroma", "Chroma")
    assert recognise(header_of({**keys, "nerf_blocks.0.x": (1,)})) == (None, "Chroma1-Radiance")
    lora = {"lora_unet_double_blocks_0_img_attn_qkv.lora_down.weight": (4, 3072)}
    assert recognise(header_of(lora, ss_base_model_version="chroma")) == ("chroma", "Chroma LoRA")
    assert recognise(header_of(lora)) == ("flux", "FLUX.1 LoRA")
    assert CARD.trains("flux"), "such a LoRA is accepted"


def test_models_of_flux_and_chroma_are_told_apart_before_they_load(flux_miniature: Any, chroma_miniature: Any) -> None:
    wrong = {**chroma_miniature.files, "pretrained_model_name_or_path": flux_miniature.checkpoint}
    assert CHROMA.check(settings_of(**{name: str(path) for name, path in wrong.items()})) == [
        f"pretrained_model_name_or_path: '{flux_miniature.checkpoint}' is not a Chroma transformer but FLUX.1 dev; "
        "train FLUX.1 with flux_train_network.py"
    ]
    wrong = {**flux_miniature.files, "pretrained_model_name_or_path": chroma_miniature.checkpoint}
    settings = from_values(script_for("flux", "lora"), {name: str(path) for name, path in wrong.items()})
    assert FLUX.check(settings) == [
        f"pretrained_model_name_or_path: '{chroma_miniature.checkpoint}' is not a FLUX.1 transformer but Chroma; "
        "train Chroma with chroma_train_network.py"
    ]


# sd-scripts


def test_the_scripts_of_flux_read_settings_of_chroma() -> None:
    values = {"model_type": "chroma", "guidance_scale": 0.0, "apply_t5_attn_mask": True, "learning_rate": 1e-4}
    settings = from_values(script_for("flux", "lora"), values)
    assert settings.script is script_for("chroma", "lora")
    assert {str(remark) for remark in settings.remarks if remark.name != "model_prediction_type"} == {
        "guidance_scale: has no effect for Chroma",
        "apply_t5_attn_mask: has no effect for Chroma",
    }
    named = from_values(script_for("flux", "lora"), {**values, "family": "flux"})
    assert named.script is script_for("flux", "lora")
    assert "model_type: chroma needs the scripts of Chroma; set flux, or use those" in map(str, named.problems())
    assert card_of("flux").selected_by is None
