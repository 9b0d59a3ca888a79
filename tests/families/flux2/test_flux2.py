"""FLUX.2 klein's mathematics, keys, captions and samples against diffusers and transformers, at tiny size."""

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import Flux2KleinPipeline
from PIL import Image
from torch import Tensor
from transformers import Qwen3Config, Qwen3ForCausalLM

from benchmarks.pipelines.flux2 import make_pipeline, make_transformer, to_diffusers
from sd_scripts.data.sources.captions import Caption
from sd_scripts.families.cards.model_file import recognise
from sd_scripts.families.common.components import DENOISER, VAE
from sd_scripts.families.common.encoders.qwen3 import language_layers, qwen3, with_qwen3_tokens
from sd_scripts.families.common.encoders.tiny_qwen3 import qwen3_tokenizer, tiny_config
from sd_scripts.families.common.family import Components, TextOptions
from sd_scripts.families.flux2.card.memory_facts import KLEIN_4B
from sd_scripts.families.flux2.card.memory_facts import KLEIN_9B as KLEIN_9B_MEMORY
from sd_scripts.families.flux2.full_size import KLEIN_9B
from sd_scripts.families.flux2.load import BLOCK_LISTS, LAYOUTS, TEXT_ENCODER
from sd_scripts.families.flux2.lora import TRANSFORMER
from sd_scripts.families.flux2.model import Flux2Params, Flux2Transformer
from sd_scripts.families.flux2.objective import predict
from sd_scripts.families.flux2.sampling import prompt_captions, sample, sampling_shift
from sd_scripts.families.flux2.text import LAYERS, PREFIX, STATES, SUFFIX, encode_text, tokenize
from sd_scripts.families.flux2.tiny import PARAMS, tiny_modules
from sd_scripts.families.flux2.vae import decode_latents, encode_images
from sd_scripts.formats.models.safetensors_header import Header
from sd_scripts.library.diffusion.flow_timesteps import sampling_sigmas
from sd_scripts.library.text.tokenizers import shipped_qwen
from sd_scripts.networks.targets import adaptable
from sd_scripts.options.generating.prompt_lines import SamplePrompt
from sd_scripts.settings.catalog import script_for
from sd_scripts.settings.reading import from_values
from sd_scripts.settings.settings import Settings
from sd_scripts.testing.miniature import randomize
from tests.support.data import make_image
from tests.support.families.formula_weights import formula, formula_input, formula_weights

pytestmark = pytest.mark.run

REFERENCE = json.loads((Path(__file__).parents[2] / "reference/flux2.json").read_text())
SIZES = {"klein4b": Flux2Params(), "klein9b": KLEIN_9B}
CAPTIONS = ["a red circle", "a blue square on a red circle"]
CHAT = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{{ '<|im_start|>assistant\n<think>\n\n</think>\n\n' }}"
)
"""Qwen3's template for these captions, without thinking."""
PROMPT: dict[str, Any] = {"prompt": CAPTIONS[0], "width": 64, "height": 80, "seed": 1, "steps": 3}


def settings_of(**values: Any) -> Settings:
    return from_values(script_for("flux2", "lora"), {"learning_rate": 1e-4, **values})


@pytest.fixture(scope="module")
def components() -> Components:
    tokenizer = qwen3_tokenizer()
    modules = tiny_modules(len(tokenizer))
    for module in modules.values():
        module.eval().requires_grad_(False)
    return Components(
        denoiser=modules[DENOISER],
        vae=modules[VAE],
        text_encoders=[modules[TEXT_ENCODER]],
        tokenizers=[tokenizer],
        source="tiny",
        extras={"layers": LAYERS},
    )


@pytest.fixture(scope="module")
def whole_encoder(components: Components) -> Any:
    return with_further_layers(components.text_encoders[0])


def with_further_layers(layers: Any) -> Any:
    """Return a whole Qwen3, whose first layers are these."""
    encoder = Qwen3ForCausalLM(Qwen3Config(**tiny_config(layers.config.vocab_size, LAYERS[-1] + 2)))
    encoder.eval().requires_grad_(False)
    randomize(encoder, torch.Generator().manual_seed(5))
    encoder.model.load_state_dict(layers.state_dict(), strict=False)
    return encoder


def transformer_of(components: Components) -> Any:
    transformer = make_transformer(PARAMS)
    transformer.load_state_dict(to_diffusers(components.denoiser.state_dict()))
    return transformer.eval()


def spread(table: dict[str, list[Any]]) -> dict[str, tuple[int, ...]]:
    return {
        key.replace(".N.", f".{number}."): tuple(shape)
        for key, (shape, *ends) in table.items()
        for number in (range(ends[0], ends[1] + 1) if ends else [0])
    }


# transformer


def test_the_forward_equals_the_official_code() -> None:
    reference = REFERENCE["forward"]
    model = Flux2Transformer(
        Flux2Params(width=64, heads=2, mlp_width=192, text_width=48, double_blocks=1, single_blocks=2)
    )
    model.load_state_dict(formula_weights(model.state_dict()))
    inputs, expected = reference["inputs"], reference["klein"]
    img, txt = (formula_input(name, tuple(inputs[name])) for name in ("image", "context"))
    with torch.no_grad():
        output = model(img, txt, torch.tensor(inputs["t"]), tuple(inputs["image grid"]))
    torch.testing.assert_close(output.flatten()[:24], torch.tensor(expected["first"]), rtol=1e-4, atol=1e-4)
    assert output.square().sum().item() == pytest.approx(expected["sum_of_squares"], rel=1e-4)


@pytest.mark.parametrize(("dtype", "error"), [(torch.float32, 1e-5), (torch.bfloat16, 4e-2)])
def test_the_prediction_matches_diffusers_with_control_images(
    components: Components, dtype: torch.dtype, error: float
) -> None:
    theirs, ours = transformer_of(components).to(dtype), deepcopy(components.denoiser).to(dtype)
    generator = torch.Generator().manual_seed(2)
    noisy, *controls = [torch.randn(2, 128, *size, generator=generator) for size in ((4, 2), (2, 3), (1, 1))]
    text = {STATES: torch.randn(2, 5, PARAMS.text_width, generator=generator)}
    t = torch.tensor([0.25, 0.5])  # diffusers' bfloat16 does not round these
    tokens = torch.cat([each.flatten(2).transpose(1, 2) for each in (noisy, *controls)], dim=1)
    ids = torch.cat(
        (
            Flux2KleinPipeline._prepare_latent_ids(noisy)[0],
            Flux2KleinPipeline._prepare_image_ids([each[:1] for each in controls])[0],
        )
    )
    with torch.no_grad():
        expected = theirs(
            hidden_states=tokens.to(dtype),
            encoder_hidden_states=text[STATES].to(dtype),
            timestep=t,
            img_ids=ids,
            txt_ids=Flux2KleinPipeline._prepare_text_ids(text[STATES])[0],
            guidance=None,
        ).sample[:, :8]
        found = predict(ours, noisy, t, text, controls)
        without = predict(ours, noisy, t, text)
    scale = expected.float().abs().max()
    assert ((found - expected.float().transpose(1, 2).unflatten(-1, (4, 2))).abs().max() / scale).item() < error
    assert ((found - without).abs().max() / scale).item() > 3 * error


# keys


@pytest.mark.parametrize("size", SIZES)
def test_the_transformer_has_the_keys_and_shapes_of_the_official_files(size: str) -> None:
    reference, keys = REFERENCE[size], spread(REFERENCE[size]["original"])
    with torch.device("meta"):
        model = Flux2Transformer(SIZES[size])
    assert {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()} == keys
    assert Flux2Params.of(keys) == SIZES[size]
    assert sum(p.numel() for p in model.parameters()) == reference["parameters"]
    diffusers = {name: torch.empty(shape, device="meta") for name, shape in spread(reference["diffusers"]).items()}
    unified = LAYOUTS[DENOISER].unify(diffusers)
    assert {name: tuple(tensor.shape) for name, tensor in unified.items()} == keys


def test_lora_adapts_the_linear_layers_of_the_blocks_and_the_plan_counts_them() -> None:
    for number, (params, facts) in enumerate(zip(SIZES.values(), (KLEIN_4B, KLEIN_9B_MEMORY), strict=True)):
        with torch.device("meta"):
            model = Flux2Transformer(params)
        names = {TRANSFORMER.name(path): layer for path, layer in adaptable(model, TRANSFORMER, conv=False)}
        assert len(names) == REFERENCE["lora"][number]
        assert "lora_unet_single_blocks_0_linear1" in names
        layers = list(names.values())
        assert sum(p.numel() for p in model.parameters()) == facts.values[DENOISER]
        assert sum(sum(layer.weight.shape) for layer in layers) == facts.lora[DENOISER]
        quantized = sum(layer.weight.numel() for layer in layers), sum(len(layer.weight) for layer in layers)
        assert quantized == facts.quantized[DENOISER]
        lists = BLOCK_LISTS.of(model)
        double, single = (sum(p.numel() for p in blocks[0].parameters()) for blocks in lists)
        assert (facts.largest_block, facts.swapped(3)) == (double, double + 4 * single)
        assert BLOCK_LISTS.most(*map(len, lists)) == facts.most_swapped


@pytest.mark.parametrize("name", ["original", "comfyui", "diffusers"])
def test_every_layout_of_the_transformer_is_the_same_model(components: Components, name: str) -> None:
    original = dict(components.denoiser.state_dict())
    files = {
        "original": original,
        "comfyui": {key.replace("_norm.scale", "_norm.weight"): tensor for key, tensor in original.items()},
        "diffusers": dict(transformer_of(components).state_dict()),
    }
    file = LAYOUTS[DENOISER].unify(dict(files[name]))
    assert file.keys() == original.keys()
    assert all(torch.equal(file[key], original[key]) for key in original)


def test_both_layouts_of_the_autoencoder_are_read() -> None:
    single = {key: torch.empty(shape, device="meta") for key, shape in REFERENCE["vae"].items()}
    folder = {name: single[key] for name, key in REFERENCE["vae_map"].items()}
    layout = LAYOUTS[VAE]
    unified = layout.unify(dict(single))
    with torch.device("meta"):
        names = layout.make({key: tuple(tensor.shape) for key, tensor in unified.items()}).state_dict()
    assert len(names) == 250
    for file in (unified, layout.unify(folder)):
        read = layout.read(file, names)
        assert {name: tensor.numel() for name, tensor in read.items()} == {n: t.numel() for n, t in names.items()}
    assert layout.write(dict(names)).keys() == single.keys() - {"bn.num_batches_tracked"}


# captions


def test_the_template_has_the_tokens_of_qwen3() -> None:
    tokenizer = with_qwen3_tokens(shipped_qwen())
    assert tokenizer(f"{PREFIX}a cat{SUFFIX}").input_ids == REFERENCE["tokens"]
    assert len(tokenizer) == 151_669


def test_captions_are_encoded_as_in_diffusers(components: Components, whole_encoder: Any) -> None:
    """The layers behind the last one read are not needed."""
    (tokenizer,) = components.tokenizers
    tokenizer.chat_template = CHAT
    expected = Flux2KleinPipeline._get_qwen3_prompt_embeds(whole_encoder, tokenizer, CAPTIONS)
    with torch.no_grad():
        tokens = tokenize(components, [*map(Caption, CAPTIONS)], TextOptions.of(settings_of()))
        ours = encode_text(components, tokens)[STATES]
    assert ours.shape == (2, 512, PARAMS.text_width)
    torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-4)
    kept = language_layers(dict(whole_encoder.state_dict()), LAYERS[-1])
    assert kept.keys() == qwen3(**tiny_config(tokenizer.vocab_size, LAYERS[-1])).state_dict().keys()


# autoencoder and samples


def test_latents_equal_the_official_codes(components: Components) -> None:
    reference = REFERENCE["latents"]

    class Moments:
        running_mean = formula("bn.running_mean", (128,))
        running_var = 1 + 0.5 * formula("bn.running_var", (128,))

    class Encoded:
        def __init__(self, value: Tensor) -> None:
            self.latent_dist = self
            self.value = value

        def mode(self) -> Tensor:
            return self.value

    vae: Any = deepcopy(components.vae)
    vae.bn.running_mean.copy_(Moments.running_mean)
    vae.bn.running_var.copy_(Moments.running_var)
    moments = formula_input("moments", (1, 32, 4, 6))
    vae.encode = lambda pixels: Encoded(moments)
    changed = Components(
        denoiser=components.denoiser, vae=vae, text_encoders=[], tokenizers=[], source="tiny", extras={}
    )
    latents = encode_images(changed, torch.zeros(1, 3, 32, 48))
    assert list(latents.shape) == reference["normalised"]["shape"]
    first = torch.tensor(reference["normalised"]["first"])
    torch.testing.assert_close(latents.flatten()[:24], first, rtol=1e-4, atol=1e-4)


def test_latents_decode_to_the_image(components: Components) -> None:
    pixels = torch.rand(2, 3, 32, 48, generator=torch.Generator().manual_seed(1)) * 2 - 1
    vae: Any = components.vae
    latents = encode_images(components, pixels)
    assert latents.shape == (2, 128, 2, 3)
    decoded = vae.decode(vae.encode(pixels).latent_dist.mode()).sample
    torch.testing.assert_close(
        decode_latents(components, latents), (decoded / 2 + 0.5).clamp(0, 1), rtol=1e-3, atol=1e-4
    )


def test_steps_are_shifted_as_in_the_official_code() -> None:
    for name, expected in REFERENCE["schedules"].items():
        tokens, steps = (int(word) for word in name.split() if word.isdigit())
        shift = sampling_shift(tokens, steps)
        assert shift == pytest.approx(expected["shift"], rel=1e-4)
        sigmas = sampling_sigmas(steps, shift)
        torch.testing.assert_close(sigmas[:5], torch.tensor(expected["first"]), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(sigmas[-3:], torch.tensor(expected["last"]), rtol=1e-4, atol=1e-5)


def made(components: Components, **changes: Any) -> np.ndarray:
    prompt, settings = SamplePrompt(**{**PROMPT, **changes}), settings_of()
    with torch.no_grad():
        text = encode_text(components, tokenize(components, prompt_captions(prompt), TextOptions.of(settings)))
    return sample(components, prompt, text, settings).frames[0].numpy() / 255


@pytest.mark.parametrize(("scale", "controls"), [(1.0, 0), (4.0, 1)])
def test_a_sample_matches_diffusers_with_the_same_noise(
    components: Components, whole_encoder: Any, scale: float, controls: int, tmp_path: Path
) -> None:
    (tokenizer,) = components.tokenizers
    tokenizer.chat_template = CHAT
    pipeline = make_pipeline(transformer_of(components), components.vae, whole_encoder, tokenizer)
    pipeline.set_progress_bar_config(disable=True)
    files = [make_image(tmp_path / f"{number}.png", (64, 80), seed=4) for number in range(controls)]
    theirs = pipeline(
        [Image.open(file) for file in files] or None,
        PROMPT["prompt"],
        guidance_scale=scale,
        width=64,
        height=80,
        num_inference_steps=3,
        generator=torch.Generator().manual_seed(1),
        output_type="np",
    ).images[0]
    ours = made(components, scale=scale, control_images=tuple(map(str, files)))
    assert np.abs(ours - theirs).max() < 2 / 255


# recognition


def test_files_are_recognised_by_their_shared_modulation() -> None:
    def found(keys: dict[str, tuple[int, ...]], **metadata: str) -> tuple[str | None, str]:
        return recognise(Header(metadata=metadata, shapes=keys, dtypes={}))

    for size, title in {"klein4b": "FLUX.2 klein 4B", "klein9b": "FLUX.2 klein 9B"}.items():
        for layout in ("original", "diffusers"):
            assert found(spread(REFERENCE[size][layout])) == ("flux2", title)
    dev = {**spread(REFERENCE["klein9b"]["original"]), "guidance_in.in_layer.weight": (6144, 256)}
    assert found(dev) == (None, "FLUX.2 dev")
    assert found({key: tuple(shape) for key, shape in REFERENCE["vae"].items()}) == (None, "FLUX.2 autoencoder")
    lora = {"lora_unet_double_blocks_0_img_attn_qkv.lora_down.weight": (4, 3072)}
    assert found(lora, ss_base_model_version="flux2") == ("flux2", "FLUX.2 klein LoRA")
