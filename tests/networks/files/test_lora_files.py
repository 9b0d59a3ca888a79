"""LoRA files as they go out and come in: diffusers reads ours, we read theirs, base weights take them up."""

import hashlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from safetensors import safe_open

from sd_scripts.families.cards.model_file import describe
from sd_scripts.families.common.family import Components
from sd_scripts.families.sdxl.family import SDXL
from sd_scripts.networks.files.lora_files import read_lora
from sd_scripts.networks.plan import AdaptedModule
from sd_scripts.networks.targets import adaptable
from sd_scripts.settings import preflight
from tests.support.families.sdxl_pipeline import pipeline_of
from tests.support.networks.lora_sdxl import WITH_CONV, Prepared, base, context, losses, prepare, save, say_something

pytestmark = [
    pytest.mark.run,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


@pytest.fixture(scope="module")
def model(miniature: Any) -> Path:
    return miniature.checkpoint


@pytest.fixture(scope="module")
def untouched(model: Path) -> Components:
    """The base model. Do not change it."""
    return base(model)


@pytest.fixture(scope="module")
def trained(model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Prepared, Path]:
    """A LoRA of U-Net, convolutions and both encoders, and its file."""
    folder = tmp_path_factory.mktemp("lora")
    prepared = prepare(model, folder, network_args=WITH_CONV)
    say_something(prepared)
    return prepared, save(prepared, folder / "trained.safetensors")


def with_diffusers_names(file: Path, components: Components) -> dict[str, torch.Tensor]:
    paths = {SDXL.lora.name(path): path for path, _ in adaptable(components.denoiser, SDXL.lora, conv=True)}
    renamed = {}
    for key, tensor in safetensors.torch.load_file(file).items():
        layer, _, rest = key.partition(".")
        name = "lora_unet_" + paths[layer].replace(".", "_") if layer in paths else layer
        renamed[f"{name}.{rest}"] = tensor
    return renamed


def test_diffusers_loads_our_file_and_computes_the_trained_output(model: Path, trained: tuple[Prepared, Path]) -> None:
    prepared, file = trained
    theirs = base(model)
    pipe, before = pipeline_of(theirs), losses(theirs)
    pipe.load_lora_weights(file)
    with torch.no_grad():
        torch.testing.assert_close(losses(theirs), losses(prepared.components), rtol=1e-4, atol=1e-5)
    assert (losses(theirs) - before).abs().min() > 1e-3


@pytest.mark.parametrize(("dtype", "close"), [(None, 1e-6), (torch.float16, 1e-3)])
def test_a_run_that_continues_from_the_file_starts_where_it_ended(
    model: Path, trained: tuple[Prepared, Path], tmp_path: Path, dtype: torch.dtype | None, close: float
) -> None:
    prepared, _ = trained
    prepared.trainable.save(tmp_path / "file.safetensors", dtype, {})
    weights = {"network_weights": str(tmp_path / "file.safetensors"), "network_args": WITH_CONV}
    again = prepare(model, tmp_path, **weights)
    assert again.warnings == []
    with torch.no_grad():
        torch.testing.assert_close(losses(again.components), losses(prepared.components), rtol=close, atol=close)


def test_a_different_alpha_does_not_change_the_files_effect(
    model: Path, trained: tuple[Prepared, Path], tmp_path: Path
) -> None:
    prepared, file = trained
    again = prepare(model, tmp_path, network_weights=str(file), network_alpha=1.0, network_args=WITH_CONV)
    assert {layer.alpha for layer in again.network.layers} == {1.0, 2.0}
    with torch.no_grad():
        torch.testing.assert_close(losses(again.components), losses(prepared.components))


def test_a_file_with_diffusers_names_for_the_unet_is_the_same_file(
    model: Path, untouched: Components, trained: tuple[Prepared, Path], tmp_path: Path
) -> None:
    prepared, file = trained
    theirs = with_diffusers_names(file, untouched)
    assert "lora_unet_down_blocks_1_attentions_0_proj_in.alpha" in theirs
    safetensors.torch.save_file(theirs, tmp_path / "theirs.safetensors")
    again = prepare(model, tmp_path, network_weights=str(tmp_path / "theirs.safetensors"), network_args=WITH_CONV)
    assert again.warnings == []
    ours = again.network.file_tensors(None)
    assert all(torch.equal(tensor, ours[key]) for key, tensor in prepared.network.file_tensors(None).items())


PEFT = {"down": "lora_A", "up": "lora_B"}
"""As diffusers writes a LoRA of SDXL."""
BEFORE_PEFT = {"down": "lora.down", "up": "lora.up"}
IN_PROCESSORS = re.compile(r"\.(to_[qkv]|to_out)(?:\.0)?\.lora\.")
"""How diffusers first wrote attention layers: `attn1.processor.to_out_lora.down`."""


def as_diffusers_writes(file: Path, components: Components, called: dict[str, str]) -> dict[str, torch.Tensor]:
    """The file under diffusers' names; it knows no alpha, so that up takes it."""
    prefixes = zip(
        ("unet", "text_encoder", "text_encoder_2"), (components.denoiser, *components.text_encoders), strict=True
    )
    targets = (SDXL.lora, *SDXL.lora_text_encoders)
    tensors, theirs = safetensors.torch.load_file(file), {}
    for (prefix, module), target in zip(prefixes, targets, strict=True):
        for path, _ in adaptable(module, target, conv=True):
            ours = target.name(path)
            down, up = (tensors[f"{ours}.lora_{part}.weight"] for part in ("down", "up"))
            theirs[f"{prefix}.{path}.{called['down']}.weight"] = down
            theirs[f"{prefix}.{path}.{called['up']}.weight"] = up * (float(tensors[f"{ours}.alpha"]) / len(down))
    return theirs


def test_a_lora_of_diffusers_is_merged_like_ours(
    model: Path, untouched: Components, trained: tuple[Prepared, Path], tmp_path: Path
) -> None:
    theirs = tmp_path / "theirs.safetensors"
    safetensors.torch.save_file(as_diffusers_writes(trained[1], untouched, PEFT), theirs)
    assert describe(theirs).variant.endswith("LoRA")
    (tmp_path / "ours").mkdir()
    read, merged = (
        prepare(model, tmp_path, base_weights=[str(theirs)]),
        prepare(model, tmp_path / "ours", base_weights=[str(trained[1])]),
    )
    with torch.no_grad():
        torch.testing.assert_close(losses(read.components), losses(merged.components), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("form", ["before peft", "in processors"])
def test_files_of_earlier_diffusers_versions_are_read_like_todays(
    untouched: Components, trained: tuple[Prepared, Path], tmp_path: Path, form: str
) -> None:
    modules = (untouched.denoiser, *untouched.text_encoders)
    targets = (SDXL.lora, *SDXL.lora_text_encoders)
    adapted = [AdaptedModule(module=m, target=target, lr=0.0) for m, target in zip(modules, targets, strict=True)]

    def read(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        safetensors.torch.save_file(tensors, tmp_path / "theirs.safetensors")
        assert describe(tmp_path / "theirs.safetensors").variant.endswith("LoRA")
        return read_lora("base_weights", tmp_path / "theirs.safetensors", adapted).tensors

    earlier = as_diffusers_writes(trained[1], untouched, BEFORE_PEFT)
    if form == "in processors":
        earlier = {IN_PROCESSORS.sub(r".processor.\1_lora.", key): tensor for key, tensor in earlier.items()}
        assert any(".processor.to_out_lora.down." in key for key in earlier)
    ours, today = read(earlier), read(as_diffusers_writes(trained[1], untouched, PEFT))
    assert ours.keys() == today.keys()
    assert all(torch.equal(tensor, today[key]) for key, tensor in ours.items())


def test_dim_from_weights_uses_the_files_ranks_and_alphas(model: Path, tmp_path: Path) -> None:
    ranks = ",".join(str(number % 5) for number in range(23))
    (tmp_path / "first").mkdir()
    first = prepare(model, tmp_path / "first", network_args=[f"block_dims={ranks}", "conv_dim=3", "conv_alpha=6"])
    say_something(first)
    file = save(first, tmp_path / "first.safetensors")
    again = prepare(model, tmp_path, network_weights=str(file), dim_from_weights=True, network_dim=64)
    assert again.warnings == []
    shape = {layer.name: (layer.rank, layer.alpha) for layer in again.network.layers}
    assert shape == {layer.name: (layer.rank, layer.alpha) for layer in first.network.layers}
    with torch.no_grad():
        torch.testing.assert_close(losses(again.components), losses(first.components))


def test_dim_from_weights_still_heeds_block_rates_and_dropouts(
    model: Path, trained: tuple[Prepared, Path], tmp_path: Path
) -> None:
    args = ["down_lr_weight=zeros", "up_lr_weight=linear+0.5", "rank_dropout=0.25"]
    again = prepare(model, tmp_path, network_weights=str(trained[1]), dim_from_weights=True, network_args=args)
    rates = {group["name"]: group["lr"] for group in again.trainable.parameter_groups()}
    assert rates["unet_block13"] == pytest.approx(0.5e-3)
    assert not any(name.startswith("unet_block5") for name in rates)
    assert {layer.layer.dropouts.rank for layer in again.network.layers} == {0.25}
    assert "layers of the file are not trained in this run" in again.warnings[0]


def test_missing_and_extra_layers_of_the_file_are_reported(
    model: Path, trained: tuple[Prepared, Path], tmp_path: Path
) -> None:
    tensors = {k: v for k, v in safetensors.torch.load_file(trained[1]).items() if "middle_block" not in k}
    safetensors.torch.save_file(tensors, tmp_path / "part.safetensors")
    again = prepare(
        model,
        tmp_path,
        network_weights=str(tmp_path / "part.safetensors"),
        network_train_unet_only=True,
        network_args=WITH_CONV,
    )
    lacking, left = again.warnings
    assert "layers are not in the file and start fresh: lora_unet_middle_block_" in lacking
    assert "layers of the file are not trained in this run and will be missing from its files: lora_te1_text" in left


@pytest.mark.parametrize(("names", "strength"), [("ours", -0.5), ("diffusers", 0.5)])
def test_base_weights_are_the_lora_merged(
    model: Path, untouched: Components, trained: tuple[Prepared, Path], tmp_path: Path, names: str, strength: float
) -> None:
    prepared, file = trained
    ups = [layer.up for layer in prepared.network.layers]
    if names == "diffusers":
        safetensors.torch.save_file(with_diffusers_names(file, untouched), tmp_path / "theirs.safetensors")
        file = tmp_path / "theirs.safetensors"
    merged = prepare(model, tmp_path, base_weights=[str(file)], base_weights_multiplier=[strength])
    try:
        with torch.no_grad():
            torch._foreach_mul_(ups, strength)
            prepared.network.refresh()
            torch.testing.assert_close(losses(merged.components), losses(prepared.components), rtol=1e-4, atol=1e-5)
    finally:
        with torch.no_grad():
            torch._foreach_div_(ups, strength)
        prepared.network.refresh()


def test_several_base_weights_add_up_with_strength_1_where_none_is_given(
    model: Path, trained: tuple[Prepared, Path], tmp_path: Path
) -> None:
    file = str(trained[1])
    (tmp_path / "twice").mkdir()
    twice = prepare(model, tmp_path / "twice", base_weights=[file, file])
    once = prepare(model, tmp_path, base_weights=[file], base_weights_multiplier=[2.0])
    with torch.no_grad():
        torch.testing.assert_close(losses(twice.components), losses(once.components), rtol=1e-4, atol=1e-5)


def write_text(path: Path) -> None:
    path.write_text("not a model")


def write_another(path: Path) -> None:
    pair = {f"lora_unet_strange.lora_{part}.weight": torch.zeros(4, 4) for part in ("down", "up")}
    safetensors.torch.save_file(pair, path)


def write_wide(path: Path) -> None:
    name = "lora_unet_middle_block_1_proj_in"
    shapes = {"lora_down": (4, 9), "lora_up": (9, 4)}
    safetensors.torch.save_file({f"{name}.{part}.weight": torch.zeros(s) for part, s in shapes.items()}, path)


def write_kind(part: str) -> Callable[[Path], None]:
    return lambda path: safetensors.torch.save_file({f"lora_unet_x.{part}": torch.zeros(4)}, path)


def write_peft(path: Path) -> None:
    pair = {f"unet.down_blocks.0.to_q.lora_{part}.weight": torch.zeros(4, 4) for part in "AB"}
    safetensors.torch.save_file(pair, path)


def write_flux(path: Path) -> None:
    safetensors.torch.save_file({"lora_unet_double_blocks_0_x.lora_down.weight": torch.zeros(2, 2)}, path)


WIDE = "lora_unet_middle_block_1_proj_in has a different shape in the file than in this model"


@pytest.mark.parametrize(
    ("option", "write", "problem"),
    [
        ("network_weights", write_another, "has no layer of this network; choose a "),
        ("base_weights", write_another, "has no layer of this model; choose a "),
        (
            "network_weights",
            write_kind("diff"),
            "contains full fine-tuning .lora_unet_x.diff., which is not supported",
        ),
        ("base_weights", write_kind("a1.weight"), "contains GLoRA"),
        (
            "network_weights",
            write_kind("hada_w1_a"),
            "is incomplete: of the layer lora_unet_x it has",
        ),
        (
            "base_weights",
            write_peft,
            "has no layer of this model; choose a ",
        ),
        ("network_weights", write_wide, WIDE),
        ("base_weights", write_wide, WIDE),
    ],
)
def test_a_file_that_does_not_fit_is_reported_in_one_sentence(
    model: Path, tmp_path: Path, option: str, write: Callable[[Path], None], problem: str
) -> None:
    file = tmp_path / "lora.safetensors"
    write(file)
    with pytest.raises(ValueError, match=f"^{option}: .*{problem}") as error:
        prepare(model, tmp_path, **{option: [str(file)] if option == "base_weights" else str(file)})
    assert "\n" not in str(error.value)


FILES = ("network_weights", "base_weights")


def test_missing_files_are_reported_before_loading(model: Path, tmp_path: Path) -> None:
    settings = context(model, tmp_path, network_weights="no.safetensors", base_weights=["nor.safetensors"]).settings
    assert [str(problem) for problem in preflight.problems(settings) if problem.names[0] in FILES] == [
        "network_weights: file not found: 'no.safetensors'",
        "base_weights: file not found: 'nor.safetensors'",
    ]


@pytest.mark.parametrize(
    ("write", "problem"),
    [
        (write_text, "is not a safetensors file"),
        (lambda path: path.touch(), "is empty"),
        (write_flux, "is a FLUX.1 LoRA, not a LoRA for SDXL"),
    ],
)
def test_a_file_of_a_different_kind_is_reported_before_loading(
    model: Path, tmp_path: Path, write: Callable[[Path], None], problem: str
) -> None:
    file = tmp_path / "lora.safetensors"
    write(file)
    settings = context(model, tmp_path, network_weights=str(file)).settings
    (told,) = (str(found) for found in preflight.problems(settings) if found.names[0] in FILES)
    assert told.startswith(f"network_weights: '{file}' {problem}")


def test_a_file_of_a_different_rank_is_refused(model: Path, trained: tuple[Prepared, Path], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has rank 4 in the file and 8 here; set network_dim to the file's rank or"):
        prepare(model, tmp_path, network_weights=str(trained[1]), network_dim=8)


def test_keys_of_a_compiled_model_are_read(model: Path, trained: tuple[Prepared, Path], tmp_path: Path) -> None:
    tensors = {f"_orig_mod.{key}": tensor for key, tensor in safetensors.torch.load_file(trained[1]).items()}
    safetensors.torch.save_file(tensors, tmp_path / "compiled.safetensors")
    weights = str(tmp_path / "compiled.safetensors")
    again = prepare(model, tmp_path, network_weights=weights, network_args=WITH_CONV)
    assert again.warnings == []


def test_the_file_carries_the_metadata_and_the_hashes_of_its_tensors(
    trained: tuple[Prepared, Path], tmp_path: Path
) -> None:
    path = tmp_path / "told.safetensors"
    trained[0].trainable.save(path, torch.float16, {"ss_network_dim": "4", "modelspec.title": "told"})
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
    data = path.read_bytes()
    payload = data[8 + int.from_bytes(data[:8], "little") :]
    assert metadata["ss_network_dim"] == "4"
    assert metadata["modelspec.title"] == "told"
    assert metadata["sshs_model_hash"] == hashlib.sha256(payload).hexdigest()
    assert len(metadata["sshs_legacy_hash"]) == 8
