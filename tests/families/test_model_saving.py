"""Whole models as they are saved: every tensor of the file they came from, in any form, whole or not at all."""

import json
import logging
import shutil
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from diffusers import AutoencoderKL, EulerDiscreteScheduler, FluxTransformer2DModel, StableDiffusionXLPipeline
from diffusers.loaders.single_file_utils import convert_flux_transformer_checkpoint_to_diffusers
from safetensors.torch import load_file, save_file
from torch import Tensor

from benchmarks.pipelines.flux import to_diffusers
from sd_scripts.families.cards.model_file import describe
from sd_scripts.families.common.family import Components, ModelWeights
from sd_scripts.families.flux.family import FLUX
from sd_scripts.families.flux.model import FluxParams, FluxTransformer
from sd_scripts.families.sdxl import keys as sgm
from sd_scripts.families.sdxl.family import SDXL
from sd_scripts.formats.models.safetensors_header import read_header
from sd_scripts.library.files.model_reader import read_weights
from sd_scripts.settings.settings import Settings
from tests.support.families.sdxl import checkpoint_tensors
from tests.support.miniatures import sdxl_settings
from tests.support.scripts import FLUX_FULL
from tests.support.training import Run, train_whole

pytestmark = pytest.mark.run

resource = pytest.importorskip("resource", reason="limits the size of files; not on Windows")

State = dict[str, Tensor]
UNET, FIRST, SECOND, VAE = (component.prefixes[-1] for component in SDXL.card.files.components)
TOKENIZER = ("merges.txt", "tokenizer.json", "tokenizer_config.json", "vocab.json")


@pytest.fixture(scope="module")
def file(miniature: Any) -> State:
    return load_file(miniature.checkpoint)


@pytest.fixture(scope="module")
def components(miniature: Any) -> Components:
    return SDXL.open(sdxl_settings(miniature.checkpoint), torch.float32, torch.device("cpu")).load()


@pytest.fixture(scope="module")
def flux_parts(flux_miniature: Any) -> Components:
    return load_flux(flux_miniature)


def test_an_untrained_model_is_saved_as_the_file_it_came_from(
    components: Components, file: State, tmp_path: Path
) -> None:
    saved = save_sdxl(components, tmp_path)
    same(load_file(saved), file)
    assert read_header(saved).metadata == {"modelspec.title": "Größe"}


def test_trained_weights_are_saved_and_the_rest_is_not_rounded(miniature: Any, file: State, tmp_path: Path) -> None:
    """The base model's file is in float32, training in bf16."""
    half = SDXL.open(sdxl_settings(miniature.checkpoint), torch.bfloat16, torch.device("cpu")).load()
    learned = {name: tensor + 1 for name, tensor in half.text_encoders[0].state_dict().items()}
    saved = load_file(save_sdxl(half, tmp_path, text_encoders=(learned, None)))
    unet, first = (prefix_of(file, prefix) for prefix in (UNET, FIRST))
    still = file.keys() - unet.keys() - first.keys()
    same({key: saved[key] for key in still}, {key: file[key] for key in still})
    same({key: saved[key] for key in unet}, {key: tensor.bfloat16() for key, tensor in unet.items()})
    same({key: saved[key] for key in first}, {key: tensor.bfloat16() + 1 for key, tensor in first.items()})


@pytest.mark.parametrize(
    ("stored", "saved"), [(torch.float16, torch.float16), (torch.float8_e4m3fn, torch.bfloat16)], ids=["fp16", "fp8"]
)
def test_frozen_weights_are_saved_as_the_base_models_file_stores_them_but_never_in_fp8(
    stored: torch.dtype, saved: torch.dtype, miniature: Any, file: State, tmp_path: Path
) -> None:
    lend_tokenizers(miniature, tmp_path)
    base = {key: t.to(stored) if t.ndim > 1 and key.startswith((FIRST, VAE)) else t for key, t in file.items()}
    save_file(base, tmp_path / "model.safetensors")
    half = SDXL.open(sdxl_settings(tmp_path / "model.safetensors"), torch.bfloat16, torch.device("cpu")).load()
    still = {key: tensor.to(saved) if tensor.dtype == stored else tensor for key, tensor in base.items()}
    same(unlearned(load_file(save_sdxl(half, tmp_path / "again"))), unlearned(still))


@pytest.mark.parametrize("form", ["safetensors", "diffusers"])
def test_blocks_that_were_not_trained_are_not_rounded(
    form: str, miniature: Any, components: Components, file: State, tmp_path: Path
) -> None:
    """Trained weights are in float32, other blocks' in their training dtype."""
    lend_tokenizers(miniature, tmp_path)
    base = save_sdxl(components, tmp_path, form)
    half = SDXL.open(sdxl_settings(base), torch.bfloat16, torch.device("cpu")).load()
    learned = {name: t.float() + 1 for name, t in half.denoiser.state_dict().items() if name.startswith("up_blocks.")}
    weights = ModelWeights(denoiser=half.denoiser.state_dict() | learned)
    SDXL.saving.write(half, weights, tmp_path / "saved.safetensors", "safetensors", None, {})
    ups = {UNET + sgm.unet_key(name): tensor for name, tensor in learned.items()}
    same(load_file(tmp_path / "saved.safetensors"), file | ups)


def test_a_pickle_is_readable_by_other_programs_and_contains_no_code(
    components: Components, file: State, tmp_path: Path
) -> None:
    saved = torch.load(save_sdxl(components, tmp_path, "ckpt"), weights_only=True)
    assert saved.keys() == {"state_dict"}
    same(saved["state_dict"], file)
    assert (tmp_path / "model.ckpt").stat().st_size < 1.1 * sum(tensor.nbytes for tensor in file.values()) + 1e6


@pytest.mark.parametrize("form", ["safetensors", "ckpt", "diffusers"])
def test_a_saved_model_loads_unchanged(
    form: str, miniature: Any, components: Components, file: State, tmp_path: Path
) -> None:
    lend_tokenizers(miniature, tmp_path)
    again = SDXL.open(sdxl_settings(save_sdxl(components, tmp_path, form)), torch.float32, torch.device("cpu")).load()
    same(checkpoint_tensors(again), file)


def test_a_folder_is_a_pipeline_of_diffusers(components: Components, tmp_path: Path) -> None:
    folder = save_sdxl(components, tmp_path, "diffusers")
    pipeline, told = loudly(StableDiffusionXLPipeline.from_pretrained, folder)
    assert told == []
    assert isinstance(pipeline.scheduler, EulerDiscreteScheduler)
    assert pipeline.scheduler.config.prediction_type == "epsilon"
    theirs = [pipeline.unet, pipeline.vae, pipeline.text_encoder, pipeline.text_encoder_2]
    for ours, module in zip([components.denoiser, components.vae, *components.text_encoders], theirs, strict=True):
        same(module.state_dict(), ours.state_dict())
    text = "a red fox, Größe"
    for tokenizer, ours in zip((pipeline.tokenizer, pipeline.tokenizer_2), components.tokenizers, strict=True):
        wanted = ours(text, padding="max_length", max_length=77).input_ids
        assert tokenizer(text, padding="max_length", max_length=77).input_ids == wanted
    with torch.no_grad():
        image = pipeline("a red fox", num_inference_steps=1, width=64, height=64, output_type="np").images
    assert image.shape == (1, 64, 64, 3)


def test_the_parts_of_a_folder_have_the_names_that_older_programs_read(components: Components, tmp_path: Path) -> None:
    folder = save_sdxl(components, tmp_path, "diffusers", dtype=torch.float16)
    files = {
        **dict.fromkeys(("text_encoder", "text_encoder_2"), ("config.json", "model.safetensors")),
        **dict.fromkeys(("unet", "vae"), ("config.json", "diffusion_pytorch_model.safetensors")),
        **dict.fromkeys(("tokenizer", "tokenizer_2"), TOKENIZER),
        "scheduler": ("scheduler_config.json",),
    }
    assert contents(folder).keys() == {
        "model_index.json",
        *(f"{name}/{file}" for name in files for file in files[name]),
    }
    for name in ("text_encoder", "text_encoder_2"):
        header = read_header(folder / name / "model.safetensors")
        assert "text_model.encoder.layers.0.mlp.fc1.weight" in header.shapes
        assert set(header.dtypes.values()) == {"F16"}
        assert header.metadata == {"format": "pt"}
        assert json.loads((folder / name / "config.json").read_text())["dtype"] == "float16"
    assert all(str(folder.parent) not in file.read_text() for file in folder.rglob("*.json"))
    found = describe(folder)
    assert (found.variant, found.precision, found.problem) == ("SDXL diffusers folder", "fp16", None)


def test_untrained_weights_keep_the_precision_of_their_folder(
    components: Components, file: State, tmp_path: Path
) -> None:
    folder = save_sdxl(components, tmp_path, "diffusers")
    scheduler = folder / "scheduler/scheduler_config.json"
    own = {"_class_name": "DDIMScheduler", "beta_end": 0.011, "prediction_type": "epsilon"}
    scheduler.write_text(json.dumps(own))
    velocity = sdxl_settings(folder, v_parameterization=True)
    half = SDXL.open(velocity, torch.bfloat16, torch.device("cpu")).load()
    assert SDXL.saving.form(half, None) == "diffusers"
    same(unlearned(load_file(save_sdxl(half, tmp_path))), unlearned(file) | {"v_pred": torch.zeros(0)})
    again = save_sdxl(half, tmp_path / "again", "diffusers")
    for part in ("vae/diffusion_pytorch_model", "text_encoder/model", "text_encoder_2/model"):
        assert (again / f"{part}.safetensors").read_bytes() == (folder / f"{part}.safetensors").read_bytes()
    kept = json.loads((again / "scheduler/scheduler_config.json").read_text())
    assert kept == own | {"prediction_type": "v_prediction"}
    assert json.loads((again / "model_index.json").read_text())["scheduler"] == ["diffusers", "DDIMScheduler"]


def test_a_base_model_that_is_gone_or_replaced_is_not_read(miniature: Any, file: State, tmp_path: Path) -> None:
    lend_tokenizers(miniature, tmp_path)
    base = tmp_path / "model.safetensors"
    save_file(file, base)
    half = SDXL.open(sdxl_settings(base), torch.bfloat16, torch.device("cpu")).load()
    same(unlearned(load_file(save_sdxl(half, tmp_path))), unlearned(file))  # in its own place
    same(unlearned(load_file(save_sdxl(half, tmp_path))), unlearned(file))
    other = {key: tensor + 1 if tensor.is_floating_point() else tensor for key, tensor in file.items()}
    rounded = {key: t if key == sgm.LOGIT_SCALE else t.bfloat16() for key, t in unlearned(file).items()}
    save_file(other, base)
    same(unlearned(load_file(save_sdxl(half, tmp_path / "beside"))), rounded)
    base.unlink()
    same(unlearned(load_file(save_sdxl(half, tmp_path / "beside"))), rounded)


@pytest.mark.parametrize("layout", ["file", "diffusers file", "folder"])
def test_a_different_vae_is_saved_in_its_own_precision_instead_of_the_models(
    layout: str, miniature: Any, components: Components, file: State, tmp_path: Path
) -> None:
    vae = tmp_path / "vae.safetensors"
    other = {key: tensor + 1 for key, tensor in file.items() if key.startswith(VAE)}
    if layout == "folder":
        vae = tmp_path / "vae"
        AutoencoderKL.save_pretrained(cast(AutoencoderKL, components.vae), vae)
        weights = vae / "diffusion_pytorch_model.safetensors"
        save_file({name: tensor + 1 for name, tensor in load_file(weights).items()}, weights)
    elif layout == "file":
        save_file({key.removeprefix(VAE): tensor for key, tensor in other.items()}, vae)
    else:
        save_file({name: tensor + 1 for name, tensor in components.vae.state_dict().items()}, vae)
    settings = sdxl_settings(miniature.checkpoint, vae=str(vae))
    saved = load_file(save_sdxl(SDXL.open(settings, torch.bfloat16, torch.device("cpu")).load(), tmp_path))
    same({key: saved[key] for key in other}, other)


def test_every_tensor_has_the_requested_dtype(components: Components, file: State, tmp_path: Path) -> None:
    for form in ("safetensors", "ckpt"):
        saved = read_weights(save_sdxl(components, tmp_path, form, dtype=torch.float16), "x")
        same(saved, {key: tensor.half() for key, tensor in file.items()})


VELOCITY, TERMINAL = {"v_parameterization": True}, {"zero_terminal_snr": True}


@pytest.mark.parametrize(
    ("base", "values", "saved_marks"),
    [
        (("v_pred", "ztsnr"), VELOCITY | TERMINAL, ("v_pred", "ztsnr")),
        (("v_pred", "ztsnr"), VELOCITY, ("v_pred",)),
        (("v_pred",), {}, ()),
        ((), VELOCITY | TERMINAL, ("v_pred", "ztsnr")),
    ],
)
def test_a_file_is_marked_with_its_objective(
    base: tuple[str, ...],
    values: dict[str, Any],
    saved_marks: tuple[str, ...],
    miniature: Any,
    file: State,
    tmp_path: Path,
) -> None:
    lend_tokenizers(miniature, tmp_path)
    marks = {name: torch.zeros(0) for name in base}
    save_file(file | marks | {"model_ema.x": torch.zeros(1)}, tmp_path / "model.safetensors")
    settings = sdxl_settings(tmp_path / "model.safetensors", **values)
    trained = SDXL.open(settings, torch.float32, torch.device("cpu")).load()
    (tmp_path / "model.safetensors").unlink()
    saved = save_sdxl(trained, tmp_path)
    same(load_file(saved), file | {name: torch.zeros(0) for name in saved_marks})
    assert describe(saved).variant == "SDXL checkpoint" + (", v-prediction" if "v_pred" in saved_marks else "")


def test_a_folder_states_its_objective(components: Components, tmp_path: Path) -> None:
    folder = save_sdxl(components, tmp_path, "diffusers")
    scheduler = folder / "scheduler/scheduler_config.json"
    base = {"_class_name": "DDIMScheduler", "prediction_type": "v_prediction", "rescale_betas_zero_snr": True}
    scheduler.write_text(json.dumps(base))
    for values in ({}, VELOCITY, VELOCITY | TERMINAL):
        trained = SDXL.open(sdxl_settings(folder, **values), torch.float32, torch.device("cpu")).load()
        objective = describe(save_sdxl(trained, tmp_path / "saved", "diffusers")).objective
        wanted = (values.get("v_parameterization", False), values.get("zero_terminal_snr", False))
        assert (objective.velocity, objective.zero_terminal_snr) == wanted


@pytest.mark.parametrize(
    ("asked", "form"),
    [
        (None, "safetensors"),
        ("safetensors", "safetensors"),
        ("ckpt", "ckpt"),
        ("diffusers", "diffusers"),
        ("diffusers_safetensors", "diffusers"),
    ],
)
def test_the_saved_format_is_the_requested_one(
    asked: str | None, form: str, components: Components, flux_parts: Components
) -> None:
    assert SDXL.saving.form(components, asked) == form
    assert FLUX.saving.form(flux_parts, asked) == "safetensors"


def test_diffusers_reads_a_saved_file(components: Components, tmp_path: Path) -> None:
    folder = save_sdxl(components, tmp_path, "diffusers")
    saved = save_sdxl(components, tmp_path, dtype=torch.float16)
    pipeline = StableDiffusionXLPipeline.from_single_file(str(saved), config=str(folder), local_files_only=True)
    same(pipeline.unet.state_dict(), {name: t.half().float() for name, t in components.denoiser.state_dict().items()})


@pytest.mark.parametrize("form", ["safetensors", "ckpt", "diffusers"])
def test_a_disk_that_fills_up_leaves_the_old_model(form: str, components: Components, tmp_path: Path) -> None:
    saved = save_sdxl(components, tmp_path, form)
    before = contents(tmp_path)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, limits[1]))
    try:
        with pytest.raises(OSError, match=rf"^'{saved}' could not be written: [^']+$"):
            save_sdxl(components, tmp_path, form)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert contents(tmp_path) == before


def test_a_newer_folder_replaces_the_old_one(components: Components, tmp_path: Path) -> None:
    folder = save_sdxl(components, tmp_path, "diffusers")
    (folder / "unet/old.safetensors").touch()
    wide = contents(tmp_path)
    save_sdxl(components, tmp_path, "diffusers", dtype=torch.float16)
    assert contents(tmp_path).keys() == wide.keys() - {"model/unet/old.safetensors"}
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_folder_of_something_else_is_never_replaced(components: Components, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model/holiday.jpg").touch()
    with pytest.raises(OSError, match=r"model' could not be written: .* is not a model; choose another output_name$"):
        save_sdxl(components, tmp_path, "diffusers")
    assert contents(tmp_path) == {"model/holiday.jpg": b""}


def test_a_saved_transformer_of_flux_is_the_file_it_came_from(
    flux_parts: Components, flux_miniature: Any, tmp_path: Path
) -> None:
    saved = tmp_path / "flux.safetensors"
    weights = ModelWeights(denoiser=flux_parts.denoiser.state_dict())
    FLUX.saving.write(flux_parts, weights, saved, FLUX.saving.form(flux_parts, "ckpt"), None, {"modelspec.title": "x"})
    same(load_file(saved), load_file(flux_miniature.checkpoint))
    assert read_header(saved).metadata == {"modelspec.title": "x"}


def test_the_next_run_continues_from_a_saved_transformer(
    flux_parts: Components, flux_miniature: Any, tmp_path: Path
) -> None:
    saved = tmp_path / flux_miniature.checkpoint.name
    FLUX.saving.write(
        flux_parts, ModelWeights(denoiser=flux_parts.denoiser.state_dict()), saved, "safetensors", None, {}
    )
    tokenizers = f"{saved.stem}_tokenizers"
    shutil.copytree(flux_miniature.checkpoint.with_name(tokenizers), tmp_path / tokenizers)
    again = load_flux(flux_miniature, pretrained_model_name_or_path=str(saved))
    same(again.denoiser.state_dict(), flux_parts.denoiser.state_dict())


def test_diffusers_finds_every_weight_in_a_saved_transformer_of_full_size() -> None:
    """Names and shapes: its converter is written for the full width only."""
    with torch.device("meta"):
        state = FluxTransformer(FluxParams()).state_dict()
        theirs = FluxTransformer2DModel(guidance_embeds=True).state_dict()
    found = convert_flux_transformer_checkpoint_to_diffusers(dict(state))
    assert {name: tensor.shape for name, tensor in found.items()} == {n: t.shape for n, t in theirs.items()}


def test_diffusers_cuts_a_saved_transformer_as_we_do() -> None:
    """Every row goes where ours goes; columns, which its converter leaves alone, are few here."""
    with torch.device("meta"):
        state = FluxTransformer(FluxParams(double_blocks=1, single_blocks=1)).state_dict()
    numbered = {
        name: torch.arange(tensor.shape[0])[:, None].expand(-1, 2).float() + 1e5 * place
        for place, (name, tensor) in enumerate(state.items())
    }
    theirs = convert_flux_transformer_checkpoint_to_diffusers(dict(numbered))
    ours = to_diffusers(numbered)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], tensor) for name, tensor in theirs.items())


FORMS = {"ckpt": ".ckpt", "diffusers": ""}


@pytest.mark.parametrize("form", FORMS)
def test_a_run_saves_in_each_form_names_with_dots_and_windows_included(
    form: str, miniature: Any, tmp_path: Path
) -> None:
    values = {"output_name": "v1.5", "save_every_n_steps": 1, "save_last_n_steps": 1, "max_train_steps": 4}
    run = train_whole(miniature, tmp_path / "out", save_model_as=form, save_state=True, **values)
    names = ("v1.5", "v1.5-step00000002", "v1.5-step00000003")
    assert run.files == sorted([name + ending for name in names for ending in (FORMS[form], "-state")])
    assert {describe(run.output / f"{name}{FORMS[form]}").problem for name in names} == {None}


@pytest.fixture(scope="module")
def folder_run(miniature: Any, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A step whose model is saved as a folder. Do not write to it."""
    output = tmp_path_factory.mktemp("folder") / "first"
    return train_whole(miniature, output, save_model_as="diffusers", max_train_steps=1)


def test_a_run_continues_from_a_saved_folder_and_saves_one(folder_run: Run, miniature: Any, tmp_path: Path) -> None:
    first, folder = folder_run, folder_run.output / "short"
    trainable = {"train_text_encoder": True, "cache_text_encoder_outputs": None}
    base = {"pretrained_model_name_or_path": folder}
    second = train_whole(miniature, tmp_path / "second", **base, **trainable, max_train_steps=1)
    assert (first.files, second.files) == (["short"], ["short"])
    before, after = loaded(folder), loaded(second.output / "short")
    changed = {key for key in before if not torch.equal(before[key], after[key])}
    for prefix, learns in {
        UNET: True,
        FIRST: True,
        SECOND: True,
        VAE: False,
    }.items():
        assert any(key.startswith(prefix) for key in changed) == learns, prefix


def test_use_safetensors_means_a_file_if_no_format_is_chosen(folder_run: Run, miniature: Any, tmp_path: Path) -> None:
    base = {"pretrained_model_name_or_path": folder_run.output / "short", "use_safetensors": True, "max_train_steps": 1}
    assert train_whole(miniature, tmp_path / "unset", **base).files == ["short.safetensors"]
    assert train_whole(miniature, tmp_path / "set", **base, save_model_as="ckpt").files == ["short.ckpt"]


def loaded(model: Path) -> State:
    """The file or folder as the next run has it, in the keys of the single file."""
    return checkpoint_tensors(SDXL.open(sdxl_settings(model), torch.float32, torch.device("cpu")).load())


def save_sdxl(
    components: Components,
    folder: Path,
    form: str = "safetensors",
    dtype: torch.dtype | None = None,
    text_encoders: Any = (None, None),
) -> Path:
    """As a run does it; returns the file or folder."""
    weights = ModelWeights(denoiser=components.denoiser.state_dict(), text_encoders=text_encoders)
    path = folder / ("model" if form == "diffusers" else f"model.{form}")
    SDXL.saving.write(components, weights, path, form, dtype, {"modelspec.title": "Größe"})
    return path


def load_flux(miniature: Any, **others: str) -> Components:
    files = {option: str(path) for option, path in miniature.files.items()} | others
    return FLUX.open(Settings(FLUX_FULL, files), torch.float32, torch.device("cpu")).load()


def prefix_of(state: State, prefix: str) -> State:
    return {key: tensor for key, tensor in state.items() if key.startswith(prefix)}


def same(ours: State, theirs: State) -> None:
    """Bit for bit, in the same dtype."""
    assert ours.keys() == theirs.keys()
    assert [k for k in ours if ours[k].dtype != theirs[k].dtype or not torch.equal(ours[k], theirs[k])] == []


def unlearned(state: State) -> State:
    """Text encoders and VAE."""
    return {key: tensor for key, tensor in state.items() if not key.startswith(UNET)}


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def lend_tokenizers(miniature: Any, folder: Path) -> None:
    """Put them where a model.safetensors in this folder, or a folder `model`, has them."""
    on_device = miniature.checkpoint.with_name(f"{miniature.checkpoint.stem}_tokenizers")
    shutil.copytree(on_device, folder / "model_tokenizers")


def loudly(load: Any, folder: Path) -> tuple[Any, list[str]]:
    """What diffusers loads, and what transformers and diffusers warn of in doing so."""
    heard: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: heard.append(record.getMessage())  # type: ignore[method-assign]
    loggers = [logging.getLogger(name) for name in ("diffusers", "transformers")]
    for logger in loggers:
        logger.addHandler(handler)
    try:
        return load(folder, local_files_only=True), heard
    finally:
        for logger in loggers:
            logger.removeHandler(handler)
