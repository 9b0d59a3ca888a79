"""Qwen-Image's mathematics, keys, captions and samples against diffusers and transformers, at tiny size."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import AutoencoderKLQwenImage
from torch import Tensor

from sd_scripts.data.sources.captions import Caption
from sd_scripts.families.common.autoencoder import Tile
from sd_scripts.families.common.components import DENOISER, VAE, Components
from sd_scripts.families.common.encoders.captions import STEP
from sd_scripts.families.common.encoders.causal_vae import (
    decode_images,
    encode_images,
    tiled,
    vae_config,
    vae_from_single_file,
)
from sd_scripts.families.common.family import StepInputs, TextOptions
from sd_scripts.families.common.flow_sampling import euler_steps
from sd_scripts.families.qwen_image import keys
from sd_scripts.families.qwen_image.card.memory_facts import MEMORY
from sd_scripts.families.qwen_image.family import QWEN_IMAGE
from sd_scripts.families.qwen_image.load import LAYOUTS, TEXT_ENCODER
from sd_scripts.families.qwen_image.lora import TRANSFORMER
from sd_scripts.families.qwen_image.model import QwenImageParams, QwenImageTransformer
from sd_scripts.families.qwen_image.objective import draw_timesteps, loss, predict, qwen_shift, step_inputs
from sd_scripts.families.qwen_image.sampling import (
    guided_velocity,
    prompt_captions,
    sample,
    sampling_sigmas,
)
from sd_scripts.families.qwen_image.text import (
    MASK,
    OUTPUTS,
    STATES,
    TEMPLATE,
    encode_text,
    tokenize,
)
from sd_scripts.families.qwen_image.tiny import AUTOENCODER, PARAMS, qwen_tokenizer, tiny_modules
from sd_scripts.library.diffusion.dit_layers import pack
from sd_scripts.networks.plan import AdaptedModule, NetworkArgs, plan_layers
from sd_scripts.networks.targets import adaptable
from sd_scripts.options.compile import CompileOptions
from sd_scripts.options.generating.prompt_lines import SamplePrompt
from sd_scripts.options.optimization.flow import FlowOptions
from sd_scripts.settings.reading import from_values
from sd_scripts.settings.settings import Settings
from tests.support.families.qwen_image import pipeline_of, transformer_of
from tests.support.scripts import QWEN_IMAGE_LORA

pytestmark = pytest.mark.run

REFERENCE = json.loads((Path(__file__).parents[2] / "reference/qwen_image.json").read_text())
GRID = (5, 6)
"""An odd number of rows: the middle is then not between two of them."""
CAPTIONS = ["a red circle on a white background", "", "red " * 30]


def settings_of(**values: Any) -> Settings:
    return from_values(QWEN_IMAGE_LORA, {"learning_rate": 1e-4, **values})


@pytest.fixture(scope="module")
def modules() -> dict[str, Any]:
    """The miniature's, with a transformer whose layers all matter."""
    found: dict[str, Any] = tiny_modules(len(qwen_tokenizer()))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in found[DENOISER].parameters():
            parameter.normal_(std=0.1, generator=generator)
    for module in found.values():
        module.eval().requires_grad_(False)
    return found


@pytest.fixture(scope="module")
def components(modules: dict[str, Any]) -> Components:
    return Components(
        denoiser=modules[DENOISER],
        vae=modules[VAE],
        text_encoders=[modules[TEXT_ENCODER].model.language_model],
        tokenizers=[qwen_tokenizer()],
        source="tiny",
    )


def inputs_of(lengths: list[int]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Image tokens, states and mask of captions of these lengths, and timesteps that bfloat16 represents exactly."""
    generator = torch.Generator().manual_seed(2)
    count = len(lengths)
    image = torch.randn(count, GRID[0] * GRID[1], 64, generator=generator)
    states = torch.randn(count, max(lengths), PARAMS.text_width, generator=generator)
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    return image, states, mask, torch.linspace(0.25, 0.75, count)


def shapes_on_meta() -> tuple[QwenImageTransformer, dict[str, list[int]]]:
    with torch.device("meta"):
        transformer = QwenImageTransformer(QwenImageParams())
    return transformer, {name: list(tensor.shape) for name, tensor in transformer.state_dict().items()}


def test_at_full_size_it_has_the_tensors_of_the_official_file() -> None:
    told = REFERENCE["transformer"]
    expected = dict(told["outside"])
    for number in range(told["blocks"]):
        expected |= {f"transformer_blocks.{number}.{name}": shape for name, shape in told["block"].items()}
    transformer, shapes = shapes_on_meta()
    assert shapes == expected
    assert sum(p.numel() for p in transformer.parameters()) == MEMORY.values[DENOISER]
    assert sum(p.numel() for p in transformer.transformer_blocks[0].parameters()) == MEMORY.largest_block
    assert QwenImageParams.of({name: tuple(shape) for name, shape in expected.items()}) == QwenImageParams()


def test_a_lora_adapts_the_layers_of_musubi_tuners_under_its_names() -> None:
    transformer, _ = shapes_on_meta()
    layers = dict(adaptable(transformer, TRANSFORMER, conv=False))
    ours = {TRANSFORMER.name(path): list(layer.weight.shape) for path, layer in layers.items()}
    of_block, blocks = REFERENCE["lora_of_block"], range(REFERENCE["transformer"]["blocks"])
    names = {key.rpartition(".lora_down")[0] for key in of_block if "lora_down" in key}
    assert ours == {
        f"lora_unet_transformer_blocks_{number}_{name}": [
            of_block[f"{name}.lora_up.weight"][0],
            of_block[f"{name}.lora_down.weight"][1],
        ]
        for number in blocks
        for name in names
    }
    assert sum(sum(shape) for shape in ours.values()) == MEMORY.lora[DENOISER]


@pytest.mark.parametrize("lengths", [[7, 7], [7, 4]], ids=["whole", "padded"])
def test_the_prediction_matches_diffusers(components: Components, lengths: list[int]) -> None:
    image, states, mask, t = inputs_of(lengths)
    theirs = transformer_of(components.denoiser.state_dict(), PARAMS)
    expected = theirs(image, states, mask, t, [[(1, *GRID)]] * 2, return_dict=False)[0]
    ours = components.denoiser(image, states, t, GRID, None if lengths[0] == lengths[1] else mask)
    torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-4)


def test_in_bfloat16_the_prediction_matches_diffusers_with_an_unrounded_timestep(modules: Any) -> None:
    image, states, mask, t = inputs_of([7, 4])
    exact = modules[DENOISER](image, states, t, GRID, mask)
    ours = QwenImageTransformer(PARAMS).bfloat16()
    ours.load_state_dict(modules[DENOISER].state_dict())
    theirs = transformer_of(modules[DENOISER].state_dict(), PARAMS).bfloat16()
    theirs.time_text_embed.time_proj.register_forward_pre_hook(lambda _, inputs: (inputs[0].float(),))
    expected = theirs(image.bfloat16(), states.bfloat16(), mask, t, [[(1, *GRID)]] * 2, return_dict=False)[0]
    got = ours(image, states, t, GRID, mask)
    assert (got - expected).norm() < 0.02 * expected.norm()
    assert (got - exact).norm() < 1.1 * (expected - exact).norm()


def test_every_weight_gets_the_gradient_of_diffusers(components: Components) -> None:
    """Those behind the last text, which nothing reads, get 0 instead of none."""
    image, states, mask, t = inputs_of([7, 4])
    ours = QwenImageTransformer(PARAMS)
    ours.load_state_dict(components.denoiser.state_dict())
    theirs = transformer_of(ours.state_dict(), PARAMS)
    ours(image, states, t, GRID, mask).square().mean().backward()
    theirs(image, states, mask, t, [[(1, *GRID)]] * 2, return_dict=False)[0].square().mean().backward()
    expected = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    unread = {name for name, grad in expected.items() if grad is None}
    assert all(f".{PARAMS.blocks - 1}." in name for name in unread)
    assert unread
    for name, parameter in ours.named_parameters():
        wanted = torch.zeros_like(parameter) if name in unread else expected[name]
        torch.testing.assert_close(parameter.grad, wanted, rtol=1e-3, atol=1e-5)


def test_the_content_of_padding_changes_nothing(components: Components) -> None:
    image, states, mask, t = inputs_of([7, 4])
    alone = components.denoiser(image[1:], states[1:, :4], t[1:], GRID)
    torch.testing.assert_close(components.denoiser(image, states, t, GRID, mask)[1:], alone, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(components.denoiser(image, states, t, GRID)[1:], alone, rtol=1e-4, atol=1e-5)


def full_vae() -> Any:
    with torch.device("meta"):
        return AutoencoderKLQwenImage()


def test_both_layouts_of_the_vaes_file_are_read() -> None:
    full = {name: list(tensor.shape) for name, tensor in full_vae().state_dict().items()}
    assert full == REFERENCE["vae"]["shapes"]
    single = {key: torch.empty(full[name], device="meta") for key, name in REFERENCE["vae"]["single_file"].items()}
    read = vae_from_single_file(single)
    assert {name: list(tensor.shape) for name, tensor in read.items()} == full
    assert {key: id(tensor) for key, tensor in read.items()} == {
        REFERENCE["vae"]["single_file"][key]: id(tensor) for key, tensor in single.items()
    }
    config = vae_config({name: tuple(shape) for name, shape in full.items()})
    assert {name: full_vae().config[name] for name in config} == config


def test_a_smaller_vaes_sizes_are_read_from_its_file(modules: dict[str, Any]) -> None:
    shapes = {name: tuple(tensor.shape) for name, tensor in modules[VAE].state_dict().items()}
    assert vae_config(shapes) == {**AUTOENCODER, "z_dim": 16, "input_channels": 3}


def test_latents_are_normalised_means_and_decode_to_the_image(components: Components) -> None:
    pixels = torch.rand(2, 3, 32, 48, generator=torch.Generator().manual_seed(1)) * 2 - 1
    vae: Any = components.vae
    latents = encode_images(components, pixels)
    mean, std = (torch.tensor(vae.config[f"latents_{name}"]).view(1, -1, 1, 1) for name in ("mean", "std"))
    encoded = vae.encode(pixels[:, :, None]).latent_dist.mode()
    torch.testing.assert_close(latents * std + mean, encoded[:, :, 0])
    assert latents.shape == (2, 16, 4, 6)
    decoded = vae.decode(encoded).sample[:, :, 0]
    torch.testing.assert_close(decode_images(components, latents), (decoded / 2 + 0.5).clamp(0, 1))


def test_a_large_image_is_decoded_in_tiles(components: Components) -> None:
    """Where it does not fit; nothing of that is left in the VAE."""
    vae: Any = components.vae
    latents, before = torch.randn(1, 16, 1, 16, 12, generator=torch.Generator().manual_seed(1)), dict(vae.__dict__)
    whole = vae.decode(latents).sample
    with tiled(vae, Tile(8)):
        in_tiles = vae.decode(latents).sample
    assert in_tiles.shape == whole.shape == (1, 3, 1, 128, 96)
    assert not torch.equal(in_tiles, whole)
    assert {name: vae.__dict__[name] for name in before} == before


def test_the_language_model_is_read_from_both_layouts_of_its_file(modules: dict[str, Any]) -> None:
    state = modules[TEXT_ENCODER].state_dict()
    old = {
        key.replace("model.visual.", "visual.").replace("model.language_model.", "model."): t
        for key, t in state.items()
    }
    assert any(key.startswith("visual.") for key in old)
    expected = modules[TEXT_ENCODER].model.language_model.state_dict()
    for file in (state, old):
        assert {key: id(tensor) for key, tensor in keys.language_model(file).items()}.keys() == expected.keys()
    official = {key: tuple(shape) for key, shape in REFERENCE["text_encoder"].items()}
    shapes = {key.removeprefix("model."): shape for key, shape in official.items()}
    config = keys.language_config(shapes)
    assert {name: config[name] for name in ("hidden_size", "num_attention_heads", "num_key_value_heads")} == {
        "hidden_size": 3584,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
    }
    with torch.device("meta"):
        made = LAYOUTS[TEXT_ENCODER].make(shapes)
    assert {name: tuple(tensor.shape) for name, tensor in made.state_dict().items()} == shapes


def test_captions_are_encoded_as_in_diffusers(components: Components, modules: dict[str, Any]) -> None:
    states, mask = pipeline_of(components, modules[TEXT_ENCODER]).encode_prompt(CAPTIONS, device="cpu")
    ours = encode_text(components, tokenize(components, [*map(Caption, CAPTIONS)], TextOptions.of(settings_of())))
    assert torch.equal(ours[MASK], mask.bool())
    torch.testing.assert_close(ours[STATES], states, rtol=1e-4, atol=1e-5)


def test_captions_are_truncated_at_1024_tokens(components: Components) -> None:
    tokens = tokenize(components, [Caption("circle " * 2000)], TextOptions.of(settings_of()))
    assert encode_text(components, tokens)[STATES].shape[1] == 1024
    remark = TEMPLATE.limit(components, TextOptions.of(settings_of())).prompt_remark(
        ["circle " * 200, "circle " * 2000]
    )
    assert remark is not None
    assert remark.startswith(f"1 of 2 prompts is longer than 1024 tokens and is cut: '{'circle ' * 8}circ...' (")


def test_in_compiled_runs_captions_of_different_lengths_have_one_shape(components: Components) -> None:
    compiled = settings_of(compile=True)
    shapes = {
        encode_text(components, tokenize(components, [Caption(each)], TextOptions.of(compiled)))[STATES].shape[1]
        for each in CAPTIONS
    }
    assert shapes == {STEP}
    text = encode_text(components, tokenize(components, [*map(Caption, CAPTIONS)], TextOptions.of(settings_of())))
    rows = [OUTPUTS.trim({name: tensor[row] for name, tensor in text.items()}) for row in range(len(CAPTIONS))]
    assert len({len(row[STATES]) for row in rows}) == len(CAPTIONS)
    for row in rows:
        one = {name: tensor[None] for name, tensor in row.items()}
        assert OUTPUTS.pad(one, CompileOptions()).keys() == {STATES}
        padded = OUTPUTS.pad(one, compiled[CompileOptions])
        assert padded[STATES].shape[1] == padded[MASK].shape[1] == STEP
        assert padded[MASK].sum() == len(row[STATES])


def test_shifts_match_the_model_for_every_size() -> None:
    assert [qwen_shift(each["tokens"]) for each in REFERENCE["shift"]] == pytest.approx(
        [each["qwen_shift"] for each in REFERENCE["shift"]], rel=1e-12
    )


def test_sampling_sigmas_match_diffusers() -> None:
    for each in REFERENCE["sigmas"]:
        sigmas = sampling_sigmas(each["steps"], each["width"] // 16 * (each["height"] // 16))
        torch.testing.assert_close(sigmas, torch.tensor(each["sigmas"]), rtol=0, atol=1e-6)


def drawn(how: str, **options: Any) -> Tensor:
    chosen = FlowOptions(timestep_sampling=how, **options)  # type: ignore[arg-type]
    return draw_timesteps(100_000, chosen, 4096, torch.Generator().manual_seed(1))


def test_timesteps_follow_their_rule() -> None:
    """The middle of each distribution in closed form, and the share of clear images."""
    shift = qwen_shift(4096)
    assert drawn("qwen_shift").median().item() == pytest.approx(shift / (1 + shift), abs=0.005)
    log_snr = 2 * torch.logit(1 - drawn("logsnr", logit_mean=1.5, logit_std=0.5).double())
    assert (log_snr.mean().item(), log_snr.std().item()) == pytest.approx((1.5, 0.5), abs=0.01)
    clear = (drawn("qinglong_qwen") < 0.1).float().mean() - 0.95 * (drawn("qwen_shift") < 0.1).float().mean()
    assert clear.item() == pytest.approx(0.05 * 0.83, abs=0.005)
    assert torch.equal(drawn("sigmoid"), drawn("shift", discrete_flow_shift=1.0))


def test_the_loss_is_the_weighted_mean_squared_error_of_the_velocity(components: Components) -> None:
    from tests.support.families.flux import batch_of

    latents = torch.randn(2, 16, 10, 12, generator=torch.Generator().manual_seed(3))
    t = torch.tensor([0.25, 0.5])
    inputs = step_inputs(
        batch_of(latents), latents, QWEN_IMAGE.objective_options(settings_of()), torch.Generator().manual_seed(1), t
    )
    text = encode_text(components, tokenize(components, [*map(Caption, CAPTIONS[:2])], TextOptions.of(settings_of())))
    given = StepInputs(model=inputs, text=text)
    velocity = predict(components.denoiser, inputs["noisy"], t, text)
    expected = ((velocity - inputs["target"]) ** 2).mean((1, 2, 3))
    torch.testing.assert_close(loss(components, given, QWEN_IMAGE.objective_options(settings_of())), expected)
    by_sigma = QWEN_IMAGE.objective_options(settings_of(weighting_scheme="sigma_sqrt"))
    weighted = loss(components, given, by_sigma)
    torch.testing.assert_close(weighted, expected / t**2)


@pytest.mark.parametrize(("scale", "negative"), [(4.0, "blue"), (4.0, ""), (1.0, "")])
def test_samples_are_denoised_as_in_diffusers(
    components: Components, modules: dict[str, Any], scale: float, negative: str
) -> None:
    prompt = SamplePrompt(prompt="a red circle", negative_prompt=negative, scale=scale)
    noise = torch.randn(1, 16, 8, 10, generator=torch.Generator().manual_seed(1))
    text = encode_text(components, tokenize(components, prompt_captions(prompt), TextOptions.of(settings_of())))
    captions = [OUTPUTS.pad(each, CompileOptions()) for each in OUTPUTS.each(text, torch.device("cpu"))]
    velocity = guided_velocity(partial(predict, components.denoiser), captions, scale)
    ours = euler_steps(noise, sampling_sigmas(4, 4 * 5), velocity, torch.clone)
    theirs = pipeline_of(components, modules[TEXT_ENCODER])(
        "a red circle",
        negative_prompt=(negative or " ") if scale != 1 else None,
        true_cfg_scale=scale,
        width=80,
        height=64,
        num_inference_steps=4,
        latents=pack(noise),
        output_type="latent",
    ).images
    torch.testing.assert_close(pack(ours), theirs, rtol=1e-3, atol=1e-3)


def test_a_sample_has_the_size_of_its_prompt_in_multiples_of_16(components: Components) -> None:
    prompt = SamplePrompt(prompt="a red circle", width=72, height=80, steps=1, scale=1.0, seed=1)
    text = encode_text(components, tokenize(components, prompt_captions(prompt), TextOptions.of(settings_of())))
    assert sample(components, prompt, text, settings_of()).size == (64, 80)


def test_a_trained_transformer_is_saved_under_its_official_keys(components: Components) -> None:
    from sd_scripts.families.common.family import ModelWeights

    state = components.denoiser.state_dict()
    saved = QWEN_IMAGE.saving.tensors(components, ModelWeights(denoiser=state))
    assert saved.keys() == transformer_of(state, PARAMS).state_dict().keys()


def adapted(*network_args: str, warn: Callable[[str], None] = pytest.fail) -> list[str]:
    """Return the paths of the adapted layers at full size."""
    args = NetworkArgs.read(settings_of(network_args=list(network_args)), warn)
    transformer, _ = shapes_on_meta()
    return [plan.path for plan in plan_layers([AdaptedModule(module=transformer, target=TRANSFORMER, lr=1.0)], args)]


def test_patterns_leave_out_layers_as_in_musubi_tuner() -> None:
    """The counts are from its networks at full size."""
    assert len(adapted()) == 840
    assert len(adapted("exclude_patterns=['.*_mod.*']")) == len(adapted("exclude_patterns=.*_mod.*")) == 720
    attention = adapted("exclude_patterns=['.*']", "include_patterns=['.*attn.*']")
    assert len(attention) == 480
    assert all(".attn." in path for path in attention)
    warnings: list[str] = []
    assert len(adapted("include_patterns=['.*attn.*']", warn=warnings.append)) == 840
    assert warnings == [
        "network_args: include_patterns has no effect without exclude_patterns, whose exceptions it lists"
    ]
    for wrong in ("['a'", "['(']", "[1]"):
        with pytest.raises(ValueError, match=r"network_args: exclude_patterns=.* is not a list of regular expressions"):
            adapted(f"exclude_patterns={wrong}")
