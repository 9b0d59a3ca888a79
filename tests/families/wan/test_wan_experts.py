"""Wan 2.2's two models: which of them predicts, where each one is, and a LoRA that is trained on both."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from kohya_gui.generate.generate_routes import as_form
from sd_scripts.data.plan.buckets import Extent
from sd_scripts.data.plan.epochs import BatchShape
from sd_scripts.families.cards.model_file import describe
from sd_scripts.families.common.components import Components
from sd_scripts.families.common.family import family_of
from sd_scripts.families.common.flow_sampling import Velocity
from sd_scripts.families.common.objective import flow_timesteps, flow_validation_timesteps, tokens_of
from sd_scripts.families.common.placing import placement_of
from sd_scripts.families.wan.card import HIGH_NOISE
from sd_scripts.families.wan.card.memory_facts import MEMORY_OF_1_3B
from sd_scripts.families.wan.card.options import WanSamplingOptions
from sd_scripts.families.wan.experts import velocity_of
from sd_scripts.families.wan.family import WAN
from sd_scripts.families.wan.model import WanParams, WanTransformer
from sd_scripts.generating.generator import Generator
from sd_scripts.library.diffusion.flow_timesteps import shifted
from sd_scripts.options.generating.generate import GenerateOptions
from sd_scripts.options.model import MODEL
from sd_scripts.options.optimization.loss import NoiseOptions
from sd_scripts.planning.memory import plan_memory
from sd_scripts.runs.reporter import Reporter
from sd_scripts.settings.catalog import script_for
from sd_scripts.settings.generate_settings import adapters_of, settings_of
from sd_scripts.settings.settings import Settings
from tests.support.training import Run, equal, settings_for, train


@pytest.fixture(scope="module")
def high_noise(wan_miniature: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a second model, whose velocity is 0."""
    state = load_file(wan_miniature.checkpoint)
    state["head.head.weight"].zero_()
    state["head.head.bias"].zero_()
    path = tmp_path_factory.mktemp("experts") / "high.safetensors"
    save_file(state, path)
    return path


def opened(miniature: Any, high_noise: Path, **values: Any) -> tuple[Components, Settings]:
    known = {name: value for name, value in settings_for(miniature).items() if value is not None}
    settings = Settings(
        script_for("wan", "lora"),
        {name: str(value) if isinstance(value, Path) else value for name, value in known.items()}
        | {"dit_high_noise": str(high_noise), "output_dir": "out", "train_data_dir": "images", **values},
    )
    return family_of("wan").open(settings, torch.float32), settings


@pytest.mark.parametrize(("bounds", "trained"), [({"max_timestep": 875}, "low"), ({"min_timestep": 875}, "high")])
def test_a_model_that_is_not_trained_is_in_memory_for_its_steps_only(
    wan_miniature: Any, high_noise: Path, bounds: dict[str, int], trained: str
) -> None:
    components, settings = opened(wan_miniature, high_noise, **bounds)
    assert components.experts is None
    used: list[str] = []

    def make(model: object, high: bool) -> Velocity:
        return lambda latents, t: used.append("high" if high else "low") or latents  # type: ignore[func-returns-value]

    velocity = velocity_of(components, settings[WanSamplingOptions], placement_of(settings), make)
    loaded = []
    for t in (1.0, 0.875, 0.874, 0.1):
        velocity(torch.zeros(1), torch.tensor(t))
        loaded.append(components.is_loaded(HIGH_NOISE))
    assert used == ["high", "high", "low", "low"]
    assert loaded == [name != trained for name in used]
    zero = components.sources["denoiser"].load().state_dict()["head.head.weight"].count_nonzero() == 0
    assert zero == (trained == "high")


STORED: dict[str, dict[str, Any]] = {
    "in place": {},
    "in main memory": {"offload_inactive_dit": True},
    "swapped": {"blocks_to_swap": 2},
    "swapped and quantized": {"blocks_to_swap": 2, "quantize_base": "int8", "offload_inactive_dit": True},
    "nf4": {"quantize_base": "nf4"},
}


@torch.no_grad()
@pytest.mark.parametrize("stored", STORED)
def test_the_weights_for_a_noise_level_are_in_the_denoiser_at_its_own_addresses(
    wan_miniature: Any, high_noise: Path, stored: str
) -> None:
    """They change places as often as needed, and no bit of them is lost."""
    components, settings = opened(wan_miniature, high_noise, **STORED[stored])
    family = family_of("wan")
    models = [wan_miniature.checkpoint, high_noise]
    alone, other = (
        family.open(settings.replaced({MODEL: str(file)}), torch.float32, only=("denoiser",)) for file in models
    )
    for each in (alone, other, components):
        family.place(each.load("denoiser"), placement_of(settings), torch.device("cpu"))
    experts = components.experts
    assert experts
    assert not components.is_loaded(HIGH_NOISE)
    addresses = [tensor.data_ptr() for tensor in components.denoiser.parameters()]
    torch.manual_seed(0)
    inputs = torch.randn(1, 16, 1, 8, 8), torch.randn(1, 512, 48), torch.tensor([0.5])
    low, high = alone.denoiser(*inputs), other.denoiser(*inputs)
    assert not torch.equal(low, high)
    for t in (0.1, 0.9, 0.874, 0.875, 0.2):
        experts.use_for(t)
        assert torch.equal(components.denoiser(*inputs), high if t >= 0.875 else low)
    assert [tensor.data_ptr() for tensor in components.denoiser.parameters()] == addresses


def test_a_file_of_something_else_is_refused_as_the_second_model(wan_miniature: Any, high_noise: Path) -> None:
    assert describe(wan_miniature.checkpoint).parts == ()
    with pytest.raises(ValueError, match="dit_high_noise"):
        opened(wan_miniature, wan_miniature.files["vae"])


def test_all_timesteps_of_a_batch_need_the_same_weights(wan_miniature: Any, high_noise: Path) -> None:
    components, settings = opened(wan_miniature, high_noise, discrete_flow_shift=12.0)
    experts = components.experts
    assert experts
    used: list[bool] = []
    experts.use_for = lambda t: setattr(experts, "high", t >= 0.875)  # type: ignore[method-assign]
    latents = torch.zeros(4, 16, 1, 8, 8)
    for seed in range(200):
        t = experts.draw(latents, WAN.objective_options(settings), torch.Generator().manual_seed(seed), seed + 1000)
        used.append(experts.high)
        assert ((t >= 0.875) == experts.high).all()
    drawn = shifted(torch.sigmoid(torch.randn(100_000, generator=torch.Generator().manual_seed(0))), 12.0)
    assert abs(sum(used) / len(used) - float((drawn >= 0.875).float().mean())) < 0.1


@pytest.mark.parametrize(
    ("bounds", "added"),
    [({}, [0.9375]), ({"min_timestep": 800}, []), ({"min_timestep": 870}, [0.8725]), ({"max_timestep": 900}, [0.8875])],
)
def test_both_models_are_validated_within_the_bounds(
    wan_miniature: Any, high_noise: Path, bounds: dict[str, int], added: list[float]
) -> None:
    components, settings = opened(wan_miniature, high_noise, **bounds)
    usual = flow_validation_timesteps(settings[NoiseOptions])
    assert components.experts
    timesteps = components.experts.validated(usual, settings[NoiseOptions])
    assert timesteps == pytest.approx([*usual, *added])
    assert {t >= 0.875 for t in timesteps} == {True, False}


@pytest.fixture(scope="module")
def on_both(wan_miniature: Any, high_noise: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Six compiled steps, with a sample before the first one. Do not write to it."""
    folder = tmp_path_factory.mktemp("both")
    prompts = folder / "prompts.txt"
    prompts.write_text("a red circle --w 64 --h 64 --f 1 --s 2 --d 1 --l 1\n")
    samples = {"sample_prompts": prompts, "sample_at_first": True, "save_state": True, "save_every_n_steps": 3}
    return train(wan_miniature, folder / "whole", **BOTH, dit_high_noise=high_noise, **samples)


BOTH = {"timestep_boundary": 0.7, "max_train_steps": 6, "compile": True, "compile_backend": "eager"}


@pytest.mark.run
@pytest.mark.usefixtures("no_graphs")
def test_one_lora_is_trained_on_both_models_and_resumes(
    wan_miniature: Any, high_noise: Path, on_both: Run, tmp_path: Path
) -> None:
    """The second model predicts a velocity of 0, which at high noise is nearer to the truth than the miniature's."""
    assert on_both.status == 0
    assert on_both.events_of("warning") == []
    assert len(on_both.events_of("sample")) == 1
    assert [event["graphs"] for event in on_both.events_of("compile")] == [1]
    of_high, of_low = [[loss for loss in on_both.losses if (loss < 2.7) == high] for high in (True, False)]
    assert of_high
    assert min(of_low) > 3
    state = on_both.output / "short-step00000003-state"
    resumed = train(wan_miniature, tmp_path / "rest", **BOTH, dit_high_noise=high_noise, resume=state)
    assert resumed.losses == on_both.losses[3:]
    assert equal(resumed.tensors(), on_both.tensors())


@pytest.mark.run
def test_a_lora_is_applied_to_the_models_that_it_was_trained_on(
    wan_miniature: Any, high_noise: Path, on_both: Run
) -> None:
    """By its metadata, unless a file is named for each model."""
    lora = str(on_both.output / "short.safetensors")
    files = {name: str(path) for name, path in wan_miniature.files.items()}
    values = {**files, "dit_high_noise": str(high_noise), "prompt": ["a red circle"], "dtype": "fp32"}
    settings = settings_of("wan", {}, values)
    generator = Generator(family_of("wan"), settings, Reporter(None))
    choices = {
        "both": {"lora_weights": [lora]},
        "named": {"lora_weights": [lora], "lora_weight_high_noise": [lora], "lora_multiplier_high_noise": [0.5]},
        "high": {"lora_weight_high_noise": [lora]},
        "none": {},
    }
    weights: dict[str, list[Tensor]] = {}
    for name, more in choices.items():
        generator.apply(adapters_of(settings_of("wan", {}, {**values, **more})[GenerateOptions]))
        generator.place()
        experts, denoiser = generator.components.experts, generator.components.denoiser
        assert experts
        weights[name] = []
        for t in (0.1, 0.9):
            experts.use_for(t)
            weights[name].append(denoiser.blocks[0].self_attn.q.weight.clone())  # type: ignore[index, union-attr]
    plain = weights["none"][0]  # both files have the same blocks
    change = weights["both"][0] - plain
    assert change.any()
    expected = {"both": (1.0, 1.0), "named": (1.0, 0.5), "high": (0.0, 1.0), "none": (0.0, 0.0)}
    for name, strengths in expected.items():
        for found, strength in zip(weights[name], strengths, strict=True):
            torch.testing.assert_close(found, plain + strength * change)


def test_what_starts_from_the_base_weights_is_refused_for_two_of_them(wan_miniature: Any, high_noise: Path) -> None:
    for values in ({"network_type": "dora"}, {"lora_init": "pissa"}, {"network_args": ["ggpo_beta=1", "ggpo_sigma=1"]}):
        _, settings = opened(wan_miniature, high_noise, **values)
        assert any("two sets of them" in str(problem) for problem in settings.problems())
        assert not settings.replaced({"max_timestep": 800}).problems()


def test_the_plan_knows_the_small_model_by_its_number_of_values() -> None:
    shape = BatchShape(extent=Extent(832, 480, 1), images=1)
    settings = Settings(script_for("wan", "lora"), {"network_train_unet_only": True})
    with torch.device("meta"):
        small = WanTransformer(WanParams(width=1536, mlp_width=8960, heads=12, blocks=30))
    values = sum(each.numel() for each in small.parameters())
    plan = plan_memory(settings, [shape], model_values=values)
    assert plan
    assert next(part.bytes for part in plan.parts if part.name == "weights") == pytest.approx(4 * values, abs=2)
    assert MEMORY_OF_1_3B.largest_block == sum(each.numel() for each in small.blocks[0].parameters())


def test_the_plan_counts_the_weights_that_wait() -> None:
    """On the GPU, or with offload_inactive_dit in main memory; the ones of swapped blocks always there."""
    shape = BatchShape(extent=Extent(832, 480, 1), images=1)
    values = {"pretrained_model_name_or_path": "low.safetensors", "quantize_base": "fp8", "blocks_to_swap": 20}
    both = {**values, "dit_high_noise": "high.safetensors"}
    plans = [
        plan_memory(Settings(script_for("wan", "lora"), each), [shape])
        for each in (values, both, {**both, "offload_inactive_dit": True}, {**both, "max_timestep": 875})
    ]
    alone, waiting, offloaded, one = plans
    assert alone
    assert waiting
    assert offloaded
    weights = next(part.bytes for part in alone.parts if part.name == "weights")
    assert waiting.peak - alone.peak == pytest.approx(weights, abs=2)
    assert waiting.main_memory > alone.main_memory
    assert offloaded.peak == alone.peak
    assert offloaded.main_memory - waiting.main_memory == pytest.approx(weights, abs=2)
    assert one == alone


def test_a_clip_that_is_dropped_on_the_page_names_the_loras_of_both_models() -> None:
    adapters = [{"path": "/low.safetensors", "strength": 1.0}, {"path": "/high.safetensors", "high_noise": True}]
    form = as_form({"family": "wan", "prompt": "a cat", "adapters": adapters})
    assert [each["path"] for each in form["adapters"]] == ["/low.safetensors"]
    assert form["values"]["lora_weight_high_noise"] == "/high.safetensors"


def test_timesteps_outside_the_bounds_are_drawn_again_instead_of_scaled(wan_miniature: Any, high_noise: Path) -> None:
    """Means as musubi-tuner has them, for a shift of 3 and a minimum of 900."""
    latents = torch.zeros(1, 16, 1, 8, 8)
    means = {}
    for keeps in (False, True):
        more = {"min_timestep": 900, "discrete_flow_shift": 3.0, "preserve_distribution_shape": keeps}
        _, settings = opened(wan_miniature, high_noise, **more)
        t = flow_timesteps(2000, tokens_of(latents), WAN.objective_options(settings), torch.Generator().manual_seed(0))
        assert t.min() >= 0.9
        means[keeps] = float(t.mean())
    assert means == {False: pytest.approx(0.971, abs=0.002), True: pytest.approx(0.932, abs=0.002)}
