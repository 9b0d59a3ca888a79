"""Z-Image's mathematics, keys, captions and samples against diffusers and transformers, at tiny size."""

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import ZImagePipeline
from torch import Tensor
from transformers import Qwen3Config, Qwen3ForCausalLM

from benchmarks.pipelines.z_image import make_pipeline, make_scheduler, make_transformer
from sd_scripts.data.sources.captions import Caption
from sd_scripts.families.cards.layer_patterns import lora_name
from sd_scripts.families.cards.model_file import recognise
from sd_scripts.families.common.components import DENOISER, VAE
from sd_scripts.families.common.encoders.qwen3 import with_qwen3_tokens
from sd_scripts.families.common.encoders.tiny_qwen3 import qwen3_tokenizer, tiny_config
from sd_scripts.families.common.family import Components, TextOptions
from sd_scripts.families.z_image.card.memory_facts import BLOCK, MEMORY
from sd_scripts.families.z_image.keys import UNUSED, part_of, to_diffusers
from sd_scripts.families.z_image.load import BLOCK_LISTS, LAYOUTS, LINEAR, TEXT_ENCODER
from sd_scripts.families.z_image.lora import TRANSFORMER
from sd_scripts.families.z_image.model import ZImageParams, ZImageTransformer, pack
from sd_scripts.families.z_image.objective import predict
from sd_scripts.families.z_image.sampling import SHIFT, SHIFT_OF_TURBO, prompt_captions, sample, sampling_shift
from sd_scripts.families.z_image.text import MASK, OUTPUTS, STATES, TEMPLATE, encode_text, tokenize
from sd_scripts.families.z_image.tiny import LAYERS, PARAMS, tiny_modules
from sd_scripts.formats.models.lora_keys import DOWN, UP
from sd_scripts.formats.models.safetensors_header import Header
from sd_scripts.library.diffusion.dit_layers import unpack_channels_last
from sd_scripts.library.diffusion.flow_timesteps import sampling_sigmas
from sd_scripts.library.text.tokenizers import shipped_qwen
from sd_scripts.networks.files.lora_names import with_our_names
from sd_scripts.networks.plan import AdaptedModule, NetworkArgs, plan_layers
from sd_scripts.options.compile import CompileOptions
from sd_scripts.options.generating.prompt_lines import SamplePrompt
from sd_scripts.settings.catalog import script_for
from sd_scripts.settings.reading import from_values
from sd_scripts.settings.settings import Settings
from sd_scripts.testing.miniature import randomize
from tests.support.families.formula_weights import formula_input, formula_weights

pytestmark = pytest.mark.run

REFERENCE = json.loads((Path(__file__).parents[2] / "reference/z_image.json").read_text())
CAPTIONS = ["a red circle", "a blue square on a red circle " * 4]
CHAT = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{{ '<|im_start|>assistant\n' }}"
)
"""Qwen3's template for these captions, with thinking."""
PROMPT: dict[str, Any] = {"prompt": CAPTIONS[0], "width": 64, "height": 80, "seed": 1, "steps": 3}


def settings_of(**values: Any) -> Settings:
    return from_values(script_for("z_image", "lora"), {"learning_rate": 1e-4, **values})


@pytest.fixture(scope="module")
def components() -> Components:
    tokenizer = qwen3_tokenizer()
    tokenizer.chat_template = CHAT
    modules = tiny_modules(len(tokenizer))
    for module in modules.values():
        module.eval().requires_grad_(False)
    return Components(
        denoiser=modules[DENOISER],
        vae=modules[VAE],
        text_encoders=[modules[TEXT_ENCODER]],
        tokenizers=[tokenizer],
        source="tiny",
    )


@pytest.fixture(scope="module")
def whole_encoder(components: Components) -> Any:
    """A Qwen3 with one more layer, whose first ones are the miniature's."""
    config = tiny_config(components.text_encoders[0].config.vocab_size, LAYERS + 1)
    encoder = Qwen3ForCausalLM(Qwen3Config(**config)).eval().requires_grad_(False)
    randomize(encoder, torch.Generator().manual_seed(5))
    encoder.model.load_state_dict(components.text_encoders[0].state_dict(), strict=False)
    return encoder


def transformer_of(components: Components) -> Any:
    transformer = make_transformer(PARAMS)
    transformer.load_state_dict(components.denoiser.state_dict())
    return transformer.eval()


def encoded(components: Components, captions: list[str]) -> dict[str, Tensor]:
    with torch.no_grad():
        tokens = tokenize(components, [*map(Caption, captions)], TextOptions.of(settings_of()))
        return encode_text(components, tokens)


def original(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return a transformer's tensors as in the original single file."""
    joined: dict[str, list[Tensor]] = {}
    for key, tensor in state.items():
        module, _, kind = key.rpartition(".")
        whole = f"{part_of(module)[0]}.{kind}".lstrip(".").replace("all_", "").replace(".2-1.", ".")
        joined.setdefault(whole.replace("norm_q", "q_norm").replace("norm_k", "k_norm"), []).append(tensor)
    return {key: torch.cat(parts) for key, parts in joined.items()}


def spread(table: dict[str, list[Any]]) -> dict[str, tuple[int, ...]]:
    return {
        key.replace(".N.", f".{number}."): tuple(shape)
        for key, (shape, *ends) in table.items()
        for number in (range(ends[0], ends[1] + 1) if ends else [0])
    }


def difference(found: Tensor, expected: Tensor) -> float:
    return ((found - expected.float()).abs().max() / expected.float().abs().max()).item()


# transformer


def test_the_forward_equals_the_official_code() -> None:
    reference = REFERENCE["forward"]
    inputs = reference["inputs"]
    params = ZImageParams(width=64, heads=2, mlp_width=170, text_width=48, time_width=64, blocks=2, refiners=1)
    model = ZImageTransformer(params)
    model.load_state_dict(to_diffusers(formula_weights(original(model.state_dict()))))
    latents = formula_input("latents", tuple(inputs["latents"]))[:, :, 0]
    for number, expected in enumerate(reference["outputs"]):
        caption = formula_input(f"caption{number}", tuple(inputs[f"caption{number}"]))
        with torch.no_grad():
            at = 1 - torch.tensor(inputs["t"][number : number + 1])
            output = -predict(model, latents[number : number + 1], at, {STATES: caption[None]})
        torch.testing.assert_close(output.flatten()[:24], torch.tensor(expected["first"]), rtol=1e-4, atol=1e-4)
        assert output.square().sum().item() == pytest.approx(expected["sum_of_squares"], rel=1e-4)


@pytest.mark.parametrize(("dtype", "error"), [(torch.float32, 1e-5), (torch.bfloat16, 4e-2)])
def test_captions_of_several_lengths_match_diffusers(components: Components, dtype: torch.dtype, error: float) -> None:
    """A caption is filled up to its own multiple of 32, beyond which attention sees nothing; the image, too."""
    theirs, ours = transformer_of(components).to(dtype), deepcopy(components.denoiser).to(dtype)
    generator = torch.Generator().manual_seed(1)
    noisy = torch.randn(2, 16, 6, 8, generator=generator)
    captions = [torch.randn(tokens, PARAMS.text_width, generator=generator) for tokens in (5, 37)]
    sigmas = torch.tensor([0.75, 0.25])
    text = {STATES: torch.zeros(2, 37, PARAMS.text_width), MASK: torch.zeros(2, 37, dtype=torch.bool)}
    for number, caption in enumerate(captions):
        text[STATES][number, : len(caption)] = caption
        text[MASK][number, : len(caption)] = True
    with torch.no_grad():
        clips = [each[:, None].to(dtype) for each in noisy]
        images = theirs(clips, 1 - sigmas, [each.to(dtype) for each in captions], return_dict=False)[0]
        found = predict(ours, noisy, sigmas, text)
        compiled = predict(ours, noisy, sigmas, OUTPUTS.pad(text, CompileOptions(compile=True)))
        alone = predict(ours, noisy[:1], sigmas[:1], {STATES: captions[0][None]})
    expected = -torch.stack([each[:, 0] for each in images])
    assert difference(found, expected) < error
    assert difference(compiled, expected) < error
    assert difference(alone, expected[:1]) < error


def test_packing_puts_channels_last() -> None:
    latents = torch.arange(2 * 16 * 4 * 6.0).view(2, 16, 4, 6)
    assert torch.equal(pack(latents)[:, 0, :16], latents[:, :, 0, 0])
    assert torch.equal(unpack_channels_last(pack(latents), (2, 3)), latents)


# keys


def test_the_transformer_has_the_keys_and_shapes_of_the_official_files() -> None:
    keys = spread(REFERENCE["diffusers"])
    with torch.device("meta"):
        model = ZImageTransformer(ZImageParams())
    assert {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()} == keys
    assert ZImageParams.of(keys) == ZImageParams()
    assert sum(p.numel() for p in model.parameters()) == REFERENCE["parameters"]
    file = {name: torch.empty(shape, device="meta") for name, shape in spread(REFERENCE["original"]).items()}
    unified = LAYOUTS[DENOISER].unify({**file, UNUSED: torch.empty(3840, device="meta")})
    assert {name: tuple(tensor.shape) for name, tensor in unified.items()} == keys


def test_both_layouts_of_the_transformer_are_the_same_model(components: Components) -> None:
    state = dict(components.denoiser.state_dict())
    for file in (state, original(state)):
        unified = to_diffusers(file)
        assert unified.keys() == state.keys()
        assert all(torch.equal(unified[key], state[key]) for key in state)
    with pytest.raises(ValueError, match="are not equal parts"):
        to_diffusers({"layers.0.attention.qkv.weight": torch.ones(4, 2)})


def adapted_layers(model: Any) -> dict[str, Any]:
    modules = [AdaptedModule(module=model, target=TRANSFORMER, lr=1.0)]
    plans = plan_layers(modules, NetworkArgs.read(settings_of(), lambda _: None))
    return {plan.name: model.get_submodule(plan.path) for plan in plans}


def test_lora_adapts_attention_and_mlp_of_the_joint_blocks() -> None:
    with torch.device("meta"):
        model = ZImageTransformer(ZImageParams())
    layers = adapted_layers(model)
    assert {*layers} == {f"lora_unet_layers_{block}_{end}" for block in range(30) for end in REFERENCE["lora"]}
    assert len(layers) == REFERENCE["lora_modules"]
    assert sum(sum(layer.weight.shape) for layer in layers.values()) == MEMORY.lora[DENOISER]
    quantized = [weight for name, weight in model.named_parameters() if LINEAR.fullmatch(name)]
    assert (sum(w.numel() for w in quantized), sum(map(len, quantized))) == MEMORY.quantized[DENOISER]
    assert sum(p.numel() for p in model.layers[0].parameters()) == BLOCK
    assert BLOCK_LISTS.most(2, 2, 30) == MEMORY.most_swapped == 28


def test_diffusers_finds_the_module_of_every_layer_in_our_file(components: Components) -> None:
    file: dict[str, Tensor] = {}
    for name, layer in adapted_layers(components.denoiser).items():
        file[f"{name}.lora_down.weight"] = torch.zeros(1, layer.in_features)
        file[f"{name}.lora_up.weight"] = torch.zeros(layer.out_features, 1)
        file[f"{name}.alpha"] = torch.tensor(1.0)
    read = ZImagePipeline.lora_state_dict(file)
    theirs = dict(transformer_of(components).named_modules())
    rows = {key.removesuffix(".lora_B.weight"): len(each) for key, each in read.items() if ".lora_B." in key}
    assert len(rows) == len(file) // 3
    assert all(theirs[name.removeprefix("transformer.")].out_features == count for name, count in rows.items())


@pytest.mark.parametrize("whole", ["diffusion_model.layers.0.attention.qkv", "lora_unet_layers_0_attention_qkv"])
def test_layers_of_the_original_layout_are_split(components: Components, whole: str) -> None:
    generator = torch.Generator().manual_seed(3)
    down, up = torch.randn(4, 96, generator=generator), torch.randn(3 * 96, 4, generator=generator)
    out = {DOWN: torch.randn(2, 96, generator=generator), UP: torch.randn(96, 2, generator=generator)}
    file = {whole: {DOWN: down, UP: up}, whole.replace("qkv", "out"): out}
    modules = [AdaptedModule(module=components.denoiser, target=TRANSFORMER, lr=1.0)]
    layers, left = with_our_names(file, modules)
    assert left == {}
    assert torch.equal(layers["lora_unet_layers_0_attention_to_out_0"][UP], out[UP])
    products = [layers[f"lora_unet_layers_0_attention_to_{part}"] for part in "qkv"]
    torch.testing.assert_close(torch.cat([each[UP] @ each[DOWN] for each in products]), up @ down)


@pytest.mark.parametrize("prefix", ["diffusion_model.", "transformer.", ""])
def test_layers_of_ai_toolkit_and_diffusers_are_read_with_modulations(components: Components, prefix: str) -> None:
    names = ("layers.1.attention.to_q", "layers.1.attention.to_out.0", "layers.1.adaLN_modulation.0")
    file = {f"{prefix}{name}": {DOWN: torch.zeros(2, 96), UP: torch.zeros(96, 2)} for name in names}
    modules = [AdaptedModule(module=components.denoiser, target=TRANSFORMER, lr=1.0)]
    layers, left = with_our_names(file, modules)
    assert left == {}
    assert layers.keys() == {lora_name(name) for name in names}


# captions


def test_the_template_has_the_tokens_of_qwen3() -> None:
    assert with_qwen3_tokens(shipped_qwen())(TEMPLATE.around("a cat")).input_ids == REFERENCE["tokens"]


def test_captions_are_encoded_as_in_diffusers(components: Components, whole_encoder: Any) -> None:
    """Without the last layer and the final norm; a caption is cached without padding."""
    (tokenizer,) = components.tokenizers
    pipeline = make_pipeline(None, components.vae, whole_encoder, tokenizer)
    expected = pipeline._encode_prompt(list(CAPTIONS), torch.device("cpu"))
    ours = encoded(components, CAPTIONS)
    for number, states in enumerate(expected):
        trimmed = OUTPUTS.trim({name: each[number] for name, each in ours.items()})
        assert trimmed[STATES].shape == states.shape
        torch.testing.assert_close(trimmed[STATES], states, rtol=1e-4, atol=1e-4)
    kept = LAYOUTS[TEXT_ENCODER].unify(
        {f"layers.{n}.weight": torch.zeros(1) for n in range(36)} | {"norm.weight": torch.zeros(1)}
    )
    assert len(kept) == 35


def test_a_caption_is_cut_at_512_tokens_with_its_template(components: Components) -> None:
    long = " ".join(["red"] * 600)
    assert encoded(components, [long])[STATES].shape[1] == 512
    limit = TEMPLATE.limit(components, TextOptions.of(settings_of()))
    assert limit.count
    assert limit.count(["a red circle"]) == [int(encoded(components, ["a red circle"])[MASK].sum())]


# samples


def test_steps_are_shifted_as_in_the_official_code() -> None:
    for name, expected in REFERENCE["schedules"].items():
        steps, shift = int(name.split()[0]), float(name.split()[-1])
        torch.testing.assert_close(sampling_sigmas(steps, shift), torch.tensor(expected), rtol=1e-4, atol=1e-5)
    shifts = [
        sampling_shift(SamplePrompt(steps=steps, flow_shift=shift))
        for steps, shift in ((30, None), (8, None), (8, 4.0))
    ]
    assert shifts == [SHIFT, SHIFT_OF_TURBO, 4.0]


@pytest.mark.parametrize("scale", [1.0, 5.0])
def test_a_sample_matches_diffusers_with_the_same_noise(
    components: Components, whole_encoder: Any, scale: float
) -> None:
    """Its guidance counts from 0."""
    (tokenizer,) = components.tokenizers
    pipeline = make_pipeline(transformer_of(components), components.vae, whole_encoder, tokenizer)
    pipeline.scheduler = make_scheduler(SHIFT_OF_TURBO)
    pipeline.set_progress_bar_config(disable=True)
    theirs = pipeline(
        PROMPT["prompt"],
        guidance_scale=scale - 1,
        negative_prompt="",
        width=64,
        height=80,
        num_inference_steps=3,
        generator=torch.Generator().manual_seed(1),
        output_type="np",
    ).images[0]
    prompt, settings = SamplePrompt(**PROMPT, scale=scale), settings_of()
    text = encoded(components, [caption.text for caption in prompt_captions(prompt)])
    ours = sample(components, prompt, text, settings).frames[0].numpy() / 255
    assert np.abs(ours - theirs).max() < 2 / 255


# recognition


def test_files_are_recognised_by_the_token_that_fills_captions() -> None:
    def found(keys: dict[str, tuple[int, ...]]) -> tuple[str | None, str]:
        return recognise(Header(metadata={}, shapes=keys, dtypes={}))

    for layout in ("original", "diffusers"):
        keys = spread(REFERENCE[layout])
        assert found(keys) == ("z_image", "Z-Image")
        assert found({f"model.diffusion_model.{key}": shape for key, shape in keys.items()}) == ("z_image", "Z-Image")
        assert found({**keys, "siglip_embedder.0.weight": (1152,)}) == (None, "Z-Image-Omni")
