"""Krea 2's mathematics, keys, captions and samples against the official code, diffusers and transformers, at tiny
size."""

import json
import math
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from benchmarks.pipelines.krea2 import make_pipeline, make_transformer, to_diffusers
from sd_scripts.data.sources.captions import Caption
from sd_scripts.families.cards.model_file import recognise
from sd_scripts.families.common.components import DENOISER, VAE
from sd_scripts.families.common.encoders.qwen3 import config_of, qwen3
from sd_scripts.families.common.encoders.tiny_qwen3 import qwen3_tokenizer
from sd_scripts.families.common.family import Components, TextOptions
from sd_scripts.families.common.loading import shapes_of
from sd_scripts.families.krea2.card import LONGEST
from sd_scripts.families.krea2.card.memory_facts import BLOCK, MEMORY
from sd_scripts.families.krea2.card.timesteps import krea2_shift
from sd_scripts.families.krea2.full_size import modules
from sd_scripts.families.krea2.load import BLOCK_LISTS, LAYOUTS, ROPE_THETA, TEXT_ENCODER
from sd_scripts.families.krea2.lora import TEXT_ENCODERS, TRANSFORMER
from sd_scripts.families.krea2.model import Krea2Params, Krea2Transformer
from sd_scripts.families.krea2.objective import draw_timesteps, predict
from sd_scripts.families.krea2.sampling import prompt_captions, sample
from sd_scripts.families.krea2.text import LAYERS, MASK, STATES, TEMPLATE, encode_text, tokenize
from sd_scripts.families.krea2.tiny import PARAMS, tiny_modules
from sd_scripts.formats.models.safetensors_header import Header
from sd_scripts.library.diffusion.dit_layers import pack, unpack
from sd_scripts.library.text.tokenizers import shipped_qwen
from sd_scripts.networks.targets import adaptable
from sd_scripts.options.generating.prompt_lines import SamplePrompt
from sd_scripts.options.optimization.flow import FlowOptions
from sd_scripts.settings.catalog import script_for
from sd_scripts.settings.reading import from_values
from sd_scripts.settings.settings import Settings
from tests.support.families.formula_weights import formula_input, formula_weights

pytestmark = pytest.mark.run

REFERENCE = json.loads((Path(__file__).parents[2] / "reference/krea2.json").read_text())
CAPTIONS = ["a red circle", "a blue square on a red circle"]
TURBO_SHIFT = math.exp(1.15)


def settings_of(**values: Any) -> Settings:
    return from_values(script_for("krea2", "lora"), {"learning_rate": 1e-4, **values})


OPTIONS = TextOptions.of(settings_of())


@pytest.fixture(scope="module")
def whole() -> dict[str, Any]:
    """The components as transformers and diffusers have them: the text encoder with its vision tower."""
    made = tiny_modules(len(qwen3_tokenizer()))
    for module in made.values():
        module.eval().requires_grad_(False)
    return made


@pytest.fixture(scope="module")
def components(whole: dict[str, Any]) -> Components:
    state = LAYOUTS[TEXT_ENCODER].unify(dict(whole[TEXT_ENCODER].state_dict()))
    encoder = qwen3(**config_of(shapes_of(state), ROPE_THETA)).eval().requires_grad_(False)
    encoder.load_state_dict(state)
    return Components(
        denoiser=whole[DENOISER],
        vae=whole[VAE],
        text_encoders=[encoder],
        tokenizers=[qwen3_tokenizer()],
        source="tiny",
        extras={},
    )


def transformer_of(components: Components) -> Any:
    transformer = make_transformer(PARAMS)
    transformer.load_state_dict(to_diffusers(dict(components.denoiser.state_dict())))
    return transformer.eval()


def pipeline_of(components: Components, whole: dict[str, Any], **options: Any) -> Any:
    (tokenizer,) = components.tokenizers
    encoder = whole[TEXT_ENCODER].model
    pipeline = make_pipeline(transformer_of(components), components.vae, encoder, tokenizer, **options)
    pipeline.set_progress_bar_config(disable=True)
    pipeline.prompt_template_encode_start_idx = TEMPLATE.prefix_length(components)  # the miniature has more tokens
    pipeline.prompt_template_encode_num_suffix_tokens = len(tokenizer(TEMPLATE.suffix).input_ids)
    return pipeline


def spread(table: dict[str, list[Any]]) -> dict[str, tuple[int, ...]]:
    return {
        key.replace(".N.", f".{number}."): tuple(shape)
        for key, (shape, *ends) in table.items()
        for number in (range(ends[0], ends[1] + 1) if ends else [0])
    }


# transformer


def test_the_forward_equals_the_official_code() -> None:
    inputs, expected = REFERENCE["forward"]["inputs"], REFERENCE["forward"]["output"]
    sizes = {"width": 128, "heads": 4, "key_heads": 2, "mlp_width": 384, "blocks": 2, "time_channels": 32}
    text = {"text_states": 3, "text_width": 48, "text_heads": 3, "text_key_heads": 3, "text_mlp_width": 128}
    model = Krea2Transformer(Krea2Params(**sizes, **text))
    weights = formula_weights(model.state_dict())
    model.load_state_dict({key: each - 1 if key.endswith(".scale") else each for key, each in weights.items()})
    img, txt = (formula_input(name, tuple(inputs[name])) for name in ("image", "context"))
    with torch.no_grad():
        mask = torch.arange(5) < torch.tensor([[5], [3]])
        output = model(img, txt, torch.tensor(inputs["t"]), tuple(inputs["grid"]), mask)
    torch.testing.assert_close(output.flatten()[:24], torch.tensor(expected["first"]), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(output.flatten()[-8:], torch.tensor(expected["last"]), rtol=1e-4, atol=1e-4)
    assert output.square().sum().item() == pytest.approx(expected["sum_of_squares"], rel=1e-4)


@pytest.mark.parametrize(("dtype", "error"), [(torch.float32, 1e-5), (torch.bfloat16, 3e-2)])
def test_the_prediction_matches_diffusers_for_captions_of_two_lengths(
    components: Components, dtype: torch.dtype, error: float
) -> None:
    theirs, ours = transformer_of(components).to(dtype), deepcopy(components.denoiser).to(dtype)
    generator = torch.Generator().manual_seed(2)
    noisy = torch.randn(2, 16, 8, 4, generator=generator)
    states = torch.randn(2, 5, PARAMS.text_states, PARAMS.text_width, generator=generator)
    mask = torch.arange(5) < torch.tensor([[5], [2]])
    t = torch.tensor([0.25, 0.5])
    with torch.no_grad():
        expected = theirs(
            hidden_states=pack(noisy).to(dtype),
            encoder_hidden_states=states.to(dtype),
            timestep=t,
            position_ids=make_pipeline(theirs, components.vae).prepare_position_ids(5, 4, 2, torch.device("cpu")),
            encoder_attention_mask=mask,
        ).sample
        found = predict(ours, noisy, t, {STATES: states, MASK: mask})
        unmasked = predict(ours, noisy, t, {STATES: states})
    difference = (found - unpack(expected, (4, 2)).float()).abs().max() / expected.float().abs().max()
    assert difference.item() < error
    assert (found - unmasked)[1].abs().max() > 0, "padding is not attended to"


# keys


def test_the_transformer_has_the_keys_and_shapes_of_the_official_file() -> None:
    keys = spread(REFERENCE["original"])
    with torch.device("meta"):
        model = Krea2Transformer(Krea2Params())
    assert shapes_of(dict(model.state_dict())) == keys
    assert Krea2Params.of(keys) == Krea2Params()
    assert sum(p.numel() for p in model.parameters()) == REFERENCE["parameters"]
    diffusers = {name: torch.empty(shape, device="meta") for name, shape in spread(REFERENCE["diffusers"]).items()}
    assert shapes_of(LAYOUTS[DENOISER].unify(diffusers)) == keys


def test_both_layouts_of_the_transformer_are_the_same_model(components: Components) -> None:
    original = dict(components.denoiser.state_dict())
    for file in (dict(original), dict(transformer_of(components).state_dict())):
        unified = LAYOUTS[DENOISER].unify(file)
        assert unified.keys() == original.keys()
        assert all(torch.equal(unified[key], original[key]) for key in original)


def test_memory_is_counted_from_the_model_at_full_size() -> None:
    full = modules()
    assert {name: sum(p.numel() for p in module.parameters()) for name, module in full.items()} == MEMORY.values
    targets = {DENOISER: TRANSFORMER, TEXT_ENCODER: TEXT_ENCODERS[0]}
    layers = {name: dict(adaptable(full[name], target, conv=False)) for name, target in targets.items()}
    assert {
        name: sum(sum(each.weight.shape) for each in found.values()) for name, found in layers.items()
    } == MEMORY.lora
    quantized = {
        name: [each.weight for path, each in found.items() if LAYOUTS[name].quantizable.fullmatch(f"{path}.weight")]
        for name, found in layers.items()
    }
    counted = {name: (sum(w.numel() for w in found), sum(map(len, found))) for name, found in quantized.items()}
    assert counted == MEMORY.quantized
    ((first, *blocks),) = BLOCK_LISTS.of(full[DENOISER])
    assert sum(p.numel() for p in first.parameters()) == BLOCK
    assert BLOCK_LISTS.most(len(blocks) + 1) == MEMORY.most_swapped


def test_lora_adapts_every_linear_layer() -> None:
    paths = [path for path, _ in adaptable(modules()[DENOISER], TRANSFORMER, conv=False)]
    assert len(paths) == REFERENCE["lora"]["layers"]
    assert 16 * MEMORY.lora[DENOISER] == REFERENCE["lora"]["rank16"]
    path = "blocks.0.attn.wq"
    assert path in paths
    assert TRANSFORMER.name(path) == "lora_unet_blocks_0_attn_wq"
    assert TRANSFORMER.comfyui(path) == "diffusion_model.blocks.0.attn.wq"
    assert TRANSFORMER.diffusers_paths
    names = {f"{name}.weight" for each in paths for name in TRANSFORMER.diffusers_paths(each)}
    assert names < spread(REFERENCE["diffusers"]).keys()


# captions


def test_the_prefix_has_34_tokens_and_the_suffix_5(components: Components) -> None:
    tokenizer = shipped_qwen()
    assert len(tokenizer(TEMPLATE.prefix).input_ids) == 34
    full_size = replace(components, tokenizers=[tokenizer])
    ids, mask = tokenize(full_size, [Caption("a cat"), Caption("cat " * 600)], OPTIONS)[0].values()
    assert ids[0, 34:41].tolist() == [64, 8251, 151645, 198, 151644, 77091, 198]
    assert mask.sum(1).tolist() == [41, 34 + LONGEST]
    assert ids[1, -5:].tolist() == [151645, 198, 151644, 77091, 198], "which a long caption keeps"


def test_captions_are_encoded_as_in_diffusers(components: Components, whole: dict[str, Any]) -> None:
    """There padding stands before the suffix, and takes no position; vision tower and last layers are not needed."""
    captions = [*CAPTIONS, "circle " * 600]
    expected, valid = pipeline_of(components, whole).get_text_hidden_states(captions, device=torch.device("cpu"))
    with torch.no_grad():
        ours = encode_text(components, tokenize(components, [*map(Caption, captions)], OPTIONS))
    assert ours[STATES].shape == (3, LONGEST, len(LAYERS), PARAMS.text_width)
    assert ours[MASK].sum(1).tolist() == valid.sum(1).tolist()
    for number in range(3):
        states = ours[STATES][number, ours[MASK][number]]
        torch.testing.assert_close(states, expected[number, valid[number]], rtol=1e-4, atol=1e-4)
    assert not ours[STATES][~ours[MASK]].any()


# timesteps and samples


def test_steps_are_shifted_as_in_the_official_code() -> None:
    for name, expected in REFERENCE["shifts"].items():
        assert krea2_shift(int(name.split()[0])) == pytest.approx(expected["shift"], rel=1e-5)


def test_more_noise_is_sampled_for_larger_images() -> None:
    options = FlowOptions(timestep_sampling="krea2_shift")
    for tokens in (256, 4096):
        sigmas = draw_timesteps(20_001, options, tokens, torch.Generator().manual_seed(0))
        shift = krea2_shift(tokens)
        assert sigmas.median().item() == pytest.approx(shift / (1 + shift), abs=0.01)


def made(components: Components, **values: Any) -> Tensor:
    prompt, settings = SamplePrompt(width=64, height=80, seed=1, steps=3, **values), settings_of()
    with torch.no_grad():
        text = encode_text(components, tokenize(components, prompt_captions(prompt), OPTIONS))
    return sample(components, prompt, text, settings).frames[0]


@pytest.mark.parametrize("turbo", [False, True], ids=["Raw", "Turbo"])
def test_a_sample_matches_diffusers_with_the_same_noise(
    components: Components, whole: dict[str, Any], turbo: bool
) -> None:
    """Its guidance is 1 less, and of Turbo its shift is the same for all sizes."""
    scale, shift = (1.0, TURBO_SHIFT) if turbo else (5.5, None)
    ours = made(components, prompt=CAPTIONS[0], negative_prompt="a blue square", scale=scale, flow_shift=shift)
    theirs = pipeline_of(components, whole, is_distilled=turbo)(
        CAPTIONS[0],
        "a blue square",
        guidance_scale=scale - 1,
        width=64,
        height=80,
        num_inference_steps=3,
        generator=torch.Generator().manual_seed(1),
        output_type="np",
    ).images[0]
    assert np.abs(ours.numpy() / 255 - theirs).max() < 2 / 255


# recognition


def test_files_are_recognised_by_their_text_fusion(whole: dict[str, Any]) -> None:
    def found(keys: dict[str, tuple[int, ...]], **metadata: str) -> tuple[str | None, str]:
        return recognise(Header(metadata=metadata, shapes=keys, dtypes={}))

    for layout in ("original", "diffusers"):
        assert found(spread(REFERENCE[layout])) == ("krea2", "Krea 2")
    encoder = shapes_of(dict(whole[TEXT_ENCODER].state_dict()))
    assert found(encoder) == (None, "Qwen3-VL text encoder")
    key = "model.language_model.embed_tokens.weight"
    assert found(encoder | {key: (151_936, 2560)}) == (None, "Qwen3-VL-4B text encoder")
    one_file = {key.replace("model.language_model.", "model."): shape for key, shape in encoder.items()}
    assert found(one_file) == (None, "Qwen3-VL text encoder")  # ComfyUI's layout, of a Qwen3 but for the vision tower
    for layer in (
        "lora_unet_blocks_0_attn_wq.lora_down.weight",
        "diffusion_model.blocks.0.attn.wq.lora_A.weight",
        "base_model.model.blocks.0.attn.wq.lora_A.weight",
        "transformer.transformer_blocks.0.attn.to_gate.lora_A.weight",
    ):
        assert found({layer: (16, 6144)}) == ("krea2", "Krea 2 LoRA")
