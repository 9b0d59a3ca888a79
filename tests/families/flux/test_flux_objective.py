"""FLUX.1's objective: the point between image and noise, the loss there, and its messages."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from sd_scripts.families.common.family import Components, StepInputs
from sd_scripts.families.common.objective import flow_inputs, flow_validation_timesteps
from sd_scripts.families.flux import objective
from sd_scripts.families.flux.family import FLUX
from sd_scripts.families.flux.model import FluxParams, rope_table
from sd_scripts.families.flux.objective import architecture, predict
from sd_scripts.families.flux.vae import decode_latents, encode_images
from sd_scripts.library.diffusion.dit_layers import grid_of, pack, rope_widths, unpack
from sd_scripts.options.optimization.loss import NoiseOptions
from sd_scripts.settings.settings import Settings
from tests.support.families.flux import batch_of, flux_settings, text_of, tiny_parts

NUMBERS = json.loads((Path(__file__).parents[2] / "reference" / "fixtures_numeric.json").read_text())
LATENTS = torch.randn(3, 16, 6, 4, generator=torch.Generator().manual_seed(3))
RAW = {"model_prediction_type": "raw", "guidance_scale": 1.0}


@pytest.fixture(scope="module")
def components() -> Components:
    return tiny_parts()


@pytest.fixture(scope="module")
def text() -> dict[str, Tensor]:
    return text_of(len(LATENTS))


def inputs_of(mask: Tensor | None = None, timesteps: Tensor | None = None, **values: Any) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return flow_inputs(
        batch_of(LATENTS, mask), LATENTS, FLUX.objective_options(flux_settings(**values)), generator, timesteps
    )


def loss(components: Components, inputs: dict[str, Tensor], text: dict[str, Tensor], settings: Settings) -> Tensor:
    return objective.loss(components, StepInputs(model=inputs, text=text), FLUX.objective_options(settings))


def predicted(components: Components, inputs: dict[str, Tensor], text: dict[str, Tensor], guidance: float) -> Tensor:
    told = torch.full((len(LATENTS),), guidance)
    return predict(components.denoiser, inputs["noisy"], inputs["timesteps"], text, told, masked=False)


def test_noisy_latents_interpolate_linearly_from_image_to_noise() -> None:
    t = torch.tensor([0.0, 0.25, 1.0])
    inputs = inputs_of(timesteps=t)
    noise = torch.randn(LATENTS.shape, generator=torch.Generator().manual_seed(1))
    assert torch.equal(inputs["target"], noise - LATENTS)
    assert torch.equal(inputs["timesteps"], t)
    torch.testing.assert_close(inputs["noisy"], LATENTS + t.view(-1, 1, 1, 1) * inputs["target"])


def test_timesteps_are_drawn_in_float32_within_their_bounds() -> None:
    drawn = inputs_of(timestep_sampling="shift", min_timestep=100, max_timestep=300)["timesteps"]
    assert drawn.dtype == torch.float32
    latents = torch.zeros(500, 16, 2, 2)
    bounds = FLUX.objective_options(flux_settings(min_timestep=100, max_timestep=300))
    many = flow_inputs(batch_of(latents), latents, bounds, torch.Generator().manual_seed(1))["timesteps"]
    assert 0.1 <= many.min() < many.max() <= 0.3


def test_bounds_of_the_whole_range_change_nothing() -> None:
    """Files of kohya_ss always have them."""
    bounded, free = inputs_of(min_timestep=0, max_timestep=1000), inputs_of()
    assert all(torch.equal(bounded[name], tensor) for name, tensor in free.items())


def test_input_perturbation_changes_the_noisy_latents_and_not_the_target() -> None:
    t = torch.full((3,), 0.5)
    plain, perturbed = inputs_of(timesteps=t), inputs_of(timesteps=t, ip_noise_gamma=0.1)
    assert torch.equal(plain["target"], perturbed["target"])
    assert (perturbed["noisy"] - plain["noisy"]).std().item() == pytest.approx(0.05, rel=0.1)


def test_options_of_other_families_change_nothing() -> None:
    others = {"noise_offset": 0.1, "multires_noise_iterations": 6}
    plain, without_effect = inputs_of(), inputs_of(**others)
    assert all(torch.equal(plain[name], without_effect[name]) for name in plain)
    told = [str(remark) for remark in flux_settings(**others).remarks]
    assert [f"{name}: has no effect for FLUX.1" for name in others] == told[:2]


def test_raw_compares_the_prediction_with_the_velocity(components: Components, text: dict[str, Tensor]) -> None:
    inputs = inputs_of()
    expected = ((predicted(components, inputs, text, 1.0) - inputs["target"]) ** 2).mean((1, 2, 3))
    torch.testing.assert_close(loss(components, inputs, text, flux_settings(**RAW)), expected)


def test_the_other_prediction_types_match_sd_scripts(components: Components, text: dict[str, Tensor]) -> None:
    inputs = inputs_of(timesteps=torch.tensor([0.2, 0.5, 0.9]))
    noisy, target, t = inputs["noisy"], inputs["target"], inputs["timesteps"]
    velocity = predicted(components, inputs, text, 3.5)
    image = noisy - t.view(-1, 1, 1, 1) * velocity
    scaled = ((image - target) ** 2).mean((1, 2, 3))
    torch.testing.assert_close(loss(components, inputs, text, flux_settings()), scaled)
    weighted = loss(components, inputs, text, flux_settings(weighting_scheme="sigma_sqrt"))
    torch.testing.assert_close(weighted, scaled / t**2)
    added = ((velocity + noisy - target) ** 2).mean((1, 2, 3))
    additive = flux_settings(model_prediction_type="additive", weighting_scheme="sigma_sqrt")
    torch.testing.assert_close(loss(components, inputs, text, additive), added)


def test_dev_receives_guidance_and_schnell_none(components: Components, text: dict[str, Tensor]) -> None:
    inputs = inputs_of()
    for each, differs in ((components, True), (tiny_parts(guidance=False), False)):
        low, high = (loss(each, inputs, text, flux_settings(guidance_scale=scale)) for scale in (1.0, 4.0))
        assert torch.equal(low, high) is not differs


def test_padding_is_hidden_from_the_transformer_only_where_asked(
    components: Components, text: dict[str, Tensor]
) -> None:
    inputs, other = inputs_of(), dict(text)
    other["t5_out"] = text["t5_out"] + 5 * (text["t5_attn_mask"] == 0)[..., None]
    for masked in (False, True):
        settings = flux_settings(**RAW, apply_t5_attn_mask=masked)
        one, two = loss(components, inputs, text, settings), loss(components, inputs, other, settings)
        assert torch.allclose(one, two, rtol=1e-5) is masked


def test_a_mask_and_a_weight_scale_the_loss(components: Components, text: dict[str, Tensor]) -> None:
    mask = torch.zeros(3, 1, 48, 32)
    mask[:, :, :24] = 1
    inputs, masked = inputs_of(), inputs_of(mask)
    errors = (predicted(components, inputs, text, 1.0) - inputs["target"]) ** 2
    settings = flux_settings(**RAW)
    torch.testing.assert_close(loss(components, masked, text, settings), errors[:, :, :3].mean((1, 2, 3)) / 2)
    inputs["loss_weight"] = torch.tensor([1.0, 0.5, 0.0])
    torch.testing.assert_close(
        loss(components, inputs, text, settings), errors.mean((1, 2, 3)) * torch.tensor([1.0, 0.5, 0.0])
    )


@pytest.mark.parametrize("schedule", ["constant", "exponential"])
@pytest.mark.parametrize("loss_type", ["huber", "smooth_l1", "l1"])
def test_every_loss_type_is_float32_for_each_image(
    components: Components, text: dict[str, Tensor], loss_type: str, schedule: str
) -> None:
    settings = flux_settings(**RAW, loss_type=loss_type, huber_schedule=schedule)
    found = loss(components, inputs_of(), text, settings)
    assert found.shape == (3,)
    assert found.dtype == torch.float32
    assert found.isfinite().all()


def test_the_exponential_width_depends_on_sigma(components: Components, text: dict[str, Tensor]) -> None:
    inputs = inputs_of(timesteps=torch.tensor([0.0, 0.5, 1.0]))
    errors = predicted(components, inputs, text, 1.0) - inputs["target"]
    width = torch.tensor([1.0, 0.1**0.5, 0.1]).view(-1, 1, 1, 1)
    expected = (2 * width * ((errors**2 + width**2).sqrt() - width)).mean((1, 2, 3))
    settings = flux_settings(**RAW, loss_type="huber", huber_schedule="exponential")
    torch.testing.assert_close(loss(components, inputs, text, settings), expected)


def test_a_loss_reads_no_value_of_a_tensor() -> None:
    """Tensors without values stand in for a device that nobody may wait for."""
    components = tiny_parts()
    components.denoiser.to("meta")
    inputs = {name: tensor.to("meta") for name, tensor in inputs_of(torch.ones(3, 1, 48, 32)).items()}
    text = {name: tensor.to("meta") for name, tensor in text_of(3).items()}
    settings = flux_settings(apply_t5_attn_mask=True, weighting_scheme="cosmap", loss_type="l1")
    assert loss(components, inputs, text, settings).shape == (3,)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: it is the GPU that nobody may wait for")
@pytest.mark.parametrize("sampling", ["sigma", "uniform", "sigmoid", "shift", "flux_shift"])
def test_nothing_in_a_step_waits_for_the_gpu(sampling: str) -> None:
    components, device = tiny_parts(), torch.device("cuda")
    components.denoiser.to(device)
    text = {name: tensor.to(device) for name, tensor in text_of(3).items()}
    latents, settings = LATENTS.to(device), flux_settings(timestep_sampling=sampling, apply_t5_attn_mask=True)
    batch = batch_of(LATENTS).pin_memory()

    def step() -> Tensor:
        generator = torch.Generator(device).manual_seed(1)
        return loss(
            components, flow_inputs(batch, latents, FLUX.objective_options(settings), generator), text, settings
        )

    first = step()  # tables are made once
    torch.cuda.set_sync_debug_mode("error")
    try:
        again = step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(again, first)


def test_huber_by_snr_is_refused_before_anything_is_loaded() -> None:
    refused = [str(each) for each in flux_settings(loss_type="huber").problems() if each.names == ("huber_schedule",)]
    assert refused == [
        "huber_schedule: snr follows Stable Diffusion's noise schedule; set huber_schedule = constant or exponential"
    ]
    mended = flux_settings(loss_type="huber", huber_schedule="constant").problems()
    assert not any(str(each).startswith("huber") for each in mended)


def remarks(**values: Any) -> dict[str, str]:
    return {remark.name: remark.text for remark in flux_settings(**values).remarks}


def test_the_sd_scripts_default_is_reported_with_the_recommended_value() -> None:
    said = remarks()["model_prediction_type"]
    for recommended in (
        "timestep_sampling = shift",
        "discrete_flow_shift = 3.1582",
        "model_prediction_type = raw",
        "guidance_scale = 1.0",
    ):
        assert recommended in said
    assert "model_prediction_type" not in remarks(model_prediction_type="raw")


@pytest.mark.parametrize(
    ("values", "names"),
    [
        ({"timestep_sampling": "sigma", "discrete_flow_shift": 2.0}, set()),
        ({"timestep_sampling": "flux_shift", "discrete_flow_shift": 2.0}, {"discrete_flow_shift"}),
        ({"timestep_sampling": "uniform", "sigmoid_scale": 2.0}, {"sigmoid_scale"}),
        ({"timestep_sampling": "shift", "sigmoid_scale": 2.0}, set()),
        ({"weighting_scheme": "logit_normal", "logit_mean": 1.0}, set()),
        ({"weighting_scheme": "mode", "logit_std": 2.0}, {"logit_std"}),
        ({"timestep_sampling": "shift", "weighting_scheme": "mode", "mode_scale": 1.0}, {"weighting_scheme"}),
        ({"mode_scale": 1.0}, {"mode_scale"}),
        ({"weighting_scheme": "cosmap"}, set()),
        ({"weighting_scheme": "cosmap", "model_prediction_type": "raw"}, {"weighting_scheme"}),
        ({"min_timestep": 10, "max_timestep": 900}, set()),
        ({"min_timestep": 0, "max_timestep": 1000}, set()),
    ],
)
def test_a_choice_without_effect_is_reported(values: dict[str, Any], names: set[str]) -> None:
    assert remarks(**values).keys() - {"model_prediction_type"} == names


def test_options_of_sdxl_are_reported_once_and_do_not_stop_the_run() -> None:
    settings = flux_settings(
        model_prediction_type="raw", zero_terminal_snr=True, scale_v_pred_loss_like_noise_pred=True
    )
    assert not any(str(problem).startswith("scale_v_pred") for problem in settings.problems())
    assert sorted(map(str, settings.remarks)) == [
        "scale_v_pred_loss_like_noise_pred: has no effect for FLUX.1",
        "zero_terminal_snr: has no effect for FLUX.1",
    ]


def test_validation_uses_four_sigmas_of_the_trained_range() -> None:
    assert flow_validation_timesteps(NoiseOptions()) == [0.2, 0.4, 0.6, 0.8]
    bounded = flow_validation_timesteps(NoiseOptions(min_timestep=500, max_timestep=1000))
    assert bounded == pytest.approx([0.6, 0.7, 0.8, 0.9])


def test_a_lora_file_records_how_flux_was_trained(components: Components) -> None:
    settings = flux_settings(timestep_sampling="shift", apply_t5_attn_mask=True)
    assert FLUX.identity.lora_entries(settings.values(), components) == {
        "ss_model_type": "flux",
        "ss_apply_t5_attn_mask": "True",
        "ss_weighting_scheme": "uniform",
        "ss_logit_mean": "0.0",
        "ss_logit_std": "1.0",
        "ss_mode_scale": "1.29",
        "ss_guidance_scale": "3.5",
        "ss_timestep_sampling": "shift",
        "ss_sigmoid_scale": "1.0",
        "ss_model_prediction_type": "sigma_scaled",
        "ss_discrete_flow_shift": "3.0",
    }
    assert architecture(components) == "flux-1-dev"
    assert architecture(tiny_parts(guidance=False)) == "flux-1-schnell"


def test_latents_are_packed_as_in_the_reference() -> None:
    latents = torch.arange(16.0 * 4 * 6).view(1, 16, 4, 6)
    packed, expected = pack(latents), NUMBERS["flux_pack"]
    assert list(packed.shape) == expected["shape"]
    assert packed[0, 0, :8].tolist() == expected["row0_first8"]
    assert packed[0, 5, -4:].tolist() == expected["row5_last4"]
    assert torch.equal(unpack(packed, grid_of(latents)), latents)
    assert torch.equal(unpack(pack(LATENTS), grid_of(LATENTS)), LATENTS)


def test_tokens_have_the_positions_of_the_reference() -> None:
    shape = FluxParams()
    ids = torch.tensor(NUMBERS["flux_img_ids_2x3"][0], dtype=torch.float64)  # (6, 3)
    rates = [
        10_000 ** -(torch.arange(0, width, 2, dtype=torch.float64) / width) for width in rope_widths(shape.head_width)
    ]
    angles = torch.cat([ids[:, [axis]] * rate for axis, rate in enumerate(rates)], dim=1)
    cos, sin = rope_table(shape, ((2, 3),), 2, torch.device("cpu"))
    torch.testing.assert_close(cos[0, :-2, 0], angles.cos().float())
    torch.testing.assert_close(sin[0, :-2, 0], angles.sin().float())


def test_latents_are_shifted_and_scaled_and_restored(components: Components) -> None:
    pixels = torch.rand(2, 3, 32, 48) * 2 - 1
    latents = encode_images(components, pixels)
    vae: Any = components.vae
    assert latents.shape == (2, 16, 4, 6)
    torch.testing.assert_close(latents, (vae.encode(pixels).latent_dist.mode() - 0.1159) * 0.3611)
    back = vae.decode(latents / 0.3611 + 0.1159).sample
    torch.testing.assert_close(decode_latents(components, latents), (back / 2 + 0.5).clamp(0, 1))


@pytest.mark.parametrize(
    ("dtype", "said"),
    [(torch.float16, "mixed_precision: the autoencoder overflowed"), (torch.float32, "ae: the autoencoder produces")],
)
def test_non_finite_latents_are_reported_with_a_remedy(dtype: torch.dtype, said: str) -> None:
    components = tiny_parts()
    components.vae.encoder.conv_out.weight.fill_(torch.inf)
    components.vae.to(dtype)
    with pytest.raises(ValueError, match=said):
        encode_images(components, torch.ones(1, 3, 32, 32))
