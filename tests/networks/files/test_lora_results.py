"""Files that LoRA tools write are never spoiled: results fit into their precision, and models are of plain numbers."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from sd_scripts.formats.models.peft_header import ENTRY
from sd_scripts.networks.files.lora_files import merge, read_lora
from sd_scripts.networks.plan import AdaptedModule
from sd_scripts.networks.targets import LoraTarget
from sd_scripts.runs.folder import RunFolder
from sd_scripts.tools import (
    convert_lora,
    edit_metadata,
    extract_lora_from_models,
    merge_lora,
    resize_lora,
    svd_merge_lora,
)
from tests.support.networks.lora_tools import deltas, layers_of, random_pairs, write_lora

FLUX = {"ss_base_model_version": "flux1"}


def run(tool: Any, *flags: object) -> int:
    return int(tool.COMMAND.main("tool", [str(flag) for flag in flags]))


@pytest.mark.run
def test_values_out_of_range_of_the_precision_are_refused(
    any_miniature: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In float32 they do: 300 of each factor are 90,000 times the rank, and fp16 ends at 65,504."""
    layer, *_ = layers_of(any_miniature)
    tensors = {key: each * 0 + 300 if "lora" in key else each for key, each in random_pairs([layer], 4, 4.0).items()}
    save_file(tensors, lora := tmp_path / "lora.safetensors", FLUX)
    out, model = tmp_path / "out.safetensors", any_miniature.checkpoint
    merging = (merge_lora, "--base_model", model, "--models", lora)
    assert run(*merging, "--save_precision", "fp16", "--save_to", out) == 2
    assert "save_precision: " in (told := capsys.readouterr().err)
    assert "too large for F16; set bf16 or float" in told
    assert not out.exists()
    assert run(*merging, "--save_precision", "bf16", "--save_to", out) == 0
    out.unlink()
    half = {key: tensor * 300 if "down" in key else tensor for key, tensor in tensors.items()}
    save_file(half, lora, FLUX)
    for tool in ((convert_lora, "--src_path", lora, "--dst_path"), (merge_lora, "--models", lora, "--save_to")):
        assert run(*tool, out, "--save_precision", "fp16") == 2
        assert f"save_precision: {layer.name}.lora_down.weight has values too large" in capsys.readouterr().err
    assert run(resize_lora, "--model", lora, "--save_to", out, "--new_rank", 4, "--save_precision", "fp16") == 2
    assert not out.exists()


@pytest.mark.run
@pytest.mark.parametrize("tool", ["merge", "svd", "resize"])
def test_layers_of_no_model_are_counted_where_they_are_kept(
    tool: str, any_miniature: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    layer, *_ = layers_of(any_miniature)
    known = random_pairs([layer], 4, 4.0)
    strange = {
        key.replace(layer.name, f"lora_unet_double_blocks_{number}_img_atn_proj"): each.clone()
        for number in range(5)
        for key, each in known.items()
    }
    save_file(known | strange, lora := tmp_path / "lora.safetensors", FLUX)
    out = tmp_path / "out.safetensors"
    asked = {
        "merge": (merge_lora, "--models", lora),
        "svd": (svd_merge_lora, "--models", lora, "--new_rank", 4),
        "resize": (resize_lora, "--model", lora, "--new_rank", 4),
    }
    assert run(*asked[tool], "--save_to", out) == 0
    (told,) = [line for line in capsys.readouterr().err.splitlines() if "img_atn_proj" in line]
    option = "model" if tool == "resize" else "models"
    assert told == (
        f"{option}: FLUX.1 does not have 5 layers of '{lora}', kept unchecked: "
        f"{', '.join(f'lora_unet_double_blocks_{number}_img_atn_proj' for number in range(3))} and 2 more"
    )
    assert load_file(out).keys() >= strange.keys()


def test_weights_that_overflow_while_training_or_generating_are_refused(tmp_path: Path) -> None:
    tensors = {"lora_unet_0.lora_down.weight": torch.full((2, 4), 300.0)}
    save_file(tensors | {"lora_unet_0.lora_up.weight": torch.full((3, 2), 300.0)}, tmp_path / "x.safetensors")
    model = nn.Sequential(nn.Linear(4, 3)).half().requires_grad_(False)
    modules = [
        AdaptedModule(module=model, target=LoraTarget(classes=(), name=lambda path: f"lora_unet_{path}"), lr=0.0)
    ]
    file = read_lora("base_weights", tmp_path / "x.safetensors", modules)
    with pytest.raises(ValueError, match=r"^base_weights: lora_unet_0 with '.*' does not fit into float16; use bf16"):
        merge(modules, file, 1.0)
    assert merge(modules, file, 0.1) == 1
    assert torch.isfinite(model[0].weight).all()


@pytest.mark.run
@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda tensor: tensor * torch.nan, "has NaN or infinity in the layer lora_unet_"),
        (lambda tensor: tensor.to(torch.int8), "has whole numbers without scales in double_blocks.1.img_mlp.2.weight"),
        (lambda tensor: tensor > 0, "has whole numbers without scales in double_blocks.1.img_mlp.2.weight"),
    ],
)
def test_models_that_are_not_plain_numbers_are_refused(
    any_miniature: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: Any, sentence: str
) -> None:
    tensors, key = load_file(any_miniature.checkpoint), "double_blocks.1.img_mlp.2.weight"
    save_file({**tensors, key: damage(tensors[key])}, bad := tmp_path / "bad.safetensors")
    out, write = tmp_path / "out.safetensors", write_lora(any_miniature, tmp_path / "lora.safetensors")
    assert write
    models = ("--model_org", any_miniature.checkpoint, "--model_tuned", bad)
    assert run(extract_lora_from_models, *models, "--save_to", out) == 2
    assert f"model_tuned: '{bad}' {sentence}" in capsys.readouterr().err
    lora = ("--models", tmp_path / "lora.safetensors")
    assert run(merge_lora, "--base_model", bad, *lora, "--save_to", out) == 2
    told = capsys.readouterr().err.splitlines()[-1]
    assert told.startswith(f"base_model: '{bad}' {sentence.partition(' in ')[0]}")
    assert not out.exists()


@pytest.mark.run
def test_a_negative_alpha_is_computed_with(any_miniature: Any, tmp_path: Path) -> None:
    first = write_lora(any_miniature, tmp_path / "a.safetensors", alpha=4.0)
    second = write_lora(any_miniature, tmp_path / "b.safetensors", alpha=-4.0)
    out = tmp_path / "out.safetensors"
    models = ("--models", tmp_path / "a.safetensors", tmp_path / "b.safetensors")
    assert run(merge_lora, *models, "--concat", "--save_to", out) == 0
    made, one, other = deltas(out), deltas(first), deltas(second)
    for name, delta in made.items():
        torch.testing.assert_close(delta * 2, one[name] + other[name], rtol=1e-4, atol=1e-4)
    converted, back = tmp_path / "there.safetensors", tmp_path / "back.safetensors"
    named = ("--src_path", tmp_path / "b.safetensors", "--dst", "diffusers", "--dst_path", converted)
    assert run(convert_lora, *named) == 0
    assert run(convert_lora, "--src_path", converted, "--dst_path", back) == 0
    assert all(torch.allclose(delta, other[name], rtol=1e-4) for name, delta in deltas(back).items())


def test_removing_the_entry_with_alpha_is_reported(tmp_path: Path) -> None:
    pair = {f"transformer.x.lora_{part}.weight": torch.ones(2, 2) for part in "AB"}
    save_file(pair, tmp_path / "x.safetensors", {ENTRY: "{}", "title": "x"})
    flags = ("--model", tmp_path / "x.safetensors", "--save_to", tmp_path / "y.safetensors")
    for removed, count in (("title", 0), ("lora_*", 1)):
        folder = tmp_path / f"run{count}"
        assert run(edit_metadata, *flags, "--remove", removed, "--run_dir", folder) == 0
        warnings = [event["text"] for event in RunFolder(folder).events() if event["kind"] == "warning"]
        assert len(warnings) == count
