"""Tools for LoRA files: their files have the described effect, and bad input is reported before anything heavy."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from sd_scripts.aliases import flux_merge_lora
from sd_scripts.families.cards.registry import cards
from sd_scripts.families.common.family import family_of
from sd_scripts.formats.models.lora_header import summarize
from sd_scripts.formats.models.safetensors_header import read_header
from sd_scripts.networks.adapter import layer_names
from sd_scripts.networks.targets import adaptable
from sd_scripts.runs.folder import RunFolder
from sd_scripts.settings.family_options import each_option
from sd_scripts.settings.tools.lora_tools import ENCODER_FILES, EncoderFileOptions
from sd_scripts.tools import (
    check_lora_weights,
    convert_lora,
    edit_metadata,
    extract_lora_from_models,
    merge_lora,
    resize_lora,
    show_metadata,
    svd_merge_lora,
)
from sd_scripts.tools.lora import svd
from sd_scripts.tools.lora.command import Command
from sd_scripts.tools.lora.files import full_size_modules
from tests.support.families.flux import flux_settings
from tests.support.families.flux_pipeline import pipeline_of
from tests.support.networks.lora_tools import deltas, layers_of, random_pairs, write_lora

pytestmark = [
    pytest.mark.run,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]


REFERENCE = Path(__file__).parents[1] / "reference"


def run(tool: Any, *flags: object) -> int:
    command: Command = tool.COMMAND
    return command.main(tool.__name__, [str(flag) for flag in flags])


def close(found: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float = 1e-5) -> None:
    assert found.keys() == expected.keys()
    for name, delta in expected.items():
        torch.testing.assert_close(found[name], delta, rtol=tolerance, atol=tolerance * float(delta.abs().max()))


def metadata_of(path: Path) -> dict[str, str]:
    with safe_open(path, "pt") as opened:
        return opened.metadata()


@pytest.fixture
def lora(any_miniature: Any, tmp_path: Path) -> Path:
    """A LoRA of rank 4 and alpha 2."""
    write_lora(any_miniature, tmp_path / "lora.safetensors", ss_training_comment="mine")
    return tmp_path / "lora.safetensors"


@pytest.fixture
def other(any_miniature: Any, tmp_path: Path) -> Path:
    """Another one, of rank 2."""
    write_lora(any_miniature, tmp_path / "other.safetensors", rank=2, seed=2)
    return tmp_path / "other.safetensors"


def test_every_flag_is_in_the_docs() -> None:
    page = (Path(__file__).parents[2] / "docs" / "lora_tools.md").read_text(encoding="utf-8")
    tools = (merge_lora, svd_merge_lora, resize_lora, extract_lora_from_models, convert_lora, edit_metadata)
    flags = {
        o.name for tool in (*tools, check_lora_weights) for group in tool.COMMAND.groups for o in each_option(group)
    }
    assert [flag for flag in sorted(flags) if f"--{flag}" not in page] == []


# --- merge


def test_each_text_encoder_with_a_file_of_its_own_can_be_merged_into() -> None:
    components = [component for card in cards() for component in card.files.separate_components]
    encoders = dict.fromkeys(each.option for each in components if each.name.startswith("text_encoder"))
    encoders.pop("image_encoder")  # which no LoRA adapts
    assert tuple(encoders) == ENCODER_FILES
    options = {o.name for o in each_option(EncoderFileOptions)}
    assert options == {*ENCODER_FILES, *(f"{name}_save_to" for name in ENCODER_FILES)}


def test_a_merge_by_svd_is_the_exact_sum_if_the_rank_suffices(lora: Path, other: Path, tmp_path: Path) -> None:
    theirs = deltas(other)
    expected = {name: 0.5 * one - theirs[name] for name, one in deltas(lora).items()}
    for number, rank in enumerate((0, 6)):
        out = tmp_path / f"{number}.safetensors"
        flags = ("--models", lora, other, "--ratios", 0.5, -1, "--new_rank", rank, "--save_to", out)
        assert run(svd_merge_lora, *flags) == 0
        close(deltas(out), expected)
    assert metadata_of(out)["ss_network_dim"] == "6"
    assert metadata_of(out)["modelspec.merged_from"] == "lora, other"


def test_a_merge_by_svd_to_a_lower_rank_is_the_best_approximation(lora: Path, other: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.safetensors"
    assert run(svd_merge_lora, "--models", lora, other, "--new_rank", 3, "--save_to", out) == 0
    one, two, made = deltas(lora), deltas(other), load_file(out)
    for name, delta in deltas(made).items():
        values = torch.linalg.svdvals(one[name] + two[name])
        torch.testing.assert_close(torch.linalg.svdvals(delta)[:3], values[:3], rtol=1e-4, atol=1e-5)
        assert len(made[f"{name}.lora_down.weight"]) == 3


def test_averaged_factors_equal_sd_scripts(any_miniature: Any, tmp_path: Path) -> None:
    """Factors are scaled by ratio · sqrt(alpha / first alpha), up by its absolute value; the first alpha stays."""
    first = write_lora(any_miniature, tmp_path / "a.safetensors", alpha=2.0)
    second = write_lora(any_miniature, tmp_path / "b.safetensors", alpha=8.0, seed=2)
    named = ("--models", tmp_path / "a.safetensors", tmp_path / "b.safetensors", "--ratios", 0.5, -0.25)
    assert run(merge_lora, *named, "--save_to", tmp_path / "average.safetensors") == 0
    assert run(merge_lora, *named, "--concat", "--save_to", tmp_path / "concat.safetensors") == 0
    average, concat = load_file(tmp_path / "average.safetensors"), load_file(tmp_path / "concat.safetensors")
    for name in layer_names(first):
        down, up = f"{name}.lora_down.weight", f"{name}.lora_up.weight"
        torch.testing.assert_close(average[down], 0.5 * first[down] - 0.25 * 2 * second[down])
        torch.testing.assert_close(average[up], 0.5 * first[up] + 0.25 * 2 * second[up])
        torch.testing.assert_close(concat[down], torch.cat([0.5 * first[down], -0.5 * second[down]]))
        torch.testing.assert_close(concat[up], torch.cat([0.5 * first[up], 0.5 * second[up]], dim=1))
        assert float(average[f"{name}.alpha"]) == 2.0


def test_shuffled_ranks_have_the_same_effect(lora: Path, tmp_path: Path) -> None:
    run(merge_lora, "--models", lora, "--ratios", 1, "--shuffle", "--save_to", tmp_path / "s.safetensors")
    close(deltas(tmp_path / "s.safetensors"), deltas(lora))
    shuffled = load_file(tmp_path / "s.safetensors")
    assert any(not torch.equal(each, shuffled[key]) for key, each in load_file(lora).items())


# --- resize


def test_at_full_rank_resizing_changes_nothing(each_miniature: Any, tmp_path: Path) -> None:
    write_lora(each_miniature, tmp_path / "a.safetensors")
    out = tmp_path / "out.safetensors"
    assert run(resize_lora, "--model", tmp_path / "a.safetensors", "--new_rank", 4, "--save_to", out) == 0
    close(deltas(out), deltas(tmp_path / "a.safetensors"))
    before = load_file(tmp_path / "a.safetensors")
    assert {key: tensor.shape for key, tensor in load_file(out).items()} == {k: t.shape for k, t in before.items()}


def test_a_lower_rank_keeps_the_largest_singular_values_and_alpha_by_rank(lora: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.safetensors"
    assert run(resize_lora, "--model", lora, "--new_rank", 2, "--save_to", out) == 0
    before, made = deltas(lora), load_file(out)
    for name, delta in deltas(made).items():
        left, values, right = torch.linalg.svd(before[name], full_matrices=False)
        torch.testing.assert_close(delta, (left[:, :2] * values[:2]) @ right[:2], rtol=1e-4, atol=1e-5)
        assert float(made[f"{name}.alpha"]) == 1.0
    told = metadata_of(out)
    assert told["ss_training_comment"] == "dimension is resized from 4 to 2; mine"
    assert (told["ss_network_dim"], told["ss_network_alpha"]) == ("2", "1.0")


@pytest.mark.parametrize(
    ("method", "target", "rank"),
    [
        ("sv_ratio", 4, 3),  # above 8 / 4
        ("sv_ratio", 2, 1),
        ("sv_fro", 0.95, 2),  # the norms of 1, 2, 3 values are 0.858, 0.959, 0.996 of all
        ("sv_fro", 0.5, 1),
        ("sv_cumulative", 0.9, 3),  # 8, 12, 14.5 of 15.5
        ("sv_cumulative", 0.95, 4),
        (None, 0, 5),
    ],
)
def test_dynamic_methods_choose_the_rank_by_their_definition(method: str | None, target: float, rank: int) -> None:
    values = torch.tensor([8.0, 4.0, 2.5, 0.8, 0.2])
    assert svd.choose_rank(values, method, target, 10) == rank
    assert svd.choose_rank(values, method, target, 2) == min(rank, 2)
    assert svd.choose_rank(torch.zeros(3), method, target, 2) == 1


def test_a_dynamic_rank_differs_by_layer_and_the_file_records_the_method(any_miniature: Any, tmp_path: Path) -> None:
    one, many, *_ = layers_of(any_miniature)
    tensors = random_pairs([one, many], 4, 4.0)
    tensors[f"{one.name}.lora_up.weight"][:, 1:] = 0
    save_file(tensors, tmp_path / "a.safetensors", {"ss_base_model_version": "flux1"})
    flags = ("--new_rank", 4, "--dynamic_method", "sv_fro", "--dynamic_param", 0.999)
    out = tmp_path / "out.safetensors"
    assert run(resize_lora, "--model", tmp_path / "a.safetensors", *flags, "--save_to", out) == 0
    ranks = [len(load_file(out)[f"{layer.name}.lora_down.weight"]) for layer in (one, many)]
    assert ranks == [1, 4]
    assert metadata_of(out)["ss_network_dim"] == "Dynamic"
    assert metadata_of(out)["ss_training_comment"] == "Dynamic resize with sv_fro: 0.999 from 4; "


# --- extract


def test_the_difference_of_two_models_is_the_lora_that_was_merged(each_miniature: Any, tmp_path: Path) -> None:
    write_lora(each_miniature, tmp_path / "a.safetensors")
    merged, out = tmp_path / "merged.safetensors", tmp_path / "out.safetensors"
    model = each_miniature.checkpoint
    run(merge_lora, "--base_model", model, "--models", tmp_path / "a.safetensors", "--save_to", merged)
    named = ("--model_org", model, "--model_tuned", merged)
    assert run(extract_lora_from_models, *named, "--dim", 4, "--conv_dim", 4, "--save_to", out) == 0
    close(deltas(out), deltas(tmp_path / "a.safetensors"), tolerance=1e-4)
    assert metadata_of(out)["ss_base_model_version"] == family_of(each_miniature.family).identity.base_model_version
    assert run(extract_lora_from_models, *named, "--dim", 2, "--save_to", out) == 0
    kernels = {layer.name for layer in layers_of(each_miniature) if layer.shape[2:] not in ((), (1, 1))}
    assert layer_names(load_file(out)) == deltas(tmp_path / "a.safetensors").keys() - kernels


def test_equal_text_encoders_are_left_out(miniature: Any, tmp_path: Path) -> None:
    unet = [layer for layer in layers_of(miniature) if layer.name.startswith("lora_unet_middle")]
    metadata = {"ss_base_model_version": "sdxl_base_v1-0"}
    save_file(random_pairs(unet, 2, 2.0), tmp_path / "a.safetensors", metadata)
    merged, out = tmp_path / "merged.safetensors", tmp_path / "out.safetensors"
    lora = ("--models", tmp_path / "a.safetensors")
    run(merge_lora, "--base_model", miniature.checkpoint, *lora, "--save_to", merged)
    named = ("--model_org", miniature.checkpoint, "--model_tuned", merged)
    assert run(extract_lora_from_models, *named, "--save_to", out, "--run_dir", tmp_path / "run") == 0
    assert not any(name.startswith("lora_te") for name in layer_names(load_file(out)))
    (warning,) = [event["text"] for event in RunFolder(tmp_path / "run").events() if event["kind"] == "warning"]
    assert warning.startswith("min_diff: the text encoders of both models are equal")


# --- convert


@pytest.mark.parametrize("program", ["diffusers", "comfyui", "ai-toolkit"])
def test_converting_there_and_back_is_the_identity(each_miniature: Any, tmp_path: Path, program: str) -> None:
    """alpha / rank is a power of two here, so that even the numbers of the product stay."""
    write_lora(each_miniature, tmp_path / "a.safetensors", rank=4, alpha=1.0)
    there, back = tmp_path / "there.safetensors", tmp_path / "back.safetensors"
    run(convert_lora, "--src_path", tmp_path / "a.safetensors", "--dst", program, "--dst_path", there)
    run(convert_lora, "--src_path", there, "--dst_path", back)
    ours = load_file(tmp_path / "a.safetensors")
    assert load_file(back).keys() == ours.keys()
    assert not load_file(there).keys() & {key for key in ours if "lora_unet" in key and key.endswith("lora_up.weight")}
    again = deltas(back)
    assert all(torch.equal(delta, again[name]) for name, delta in deltas(ours).items())
    if program == "diffusers":
        assert all(".lora_A." in key or ".lora_B." in key for key in load_file(there))


def test_each_module_of_diffusers_gets_its_rows(flux_miniature: Any, tmp_path: Path) -> None:
    files = {option: str(path) for option, path in flux_miniature.files.items()}
    components = family_of("flux").open(flux_settings(**files), torch.float32).load()
    blocks = [layer for layer in layers_of(flux_miniature) if "blocks" in layer.name]
    save_file(random_pairs(blocks, 2, 2.0), tmp_path / "a.safetensors", {"ss_base_model_version": "flux1"})
    out = tmp_path / "peft.safetensors"
    assert run(convert_lora, "--src_path", tmp_path / "a.safetensors", "--dst", "diffusers", "--dst_path", out) == 0
    pipe = pipeline_of(components)
    pipe.load_lora_weights(out)
    delta = deltas(tmp_path / "a.safetensors")["lora_unet_single_blocks_1_linear1"]
    width = delta.shape[1]
    for name, rows in (("attn.to_k", slice(width, 2 * width)), ("proj_mlp", slice(3 * width, None))):
        layer = pipe.transformer.get_submodule(f"single_transformer_blocks.1.{name}")
        torch.testing.assert_close(layer.get_delta_weight("default_0").double(), delta[rows], rtol=1e-4, atol=1e-5)


def test_names_of_diffusers_equal_the_reference(lora: Path, tmp_path: Path) -> None:
    reference = json.loads((REFERENCE / "flux_keys.json").read_text())["map"]
    out = tmp_path / "out.safetensors"
    run(convert_lora, "--src_path", lora, "--dst", "diffusers", "--dst_path", out)
    bfl = set()
    for name in {key.removeprefix("transformer.").rpartition(".lora_")[0] for key in load_file(out)}:
        block = re.search(r"blocks\.(\d+)\.", name)
        ours = reference[re.sub(r"blocks\.\d+\.", "blocks.N.", f"{name}.weight")][0][1]
        ours = ours.replace("N", block[1]) if block else ours
        bfl.add("lora_unet_" + ours.removesuffix(".weight").replace(".", "_"))
    assert bfl == layer_names(load_file(lora))


def test_names_of_comfyui_are_keys_of_the_checkpoint() -> None:
    """ComfyUI takes `diffusion_model.` and `text_encoders.` before the keys of its modules. Its second encoder has the
    names of transformers, while the checkpoint has OpenCLIP's."""
    keys = json.loads((REFERENCE / "sd_keys_sdxl_checkpoint.json").read_text())
    unet, clip_l, clip_g = full_size_modules(family_of("sdxl"))
    starts = (("diffusion_model.", "model.diffusion_model."), ("text_encoders.clip_l.", "conditioner.embedders.0."))
    for each, (ours, theirs) in zip((unet, clip_l), starts, strict=True):
        names = [each.target.comfyui(path) for path, _ in adaptable(each.module, each.target, conv=True)]
        assert all(name.startswith(ours) for name in names)
        assert [name for name in names if f"{theirs}{name.removeprefix(ours)}.weight" not in keys] == []
    (first, *_) = adaptable(clip_g.module, clip_g.target, conv=False)
    name = clip_g.target.comfyui(first[0])
    assert name == "text_encoders.clip_g.transformer.text_model.encoder.layers.0.self_attn.k_proj"


def test_parts_of_a_layer_that_have_ranks_of_their_own_keep_them(flux_miniature: Any, tmp_path: Path) -> None:
    """As split_qkv trains them: up is block-diagonal, so each part needs its own third of the ranks."""
    name, width = "lora_unet_double_blocks_0_img_attn_qkv", 64
    ups = torch.randn(3, width, 2)
    tensors = {
        f"{name}.lora_down.weight": torch.randn(6, width),
        f"{name}.lora_up.weight": torch.block_diag(*ups),
        f"{name}.alpha": torch.tensor(6.0),
    }
    save_file(tensors, tmp_path / "a.safetensors", {"ss_base_model_version": "flux1"})
    out = tmp_path / "out.safetensors"
    run(convert_lora, "--src_path", tmp_path / "a.safetensors", "--dst", "diffusers", "--dst_path", out)
    theirs = load_file(out)
    assert torch.equal(theirs["transformer.transformer_blocks.0.attn.to_k.lora_B.weight"], ups[1])
    assert {tensor.shape for key, tensor in theirs.items() if "lora_A" in key} == {(2, width)}


def test_converting_changes_the_precision_and_keeps_the_metadata(lora: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.safetensors"
    assert run(convert_lora, "--src_path", lora, "--dst_path", out, "--save_precision", "fp16") == 0
    assert {tensor.dtype for tensor in load_file(out).values()} == {torch.float16}
    assert metadata_of(out)["ss_training_comment"] == "mine"
    assert len(metadata_of(out)["sshs_model_hash"]) == 64


# --- metadata and inspection


def test_metadata_is_shown_and_edited_while_the_weights_stay(lora: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, weights = metadata_of(lora), load_file(lora)
    changes = ("--set", "modelspec.title=A = B", "new=1", "--remove", "ss_network*", "ss_training_comment")
    assert run(edit_metadata, "--model", lora, *changes, "--save_to", lora) == 0
    kept = {key: text for key, text in before.items() if key == "ss_base_model_version"}
    assert metadata_of(lora) == {**kept, "modelspec.title": "A = B", "new": "1"}
    edited = load_file(lora)
    assert all(torch.equal(tensor, edited[key]) for key, tensor in weights.items())
    capsys.readouterr()
    assert run(show_metadata, lora) == 0
    assert json.loads(capsys.readouterr().out) == metadata_of(lora)
    assert run(edit_metadata, "--model", lora, "--set", "new=a\x9b31m\u202eb", "--save_to", lora) == 0
    capsys.readouterr()
    assert run(show_metadata, lora) == 0
    text = capsys.readouterr().out
    assert json.loads(text) == metadata_of(lora)
    assert all(line.isprintable() for line in text.splitlines())


def test_inspecting_shows_norms_by_block_and_the_ranks_in_use(
    each_miniature: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_lora(each_miniature, tmp_path / "a.safetensors", ss_optimizer="torch.optim.adamw.AdamW(x=1)", ss_steps="80")
    assert run(check_lora_weights, tmp_path / "a.safetensors", "--json", "--run_dir", tmp_path / "run") == 0
    report = json.loads(capsys.readouterr().out)
    assert report == json.loads((tmp_path / "run" / "report.json").read_text())
    label = family_of(each_miniature.family).lora_blocks.label
    squares: dict[str, float] = {}
    for name, delta in deltas(tmp_path / "a.safetensors").items():
        squares[label(name)] = squares.get(label(name), 0.0) + float(delta.square().sum())
    found = {block["block"]: block["norm"] for block in report["blocks"]}
    assert found == pytest.approx({block: square**0.5 for block, square in squares.items()}, rel=1e-4)
    order = [block["block"] for block in report["blocks"]]
    assert order == sorted(
        order, key=lambda block: (not block.startswith("TE"), {"I": 0, "M": 1}.get(block[0], 2), block)
    )
    assert report["trained"] == [["optimizer", "AdamW"], ["steps", "80"]]
    assert len(report["spectrum"]["mean"]) == 4
    assert report["spectrum"]["mean"][0] == 1.0
    assert 1 <= report["layers"][0]["needed"] <= 4


def test_the_header_shows_kind_rank_and_training(miniature: Any, tmp_path: Path) -> None:
    write_lora(miniature, tmp_path / "a.safetensors", ss_network_alpha="2.0", ss_steps="80")
    summary = summarize(read_header(tmp_path / "a.safetensors"))
    assert summary is not None
    assert (summary.kind, summary.ranks) == ("LoCon", {4: 232})
    assert summary.text() == "rank 4, alpha 2, 232 layers, fp32, trained 80 steps"
    assert summarize(read_header(miniature.checkpoint)) is None


# --- bad input, stop


def test_adapters_of_more_than_two_factors_are_not_resized(lora: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tensors = load_file(lora) | {"lora_unet_single_blocks_0_linear2.dora_scale": torch.ones(64, 1)}
    save_file(tensors, lora)
    assert run(resize_lora, "--model", lora, "--save_to", lora.with_name("out.safetensors")) == 2
    assert "is dora, not a plain LoRA" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("tool", "flags", "sentence"),
    [
        (merge_lora, ("--save_to", "x.safetensors"), "models: not set; choose at least one LoRA file"),
        (merge_lora, ("--models", "{lora}", "--save_to", "x.bin"), "save_to: 'x.bin' does not end in .safetensors"),
        (merge_lora, ("--models", "{lora}", "--save_to", "{lora}"), "save_to: '{lora}' is one of the files to read"),
        (merge_lora, ("--models", "no.safetensors", "--save_to", "{out}"), "models: file not found: 'no.safetensors'"),
        (merge_lora, ("--models", "{lora}", "--ratios", 1, 2, "--save_to", "{out}"), "ratios: 2 given for 1 LoRAs"),
        (
            merge_lora,
            ("--models", "{lora}", "--lbws", "IN", "--save_to", "{out}"),
            "lbws: 'IN' is not of the form NAME=",
        ),
        (
            merge_lora,
            ("--models", "{lora}", "--lbws", "[1,2]", "--save_to", "{out}"),
            "lbws: 2 weights given; lists for",
        ),
        (merge_lora, ("--models", "{lora}", "{other}", "--save_to", "{out}"), "turn on concat, or merge by SVD"),
        (merge_lora, ("--models", "{model}", "--save_to", "{out}"), "models: '{model}' is not a LoRA but FLUX.1 dev"),
        (
            merge_lora,
            ("--base_model", "{lora}", "--models", "{other}", "--save_to", "{out}"),
            "base_model: '{lora}' is itself a LoRA",
        ),
        (flux_merge_lora, ("--flux_model", "{model}", "--save_to", "{out}"), "models: not set"),
        (resize_lora, ("--model", "{model}", "--save_to", "{out}"), "model: '{model}' contains no layers of a LoRA"),
        (
            resize_lora,
            ("--model", "{lora}", "--dynamic_method", "sv_fro", "--save_to", "{out}"),
            "dynamic_param: not set; sv_fro needs a target",
        ),
        (
            extract_lora_from_models,
            ("--model_org", "{model}", "--model_tuned", "{lora}", "--save_to", "{out}"),
            "model_tuned: '{lora}' is a FLUX.1 LoRA; choose",
        ),
        (
            resize_lora,
            ("--model", "{lora}", "--device", "gpu", "--save_to", "{out}"),
            "device: 'gpu' is not available here",
        ),
        (convert_lora, ("--src_path", "{model}", "--dst_path", "{out}"), "src_path: '{model}' is not a LoRA"),
        (
            edit_metadata,
            ("--model", "{lora}", "--set", "x", "--save_to", "{out}"),
            "set: 'x' is not of the form KEY=TEXT",
        ),
    ],
)
def test_a_mistake_is_reported_in_one_sentence(
    any_miniature: Any,
    lora: Path,
    other: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    tool: Any,
    flags: tuple[Any, ...],
    sentence: str,
) -> None:
    known = {"lora": lora, "other": other, "out": tmp_path / "out.safetensors", "model": any_miniature.checkpoint}
    assert run(tool, *(str(flag).format(**known) for flag in flags)) == 2
    told = capsys.readouterr().err.splitlines()
    assert any(sentence.format(**known) in line for line in told), told
    assert not (tmp_path / "out.safetensors").exists()


def test_unknown_tensors_are_left_out_with_a_warning(lora: Path, tmp_path: Path) -> None:
    save_file(load_file(lora) | {"lora_unet_norm.extra": torch.ones(4)}, lora, metadata_of(lora))
    flags = ("--src_path", lora, "--dst_path", tmp_path / "out.safetensors", "--run_dir", tmp_path / "run")
    assert run(convert_lora, *flags) == 0
    (warning,) = [event["text"] for event in RunFolder(tmp_path / "run").events() if event["kind"] == "warning"]
    assert warning == f"src_path: 1 tensor of '{lora}' is unknown and left out: lora_unet_norm.extra"


@pytest.mark.parametrize(
    ("target", "why"),
    [
        ("/proc/self/x.safetensors", ""),
        ("/proc/none/deeper/x.safetensors", ""),
        ("{file}/x.safetensors", "'{file}' is not a folder"),
        ("{file}/deeper/x.safetensors", "'{file}' is not a folder"),
        ("{folder}/" + "x" * 236 + ".safetensors", "a name of 248 bytes is too long; make it "),
        ("{folder}/new/" + "é" * 118 + ".safetensors", "a name of 248 bytes is too long; make it "),
    ],
)
def test_an_output_that_cannot_be_written_is_reported_before_the_work(target: str, why: str, tmp_path: Path) -> None:
    (file := tmp_path / "file.safetensors").touch()
    (folder := tmp_path / "folder").mkdir()
    target, why = (text.format(file=file, folder=folder) for text in (target, why))
    outputs = ((convert_lora.COMMAND, "dst_path"), (merge_lora.COMMAND, "save_to"))
    for command, option in outputs:
        values = {o.name: o.default for group in command.groups for o in each_option(group)}
        values |= {"models": [str(file)], "src_path": str(file)}
        (sentence,) = command.problems({**values, option: target})
        assert sentence.startswith(f"{option}: '{target}' cannot be written (")
        assert why in sentence
        assert command.problems({**values, option: f"{folder}/new/{'x' * 200}.safetensors"}) == []
        assert list(folder.iterdir()) == []


def test_a_tool_that_is_interrupted_before_its_work_ends_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Command, "_parser", interrupt)
    assert run(merge_lora, "--models", "x") == 130
    assert capsys.readouterr().out == "Stopped\n"


def test_mistakes_in_names_are_reported_before_torch_is_imported(tmp_path: Path) -> None:
    code = (
        "import sys; from sd_scripts.tools import merge_lora;"
        "code = merge_lora.COMMAND.main('x', ['--base_model', 'no', '--models', 'no', '--save_to', 'x.safetensors']);"
        "sys.exit(10 * ('torch' in sys.modules) + code)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=False).returncode == 2


def test_a_stopped_tool_leaves_no_file(any_miniature: Any, lora: Path, tmp_path: Path) -> None:
    out, folder = tmp_path / "out" / "merged.safetensors", RunFolder(tmp_path / "run")
    folder.path.mkdir()
    folder.command("stop")
    flags = ("--base_model", any_miniature.checkpoint, "--models", lora, "--save_to", out, "--run_dir", folder.path)
    assert run(merge_lora, *flags) == 130
    assert list(out.parent.iterdir()) == []
    assert [event["kind"] for event in folder.events()][-1] == "stopped"
