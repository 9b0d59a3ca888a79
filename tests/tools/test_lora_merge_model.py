"""LoRAs merged into model files: the model computes the same as with them attached, and no tensor stays in memory."""

import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

from sd_scripts.families.flux.keys import diffusers_modules
from sd_scripts.library.files.safetensors_stream import TensorFile
from sd_scripts.networks.adapter import Group, LayerPlan, adapter_kinds
from sd_scripts.networks.layers import Dropouts
from sd_scripts.networks.network import attach
from sd_scripts.options.networks.network_args import NetworkArguments
from sd_scripts.settings.network_choice import KINDS
from sd_scripts.tools.merge_lora import COMMAND
from tests.support.networks.lora_sdxl import WITH_CONV, base, losses, prepare, save, say_something
from tests.support.networks.lora_tools import deltas, layers_of, random_pairs, write_lora

pytestmark = pytest.mark.run


def merge(base_model: Path, loras: list[Path], save_to: Path, *more: str) -> int:
    named = ["--base_model", str(base_model), "--models", *map(str, loras), "--save_to", str(save_to)]
    return COMMAND.main("merge_lora.py", [*named, *more])


def test_the_merged_checkpoint_matches_the_model_with_the_lora(miniature: Any, tmp_path: Path) -> None:
    prepared = prepare(miniature.checkpoint, tmp_path, network_args=WITH_CONV)
    say_something(prepared)
    lora = save(prepared, tmp_path / "lora.safetensors")
    assert merge(miniature.checkpoint, [lora], tmp_path / "merged.safetensors") == 0
    (tmp_path / "merged_tokenizers").symlink_to(f"{miniature.checkpoint.with_suffix('')}_tokenizers")
    with torch.no_grad():
        expected, plain = losses(prepared.components), losses(base(miniature.checkpoint))
        torch.testing.assert_close(losses(base(tmp_path / "merged.safetensors")), expected, rtol=1e-4, atol=1e-5)
    assert (plain - expected).abs().min() > 1e-3


def test_each_layer_gains_its_delta_and_all_else_is_copied(each_miniature: Any, tmp_path: Path) -> None:
    first = deltas(write_lora(each_miniature, tmp_path / "a.safetensors"))
    second = deltas(write_lora(each_miniature, tmp_path / "b.safetensors", rank=2, seed=2))
    files = [tmp_path / "a.safetensors", tmp_path / "b.safetensors"]
    assert merge(each_miniature.checkpoint, files, tmp_path / "m.safetensors", "--ratios", "0.5", "-0.25") == 0
    before, after = load_file(each_miniature.checkpoint), load_file(tmp_path / "m.safetensors")
    assert list(before) == list(after)
    expected = {key: tensor.double() for key, tensor in before.items()}
    for layer in layers_of(each_miniature):
        change = 0.5 * first[layer.name] - 0.25 * second[layer.name]
        for rows in layer.rows:
            part = expected[rows.key][rows.first : rows.first + rows.count]
            part += change[rows.at : rows.at + rows.count].view(part.shape)
    for key, tensor in after.items():
        torch.testing.assert_close(tensor.double(), expected[key], rtol=1e-5, atol=1e-6)
    changed = {rows.key for layer in layers_of(each_miniature) for rows in layer.rows}
    assert all(torch.equal(before[key], after[key]) for key in before.keys() - changed)
    with safe_open(tmp_path / "m.safetensors", "pt") as opened:
        assert opened.metadata()["modelspec.merged_from"] == f"{each_miniature.checkpoint.stem}, a, b"


def test_a_model_in_the_layout_of_diffusers_is_merged_part_by_part(flux_miniature: Any, tmp_path: Path) -> None:
    """There q, k and v are tensors of their own, while the LoRA has them as one layer."""
    split = {}
    for key, tensor in load_file(flux_miniature.checkpoint).items():
        module, _, kind = key.rpartition(".")
        if module.endswith("_norm") or module.startswith("final_layer"):
            continue  # renamed in more ways, and not adapted
        names = diffusers_modules(module)
        width = [tensor.shape[0] // 3] * 3 if len(names) == 3 else [64] * 3 + [tensor.shape[0] - 192]
        parts = tensor.split(width) if len(names) > 1 else [tensor]
        split |= {f"{name}.{kind}": part.clone() for name, part in zip(names, parts, strict=True)}
    norm = load_file(flux_miniature.checkpoint)["double_blocks.0.img_attn.norm.query_norm.scale"]
    split["transformer_blocks.0.attn.norm_q.weight"] = norm
    save_file(split, tmp_path / "diffusers.safetensors")
    write_lora(flux_miniature, tmp_path / "a.safetensors")
    lora = [tmp_path / "a.safetensors"]
    assert merge(flux_miniature.checkpoint, lora, tmp_path / "bfl.safetensors") == 0
    assert merge(tmp_path / "diffusers.safetensors", lora, tmp_path / "m.safetensors") == 0
    joined, merged = load_file(tmp_path / "bfl.safetensors"), load_file(tmp_path / "m.safetensors")
    names = diffusers_modules("single_blocks.1.linear1")
    parts = torch.cat([merged[f"{name}.weight"] for name in names])
    assert torch.equal(parts, joined["single_blocks.1.linear1.weight"])
    assert not torch.equal(parts[:64], split[f"{names[0]}.weight"])


def test_block_weights_decide_which_blocks_change(miniature: Any, tmp_path: Path) -> None:
    write_lora(miniature, tmp_path / "a.safetensors")
    before = load_file(miniature.checkpoint)
    twelve = "[0,0,0,0.5,0,0,0,0,0,0,0,0]"  # BASE, IN04, IN05, IN07, ...
    for number, lbw in enumerate((twelve, "IN=0,MID=0,OUT=0,BASE=0,IN07=0.5")):
        save_to = tmp_path / f"{number}.safetensors"
        assert merge(miniature.checkpoint, [tmp_path / "a.safetensors"], save_to, "--lbws", lbw) == 0
    listed, named = load_file(tmp_path / "0.safetensors"), load_file(tmp_path / "1.safetensors")
    moved = {".".join(key.split(".")[:4]) for key in before if not torch.equal(before[key], named[key])}
    assert moved == {"model.diffusion_model.input_blocks.7"}
    block = [key for key in before if key.startswith("model.diffusion_model.input_blocks.7.1.")]
    assert all(torch.equal(listed[key], named[key]) for key in block)


def test_the_precision_is_the_models_unless_a_different_one_is_set(any_miniature: Any, tmp_path: Path) -> None:
    write_lora(any_miniature, tmp_path / "a.safetensors")
    half = {key: tensor.half() for key, tensor in load_file(any_miniature.checkpoint).items()}
    save_file(half, tmp_path / "half.safetensors")
    merge(tmp_path / "half.safetensors", [tmp_path / "a.safetensors"], tmp_path / "same.safetensors")
    merge(
        *(tmp_path / "half.safetensors", [tmp_path / "a.safetensors"], tmp_path / "bf16.safetensors"),
        *("--save_precision", "bf16"),
    )
    assert {tensor.dtype for tensor in load_file(tmp_path / "same.safetensors").values()} == {torch.float16}
    assert {tensor.dtype for tensor in load_file(tmp_path / "bf16.safetensors").values()} == {torch.bfloat16}


def test_a_few_tensors_at_a_time_are_in_memory(
    any_miniature: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tensors that are read are counted while anybody holds them."""
    alive: set[int] = set()
    most, read = 0, TensorFile.read

    def counted(self: TensorFile, key: str) -> torch.Tensor:
        nonlocal most
        tensor = read(self, key)
        alive.add(id(tensor))
        weakref.finalize(tensor, alive.discard, id(tensor))
        most = max(most, len(alive))
        return tensor

    monkeypatch.setattr(TensorFile, "read", counted)
    write_lora(any_miniature, tmp_path / "a.safetensors")
    more = ("--save_precision", "bf16")
    assert merge(any_miniature.checkpoint, [tmp_path / "a.safetensors"], tmp_path / "m.safetensors", *more) == 0
    assert 1 <= most <= 4


def test_separate_text_encoder_files_are_merged_with_their_layers(flux_miniature: Any, tmp_path: Path) -> None:
    prepared = {option: path for option, path in flux_miniature.files.items() if option in ("clip_l", "t5xxl")}
    layers = layers_of(flux_miniature)[:1]
    tensors = random_pairs(layers, 2, 2.0) | {
        "lora_te1_text_model_encoder_layers_0_mlp_fc1.lora_down.weight": torch.ones(1, 64),
        "lora_te1_text_model_encoder_layers_0_mlp_fc1.lora_up.weight": torch.ones(256, 1),
    }
    save_file(tensors, tmp_path / "a.safetensors", {"ss_base_model_version": "flux1", "ss_network_module": "x"})
    clip = ("--clip_l", str(prepared["clip_l"]), "--clip_l_save_to", str(tmp_path / "clip.safetensors"))
    assert merge(flux_miniature.checkpoint, [tmp_path / "a.safetensors"], tmp_path / "m.safetensors", *clip) == 0
    before, after = load_file(prepared["clip_l"]), load_file(tmp_path / "clip.safetensors")
    (moved,) = [key for key in before if not torch.equal(before[key], after[key])]
    assert moved.endswith("encoder.layers.0.mlp.fc1.weight")
    torch.testing.assert_close(after[moved], before[moved] + 1)


def test_every_adapter_kind_is_merged_to_what_it_computes(flux_miniature: Any, tmp_path: Path) -> None:
    key, name = "double_blocks.0.img_attn.proj.weight", "lora_unet_double_blocks_0_img_attn_proj"
    weight = load_file(flux_miniature.checkpoint)[key]
    for kind in adapter_kinds().values():
        model = nn.Sequential(nn.Linear(*weight.shape, bias=False))
        model[0].weight.data = weight.clone()
        plan = LayerPlan(
            name=name,
            module=model,
            path="0",
            kind=kind,
            rank=2,
            alpha=1.0,
            group=Group("unet", 1.0),
            options=KINDS[kind.kind](NetworkArguments({})),
        )
        network = attach([plan], Dropouts(), torch.Generator().manual_seed(0))
        with torch.no_grad():
            network.masters.add_(torch.randn(network.masters.shape) * 0.1)
            network.refresh()
        lora = tmp_path / f"{kind.kind}.safetensors"
        known = {"ss_base_model_version": "flux1", "ss_network_module": "networks.lora"}
        save_file({key: tensor.contiguous() for key, tensor in network.file_tensors(None).items()}, lora, known)
        assert merge(flux_miniature.checkpoint, [lora], tmp_path / "m.safetensors") == 0
        merged, x = load_file(tmp_path / "m.safetensors")[key], torch.randn(3, weight.shape[1])
        with torch.no_grad():
            torch.testing.assert_close(x @ merged.T, model(x), rtol=1e-4, atol=1e-4, msg=kind.kind)
        assert not torch.allclose(merged, weight, rtol=1e-2)
