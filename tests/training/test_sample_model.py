"""sample_model: samples made with the weights of another model, under the LoRA that is trained."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from sd_scripts.families.cards.registry import card_of
from sd_scripts.families.common.family import Components, Family, family_of
from sd_scripts.families.common.placing import placement_of
from sd_scripts.generating.work import Worker
from sd_scripts.options.generating.prompt_lines import SamplePrompt, parse_prompts
from sd_scripts.options.generating.sampling import SampleOptions
from sd_scripts.options.model import MODEL, ModelOptions
from sd_scripts.planning.memory import plan_memory
from sd_scripts.runs.folder import new_run_folder
from sd_scripts.runs.reporter import Reporter
from sd_scripts.settings.catalog import script_for
from sd_scripts.settings.checks.model_files import sample_model
from sd_scripts.settings.generate_settings import settings_of
from sd_scripts.settings.reading import from_values
from sd_scripts.settings.settings import Settings
from sd_scripts.training.sample_model import SampleModel
from tests.support.training import Run, equal, train

LINE = "a red circle --w 64 --h 64 --s 2 --d 7 --l 1"


def changed(model: Path, to: Path) -> Path:
    """Write a file of the same model with different weights."""
    generator = torch.Generator().manual_seed(3)
    state = load_file(model)
    for tensor in state.values():
        if tensor.ndim == 2:
            tensor.add_(0.05 * torch.randn(tensor.shape, generator=generator).to(tensor.dtype))
    save_file(state, to)
    return to


@pytest.fixture(scope="module")
def turbo(any_miniature: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a different model, with its tokenizers next to it."""
    folder = tmp_path_factory.mktemp("turbo")
    model = any_miniature.checkpoint
    shutil.copytree(model.with_name(f"{model.stem}_tokenizers"), folder / "turbo_tokenizers")
    return changed(model, folder / "turbo.safetensors")


def image_of(path: str | Path) -> np.ndarray:
    return np.asarray(Image.open(path)).astype(int)


def images_of(run: Run) -> list[np.ndarray]:
    return [image_of(event["path"]) for event in run.events_of("sample")]


@pytest.fixture(scope="module")
def runs(any_miniature: Any, turbo: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Run]:
    """A compiled run with samples in between, and the same with samples of a different model. Do not write to them."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "prompts.txt").write_text(LINE)
    values = {"sample_prompts": folder / "prompts.txt", "sample_at_first": True, "sample_every_n_steps": 1}
    values |= {"compile": True, "compile_backend": "eager", "learning_rate": 0.03, "save_state": True}
    values |= {"save_every_n_steps": 2}
    plain = train(any_miniature, folder / "plain", **values)
    torch.compiler.reset()  # else the second run has the graphs of the first
    other = train(any_miniature, folder / "other", **values, sample_model=turbo)
    return plain, other


@pytest.mark.run
@pytest.mark.usefixtures("no_graphs")
def test_training_is_the_same_bit_for_bit(
    runs: tuple[Run, Run], any_miniature: Any, turbo: Path, tmp_path: Path
) -> None:
    plain, other = runs
    assert (plain.status, other.status) == (0, 0)
    assert other.losses == plain.losses
    assert equal(other.tensors(), plain.tensors())
    assert other.events_of("warning") == plain.events_of("warning") == []
    assert [e["graphs"] for e in other.events_of("compile")] == [e["graphs"] for e in plain.events_of("compile")]
    (tmp_path / "prompts.txt").write_text(LINE)
    samples = {"sample_prompts": tmp_path / "prompts.txt", "sample_at_first": True, "sample_model": turbo}
    state = other.output / "short-step00000002-state"
    resumed = train(any_miniature, tmp_path / "rest", learning_rate=0.03, resume=state, **samples)
    assert resumed.losses == pytest.approx(plain.losses[2:], rel=1e-5)
    first, last = images_of(resumed)[0], images_of(other)[2]
    assert np.abs(first - last).max() <= 1


@pytest.mark.run
def test_samples_are_the_images_of_the_other_model_with_the_saved_lora(
    runs: tuple[Run, Run], any_miniature: Any, turbo: Path, tmp_path: Path
) -> None:
    plain, other = runs
    files = {name: str(path) for name, path in any_miniature.files.items()} | {MODEL: str(turbo)}
    lora = {"lora_weights": [str(other.output / "short.safetensors")]}
    values = {**files, "t5xxl_max_token_length": 16, "dtype": "fp32", "prompt": [LINE], "image_dir": str(tmp_path)}
    folder = new_run_folder(tmp_path, "generating")
    worker = Worker(family_of("flux"), Reporter(folder))
    without, with_lora = (image_of(worker.run(settings_of("flux", {}, {**values, **more}))[0]) for more in ({}, lora))
    first, *_, last = images_of(other)
    assert np.abs(first - without).max() <= 1
    assert np.abs(last - with_lora).max() <= 1
    assert np.abs(last - without).max() > 10
    assert np.abs(last - images_of(plain)[-1]).max() > 10


STORED: dict[str, dict[str, Any]] = {
    "plain": {},
    "swapped": {"blocks_to_swap": 2},
    "swapped and quantized": {"blocks_to_swap": 2, "quantize_base": "int8"},
    "fp8": {"quantize_base": "fp8"},
    "nf4": {"quantize_base": "nf4"},
}


def opened(family: Family, model: Path, miniature: Any, **values: Any) -> tuple[Components, Settings]:
    files = {name: str(path) for name, path in miniature.files.items()}
    settings = Settings(script_for(family.card.name, "lora"), {**files, MODEL: str(model), **values})
    return family.open(settings, torch.bfloat16, only=("denoiser",)), settings


@torch.no_grad()
@pytest.mark.run
@pytest.mark.parametrize("stored", STORED)
@pytest.mark.parametrize("name", ["z_image", "flux2"])
def test_the_weights_change_places_at_their_own_addresses(
    name: str, stored: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """In lists of blocks, some of them swapped, some with layers that are quantized differently."""
    miniature, family = request.getfixturevalue(f"{name}_miniature"), family_of(name)
    turbo = changed(miniature.checkpoint, tmp_path / "turbo.safetensors")
    (components, settings), (alone, _) = (
        opened(family, file, miniature, **STORED[stored]) for file in (miniature.checkpoint, turbo)
    )
    _, with_turbo = opened(family, miniature.checkpoint, miniature, **STORED[stored], sample_model=str(turbo))
    device = torch.device("cpu")
    for each in (components, alone):
        family.place(each.load("denoiser"), placement_of(settings), device)
    source = family.open_sample_model(
        with_turbo[ModelOptions], with_turbo[SampleOptions], components.sources["denoiser"]
    )
    assert source
    assert family.block_lists
    other = SampleModel(source, lambda model: None)
    other.load(family.block_lists, components.denoiser, placement_of(settings))

    def bytes_of(model: torch.nn.Module) -> dict[str, bytes]:
        return {key: each.contiguous().flatten().view(torch.uint8).numpy().tobytes() for key, each in state_of(model)}

    def state_of(model: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
        return [(key, each) for key, each in model.state_dict().items() if each.numel()]

    addresses = [tensor.data_ptr() for tensor in components.denoiser.parameters()]
    before = bytes_of(components.denoiser)
    assert before != bytes_of(alone.denoiser)
    for _ in range(2):
        with other.in_denoiser():
            assert bytes_of(components.denoiser) == bytes_of(alone.denoiser)
        assert bytes_of(components.denoiser) == before
    assert [tensor.data_ptr() for tensor in components.denoiser.parameters()] == addresses


@pytest.mark.run
def test_a_lora_of_base_weights_is_in_the_samples_and_a_training_adapter_is_not(
    any_miniature: Any, turbo: Path, tmp_path: Path
) -> None:
    (tmp_path / "prompts.txt").write_text(LINE)
    adapter = train(any_miniature, tmp_path / "adapter", learning_rate=0.3).output / "short.safetensors"
    short = {"max_train_steps": 1, "sample_prompts": tmp_path / "prompts.txt", "sample_at_first": True}
    choices = {
        "plain": {},
        "adapter": {"training_adapter": adapter},
        "base": {"base_weights": [str(adapter)], "base_weights_multiplier": [20.0]},
    }
    plain, adapted, merged = (
        images_of(train(any_miniature, tmp_path / name, **short, sample_model=turbo, **more))[0]
        for name, more in choices.items()
    )
    assert np.array_equal(adapted, plain)
    assert np.abs(merged - plain).max() > 10


def test_a_file_that_cannot_take_the_models_place_is_refused(
    krea2_miniature: Any, flux2_miniature: Any, tmp_path: Path
) -> None:
    family = family_of("krea2")
    files = {name: str(path) for name, path in krea2_miniature.files.items()}

    def problems(file: Path) -> tuple[list[str], list[str]]:
        """Return those that the page finds, and those that the run finds before it loads."""
        settings = Settings(script_for("krea2", "lora"), {**files, "sample_model": str(file)})
        return [*sample_model(settings.script, settings[SampleOptions])], family.check(settings)

    assert problems(krea2_miniature.checkpoint) == ([], [])
    missing = tmp_path / "none.safetensors"
    assert problems(missing) == ([f"sample_model: file or folder not found: '{missing}'"],) * 2
    damaged = tmp_path / "damaged.safetensors"
    damaged.write_bytes(krea2_miniature.checkpoint.read_bytes()[:100])
    for found in problems(damaged):
        assert found[0].startswith("sample_model: ")
        assert "damaged" in found[0]
    (by_page,), (by_run,) = problems(flux2_miniature.checkpoint)
    assert by_page.endswith("is FLUX.2 klein, not a base model for Krea 2; choose another file")
    assert by_run.startswith("sample_model: ")
    assert "is not a Krea 2 transformer but" in by_run
    state = load_file(krea2_miniature.checkpoint)
    kept = {key: tensor for key, tensor in state.items() if not key.startswith("blocks.4.")}
    assert len(kept) < len(state)
    save_file(kept, tmp_path / "small.safetensors")
    (sizes,) = problems(tmp_path / "small.safetensors")[1]
    assert sizes.endswith("differs from the trained model in the sizes of its layers; choose a model of the same size")


def test_a_model_for_samples_is_refused_where_the_trained_weights_do_not_fit_it() -> None:
    def problems(method: str, family: str = "krea2", **values: Any) -> list[str]:
        read = from_values(
            script_for(family, method), {"learning_rate": 1e-4, "sample_model": "a.safetensors", **values}
        )
        return [str(problem) for problem in read.problems() if "sample_model" in str(problem)]

    assert problems("lora") == []
    assert problems("lora", network_type="loha") == []
    (full,) = problems("full")
    assert full.startswith("sample_model: is for LoRA training")
    for dora in ({"network_type": "dora"}, {"network_args": ["dora_wd=True"]}, {"network_args": ["adapter=dora"]}):
        (norms,) = problems("lora", **dora)
        assert norms.startswith("sample_model: a DoRA depends on the norms")
    (external,) = problems("lora", network_module="lycoris.kohya_other")
    assert "built-in networks only" in external
    remarks = from_values(script_for("sdxl", "lora"), {"sample_model": "a.safetensors"}).remarks
    assert "sample_model: has no effect for SDXL" in map(str, remarks)
    same = {"sample_model": "a.safetensors", MODEL: "a.safetensors", "sample_prompts": "a.txt"}
    remarks = from_values(script_for("krea2", "lora"), same).remarks
    assert any(str(remark).startswith("sample_model: is the trained model") for remark in remarks)


@pytest.mark.parametrize(
    ("family", "model", "steps"),
    [
        ("krea2", "/models/krea2_turbo_bf16.safetensors", 8),
        ("krea2", "/turbo/krea2_raw_bf16.safetensors", 28),
        ("z_image", "z_image_turbo_bf16.safetensors", 8),
        ("z_image", "Z-Image-De-Turbo", 30),
        ("flux2", "flux-2-klein-4b.safetensors", 4),
        ("flux2", "flux-2-klein-base-4b.safetensors", 50),
        ("flux", "turbo.safetensors", 20),
    ],
)
def test_samples_of_a_distilled_model_take_few_steps_unless_the_prompt_sets_them(
    family: str, model: str, steps: int
) -> None:
    defaults = card_of(family).defaults_of_samples(model)
    file = parse_prompts("a cat\na cat --s 11 --l 3 --fs 2", Path("prompts.txt"))
    plain, own = file.prompts(defaults)
    assert plain.steps == steps
    assert (plain.scale == 1.0) == (steps < 10 or family == "flux")
    assert (own.steps, own.scale, own.flow_shift) == (11, 3.0, 2.0)
    if family == "krea2" and steps == 8:
        assert plain == SamplePrompt(prompt="a cat", width=1024, height=1024, steps=8, scale=1.0, flow_shift=3.16)


def test_the_plan_counts_the_weights_that_wait_in_main_memory() -> None:
    plans = [
        plan_memory(
            Settings(script_for("krea2", "lora"), {"quantize_base": "fp8", "sample_prompts": "a.txt", **more}), []
        )
        for more in ({}, {"sample_model": "turbo.safetensors"})
    ]
    plain, other = plans
    assert plain
    assert other
    assert other.peak == plain.peak
    weights = next(part.bytes for part in plain.parts if part.name == "weights")
    assert other.main_memory - plain.main_memory == pytest.approx(weights, abs=2)
