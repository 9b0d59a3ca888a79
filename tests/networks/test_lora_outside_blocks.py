"""Layers of LoRA files that are not trained by default, and the second text encoder of FLUX.1."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from benchmarks.pipelines.flux import to_diffusers
from sd_scripts.families.cards.model_file import describe
from sd_scripts.families.common.family import family_of
from sd_scripts.families.common.layer_rows import adapted_modules, find_modules
from sd_scripts.families.flux.keys import diffusers_modules
from sd_scripts.families.flux.lora import BLOCKS, TRANSFORMER
from sd_scripts.families.flux.model import FluxParams, FluxTransformer
from sd_scripts.library.files.safetensors_stream import TensorFile
from sd_scripts.networks.files.lora_files import merge, read_lora
from sd_scripts.networks.files.lora_names import with_names_of
from sd_scripts.networks.plan import AdaptedModule
from sd_scripts.settings.checks.model_files import why_no_lora
from sd_scripts.tools import merge_lora
from tests.support.families.flux import SHAPE
from tests.support.networks.lora_tools import deltas, random_pairs
from tests.support.training import train

OUTSIDE = (
    *("img_in", "txt_in", "time_in.in_layer", "time_in.out_layer", "vector_in.in_layer", "guidance_in.out_layer"),
    *("final_layer.adaLN_modulation.1", "final_layer.linear"),
)
IN_PARTS = ("double_blocks.0.txt_attn.qkv", "single_blocks.0.linear1")
"""Layers whose rows are modules of their own in diffusers."""


def transformer() -> tuple[FluxTransformer, list[AdaptedModule]]:
    torch.manual_seed(0)
    model = FluxTransformer(FluxParams(**SHAPE)).requires_grad_(False)
    return model, [AdaptedModule(module=model, target=TRANSFORMER, lr=0.0)]


def weights_of_diffusers(model: FluxTransformer) -> dict[str, Tensor]:
    return {key: tensor.clone() for key, tensor in to_diffusers(dict(model.state_dict())).items()}


@pytest.mark.parametrize("dora", [False, True])
def test_layers_outside_of_the_blocks_are_merged_where_diffusers_has_them(dora: bool, tmp_path: Path) -> None:
    """norm_out.linear has its halves in a different order there, and so have the norms of its DoRA."""
    model, modules = transformer()
    before, tensors = weights_of_diffusers(model), {}
    names = [name for path in (*OUTSIDE, *IN_PARTS) for name in diffusers_modules(path)]
    for name in names:
        weight = before[f"{name}.weight"]
        tensors[f"transformer.{name}.lora_A.weight"] = torch.randn(2, weight.shape[1]) * 0.1
        tensors[f"transformer.{name}.lora_B.weight"] = torch.randn(len(weight), 2) * 0.1
        if dora:
            tensors[f"transformer.{name}.lora_magnitude_vector"] = torch.rand(len(weight)) + 0.5
    save_file(tensors, tmp_path / "x.safetensors")
    file = read_lora("base_weights", tmp_path / "x.safetensors", modules)
    assert merge(modules, file, 1.0) == len(OUTSIDE) + len(IN_PARTS)
    after = weights_of_diffusers(model)
    for name in names:
        a, b = (tensors[f"transformer.{name}.lora_{part}.weight"] for part in "AB")
        expected = before[f"{name}.weight"] + b @ a
        if dora:
            norms = tensors[f"transformer.{name}.lora_magnitude_vector"]
            expected *= (norms / expected.norm(dim=1))[:, None]
        torch.testing.assert_close(after[f"{name}.weight"], expected, rtol=1e-4, atol=1e-5)
    if not dora:
        again = with_names_of("diffusers", file.tensors, modules)
        assert again.keys() == tensors.keys()
        assert all(torch.allclose(again[key], tensor) for key, tensor in tensors.items())


def test_blocks_of_layers_outside_are_in_and_out() -> None:
    labels = [BLOCKS.label(TRANSFORMER.name(path)) for path in OUTSIDE]
    assert labels == ["IN"] * (len(OUTSIDE) - 2) + ["OUT"] * 2


TO = "transformer.transformer_blocks.0.attn.to_"


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ({f"{TO}{letter}.lora_magnitude_vector": torch.ones(64) for letter in "qk"}, "has DoRA for some rows of"),
        ({f"{TO}v.lora_A.weight": torch.ones(64, 9)}, "different inputs"),
        ({f"{TO}v.lora_B.weight": torch.ones(64, 64, 1, 1)}, "different inputs"),
        ({f"{TO}k.oft_blocks": torch.ones(16, 4, 4)}, "both as"),
    ],
)
def test_modules_that_do_not_form_a_layer_are_refused(more: dict[str, Tensor], problem: str, tmp_path: Path) -> None:
    tensors = {f"{TO}{letter}.lora_{part}.weight": torch.ones(64, 64) for letter in "qkv" for part in "AB"}
    save_file({**tensors, **more}, tmp_path / "x.safetensors")
    with pytest.raises(ValueError, match=rf"^models: '.*x.safetensors' .*{problem}"):
        read_lora("models", tmp_path / "x.safetensors", transformer()[1])


def test_modules_in_fp8_are_joined(tmp_path: Path) -> None:
    tensors = {f"{TO}{letter}.lora_{part}.weight": torch.randn(64, 64) for letter in "qkv" for part in "AB"}
    tensors = {key: tensor.to(torch.float8_e4m3fn) for key, tensor in tensors.items()}
    save_file(tensors, tmp_path / "x.safetensors")
    file = read_lora("models", tmp_path / "x.safetensors", transformer()[1])
    change = file.change("lora_unet_double_blocks_0_img_attn_qkv", torch.zeros(192, 64), 1.0)
    expected = [tensors[f"{TO}{x}.lora_B.weight"].float() @ tensors[f"{TO}{x}.lora_A.weight"].float() for x in "qkv"]
    torch.testing.assert_close(change, torch.cat(expected))
    assert len(with_names_of("diffusers", file.tensors, transformer()[1])) == len(tensors)


def test_a_layer_with_too_few_rows_for_the_modules_of_diffusers_is_refused(tmp_path: Path) -> None:
    name = "lora_unet_double_blocks_0_img_attn_qkv"
    tensors = {f"{name}.lora_down.weight": torch.ones(2, 64), f"{name}.lora_up.weight": torch.ones(100, 2)}
    with pytest.raises(ValueError, match=f"{name} has 100 outputs for 3 layers of diffusers"):
        with_names_of("diffusers", tensors, transformer()[1])


@pytest.mark.run
def test_every_layer_of_a_model_can_be_merged(each_miniature: Any, tmp_path: Path) -> None:
    """Also those that are not trained by default: time and text embeddings, first and last layers."""
    path = each_miniature.checkpoint
    found = find_modules(family_of(each_miniature.family), TensorFile(path, "model").header, "model", path)
    layers = [layer for module in found.values() for layer in module.layers if layer not in module.trained_layers]
    assert len(layers) >= 2
    expected = deltas(tensors := random_pairs(layers, 2, 1.0))
    save_file(tensors, tmp_path / "x.safetensors")
    flags = ["--base_model", str(path), "--models", str(tmp_path / "x.safetensors")]
    assert merge_lora.COMMAND.main("merge", [*flags, "--save_to", str(tmp_path / "out.safetensors")]) == 0
    before, after = load_file(path), load_file(tmp_path / "out.safetensors")
    for layer in layers:
        change = layer.weight(after.__getitem__) - layer.weight(before.__getitem__)
        torch.testing.assert_close(change.flatten(1).double(), expected[layer.name], rtol=1e-3, atol=1e-4)


FLUX, T5, Q = "FLUX.1 LoRA", "encoder_block_1_layer_1_DenseReluDense_wo", "transformer.transformer_blocks.3.attn.to_q"
ADDED = "transformer.transformer_blocks.3.attn.add_q_proj"


@pytest.mark.parametrize(
    ("keys", "variant"),
    [
        (("lora_transformer_transformer_blocks_3_attn_to_q", f"lora_te2_{T5}"), FLUX),
        ((Q, "text_encoder_2.encoder.block.1.layer.0.SelfAttention.o"), FLUX),
        ((ADDED, "transformer.transformer_blocks.3.ff_context.net.2"), FLUX),
        (("transformer.single_transformer_blocks.3.proj_mlp", "text_encoder_2.encoder.block.0.x"), FLUX),
        ((f"lora_te3_{T5}",), FLUX),
        ((ADDED,), "Qwen-Image LoRA"),
        (("lora_te2_text_model_encoder_layers_1_mlp_fc1",), "SDXL LoRA"),
        (("text_encoder_2.text_model.encoder.layers.1.mlp.fc1",), "SDXL LoRA"),
    ],
)
def test_a_lora_is_recognised_by_its_denoiser_before_its_encoders(
    keys: tuple[str, ...], variant: str, tmp_path: Path
) -> None:
    pairs = {f"{key}.lora_{part}.weight": torch.ones(2, 2) for key in keys for part in "AB"}
    save_file(pairs, tmp_path / "x.safetensors")
    assert describe(tmp_path / "x.safetensors").variant == variant


@pytest.mark.run
def test_t5_is_trained_merged_and_drawn_with_under_the_names_of_other_programs(
    any_miniature: Any, tmp_path: Path
) -> None:
    family, found = family_of("flux"), {}
    for option in ("pretrained_model_name_or_path", "t5xxl"):
        path = any_miniature.files[option]
        found |= find_modules(family, TensorFile(path, option).header, option, path)
    layers = [layer for module in found.values() for layer in module.trained_layers[:2]]
    assert any(layer.name.startswith("lora_te3_") for layer in layers)
    tensors = with_names_of("diffusers", random_pairs(layers, 2, 2.0), adapted_modules(family, found))
    assert any(key.startswith("text_encoder_2.") for key in tensors)
    save_file(tensors, lora := tmp_path / "lora.safetensors")
    run = train(any_miniature, tmp_path / "out", base_weights=[str(lora)], max_train_steps=1)
    assert run.status == 0
    assert [event["text"] for event in run.events_of("warning") if "base_weights" in event["text"]] == []
    assert why_no_lora(lora, "flux") == "", "generating checks so"
    file = read_lora("lora_weights", lora, adapted_modules(family, found))
    assert file.known == {layer.name for layer in layers}
