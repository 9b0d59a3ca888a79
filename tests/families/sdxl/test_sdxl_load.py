"""Loading SDXL: every kind of source gives the same model, and bad files are reported in one sentence."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from diffusers import StableDiffusionXLPipeline
from torch import Tensor, nn
from torch.nn import functional

from sd_scripts.families.common.family import Components
from sd_scripts.families.sdxl.family import SDXL
from sd_scripts.families.sdxl.load import single_file
from sd_scripts.families.sdxl.vae import decode_latents, encode_images
from sd_scripts.settings import preflight
from sd_scripts.settings.reading import from_values
from tests.support.families.sdxl import checkpoint_tensors
from tests.support.families.sdxl_pipeline import pipeline_of
from tests.support.miniatures import sdxl_settings
from tests.support.scripts import SDXL_LORA
from tests.support.training import train

pytestmark = pytest.mark.run


def load(*arguments: Any, **more: Any) -> Components:
    """All components, loaded."""
    return SDXL.open(*arguments, **more).load()


@pytest.fixture(scope="module")
def components(miniature: Any) -> Components:
    return load(sdxl_settings(miniature.checkpoint), torch.float32)


@pytest.fixture(scope="module")
def file(miniature: Any) -> dict[str, Tensor]:
    return safetensors.torch.load_file(miniature.checkpoint)


@pytest.fixture(scope="module")
def folder(components: Components, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("diffusers")
    pipeline_of(components).save_pretrained(path)
    return path


def test_loading_and_saving_reproduces_the_file(components: Components, file: dict[str, Tensor]) -> None:
    _same(checkpoint_tensors(components), file)


def test_everything_is_frozen_in_eval_mode_and_in_the_requested_dtype(miniature: Any) -> None:
    half = load(sdxl_settings(miniature.checkpoint, no_half_vae=True), torch.bfloat16)
    for module in (half.denoiser, half.vae, *half.text_encoders):
        assert not module.training
        assert not any(p.requires_grad for p in module.parameters())
    assert _dtypes(half.denoiser) == _dtypes(half.text_encoders[0]) == _dtypes(half.text_encoders[1])
    assert _dtypes(half.denoiser) == {torch.bfloat16}
    assert _dtypes(half.vae) == {torch.float32}


def test_no_tensor_stays_on_the_meta_device(components: Components) -> None:
    for module in (components.denoiser, components.vae, *components.text_encoders):
        assert not any(tensor.is_meta for tensor in (*module.parameters(), *module.buffers()))


def test_a_diffusers_folder_is_the_same_model(components: Components, folder: Path) -> None:
    other = load(sdxl_settings(folder), torch.float32)
    _same(checkpoint_tensors(other), checkpoint_tensors(components))
    assert [len(tokenizer) for tokenizer in other.tokenizers] == [len(tokenizer) for tokenizer in components.tokenizers]


def test_diffusers_reads_the_miniature_as_a_single_file(miniature: Any, folder: Path, file: dict[str, Tensor]) -> None:
    pipeline = StableDiffusionXLPipeline.from_single_file(
        str(miniature.checkpoint), config=str(folder), local_files_only=True
    )
    theirs = single_file(
        {
            "denoiser": pipeline.unet.state_dict(),
            "vae": pipeline.vae.state_dict(),
            "text_encoder1": pipeline.text_encoder.state_dict(),
            "text_encoder2": pipeline.text_encoder_2.state_dict(),
        }
    )
    _same(theirs, file)


def test_a_ckpt_is_the_same_model_and_no_mmap_is_too(
    miniature: Any, components: Components, file: dict[str, Tensor]
) -> None:
    ckpt = miniature.checkpoint.with_suffix(".ckpt")  # next to it, where the tokenizers are
    torch.save({"state_dict": {key: tensor.clone() for key, tensor in file.items()}, "epoch": 3}, ckpt)
    _same(checkpoint_tensors(load(sdxl_settings(ckpt), torch.float32)), file)
    whole = sdxl_settings(miniature.checkpoint, disable_mmap_load_safetensors=True)
    _same(checkpoint_tensors(load(whole, torch.float32)), file)


def test_keys_of_a_compiled_model_are_read(miniature: Any, tmp_path: Path, file: dict[str, Tensor]) -> None:
    prefix = "model.diffusion_model."
    compiled = {key.replace(prefix, prefix + "_orig_mod."): tensor for key, tensor in file.items()}
    path = _write(tmp_path / "compiled.safetensors", compiled)
    _lend_tokenizers(miniature, path)
    _same(checkpoint_tensors(load(sdxl_settings(path), torch.float32)), file)


UNET, FIRST = "unet/diffusion_pytorch_model", "text_encoder/model"
WRITTEN_ELSEWHERE: dict[str, tuple[str, Callable[[str], str]]] = {
    "compiled": (UNET, lambda key: f"_orig_mod.{key}"),
    "compiled inside": (UNET, lambda key: key.replace("down_blocks.1.", "down_blocks.1._orig_mod.")),
    "by transformers 4": (FIRST, lambda key: f"text_model.{key}"),
    "by transformers 5": (FIRST, lambda key: key.removeprefix("text_model.")),
    "an old VAE": ("vae/diffusion_pytorch_model", lambda key: _former(key)),
}


@pytest.mark.parametrize("how", WRITTEN_ELSEWHERE)
def test_older_names_in_a_folder_are_read(
    how: str, components: Components, folder: Path, miniature: Any, file: dict[str, Tensor], tmp_path: Path
) -> None:
    shutil.copytree(folder, tmp_path / "other")
    part, renamed = WRITTEN_ELSEWHERE[how]
    path = tmp_path / "other" / f"{part}.safetensors"
    _write(path, {renamed(key): tensor for key, tensor in safetensors.torch.load_file(path).items()})
    _same(checkpoint_tensors(load(sdxl_settings(tmp_path / "other"), torch.float32)), file)


def test_a_folder_that_lacks_weights_is_reported_and_not_filled_with_random_ones(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "other")
    path = tmp_path / "other/text_encoder/model.safetensors"
    state = safetensors.torch.load_file(path)
    key = next(key for key in state if key.endswith("layers.1.mlp.fc1.weight"))
    _write(path, {name: tensor for name, tensor in state.items() if name != key})
    with pytest.raises(
        ValueError, match=r"^pretrained_model_name_or_path: '.*text_encoder' is incomplete; missing: 'enc"
    ):
        load(sdxl_settings(tmp_path / "other"), torch.float32)
    path.with_name("config.json").unlink()
    with pytest.raises(ValueError, match=r"'.*text_encoder' is incomplete; missing: 'config.json'$"):
        load(sdxl_settings(tmp_path / "other"), torch.float32)


@pytest.mark.parametrize("layout", ["in a checkpoint", "without prefix", "diffusers file", "diffusers folder"])
def test_a_different_vae_replaces_the_models_own(
    layout: str, miniature: Any, components: Components, folder: Path, file: dict[str, Tensor], tmp_path: Path
) -> None:
    prefix = "first_stage_model."
    changed = {k: t + 1 if k.startswith(prefix) else t for k, t in file.items()}
    states = {
        "in a checkpoint": changed,
        "without prefix": {k.removeprefix(prefix): t for k, t in changed.items() if k.startswith(prefix)},
        "diffusers file": {name: t + 1 for name, t in components.vae.state_dict().items()},
    }
    vae = _write(tmp_path / "vae.safetensors", states[layout]) if layout in states else folder
    other = load(sdxl_settings(miniature.checkpoint, vae=str(vae)), torch.float32)
    _same(checkpoint_tensors(other), file if layout == "diffusers folder" else changed)


def test_a_model_without_its_own_vae_needs_the_option(miniature: Any, file: dict[str, Tensor], tmp_path: Path) -> None:
    bare = _write(tmp_path / "bare.safetensors", {k: t for k, t in file.items() if not k.startswith("first_stage")})
    assert SDXL.check(sdxl_settings(bare)) == [f"vae: '{bare}' contains no VAE; set vae to an SDXL VAE file"]
    assert SDXL.check(sdxl_settings(bare, vae=str(miniature.checkpoint))) == []


def test_a_complete_model_has_no_problems(miniature: Any, folder: Path) -> None:
    assert SDXL.check(sdxl_settings(miniature.checkpoint)) == []
    assert SDXL.check(sdxl_settings(folder)) == []


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        (["lora_te2_x.lora_down.weight"], "is not an SDXL checkpoint but an SDXL LoRA; to continue training a LoRA"),
        (["cond_stage_model.transformer.text_model.final_layer_norm.weight"], "but a Stable Diffusion 1.5 checkpoint"),
        (["double_blocks.0.img_attn.qkv.weight"], "is not an SDXL checkpoint but FLUX.1"),
        (["decoder.conv_in.weight"], "is not an SDXL checkpoint but a VAE; set vae to it instead"),
        (["a", "b", "c", "d"], "but something with keys such as 'a', 'b', 'c' and 1 more"),
    ],
)
def test_a_different_kind_of_file_is_named(keys: list[str], told: str, tmp_path: Path) -> None:
    path = _write(tmp_path / "other.safetensors", {key: torch.zeros(1) for key in keys})
    _both_say(path, told)


def test_missing_unknown_and_misshapen_keys_are_named(file: dict[str, Tensor], tmp_path: Path) -> None:
    unet = "model.diffusion_model."
    missing = {k: t for k, t in file.items() if not k.startswith(unet + "output_blocks.8.0.in_layers")}
    _both_say(_write(tmp_path / "missing.safetensors", missing), f"is incomplete; missing: '{unet}output_blocks.8.0.in")
    extra = {**file, unet + "zero_conv": torch.zeros(1)}
    _both_say(
        _write(tmp_path / "extra.safetensors", extra), f"is not a plain SDXL model; unknown keys: '{unet}zero_conv'"
    )
    odd = {**file, unet + "out.0.weight": torch.zeros(7)}
    _both_say(_write(tmp_path / "odd.safetensors", odd), f"has tensors of the wrong shape: '{unet}out.0.weight'")


def test_layers_with_different_inputs_are_named_before_loading(
    miniature: Any, file: dict[str, Tensor], tmp_path: Path
) -> None:
    """A .ckpt file's header has no shapes, so only opening finds them."""
    unet = "model.diffusion_model."
    first = {**file, f"{unet}input_blocks.0.0.weight": torch.zeros(32, 7, 3, 3)}
    torch.save({"state_dict": first}, tmp_path / "masked.ckpt")
    _both_say(tmp_path / "masked.ckpt", "is an SDXL model, with 7 instead of 4 input channels, which cannot be used")
    size = {**file, f"{unet}label_emb.0.0.weight": torch.zeros(128, 1280)}
    told = "reads size and pooled caption as 1280 values, but SDXL's encoders produce 1664"
    _both_say(_write(tmp_path / "size.safetensors", size), told)
    vae = {k.removeprefix("first_stage_model."): t for k, t in file.items() if k.startswith("first_stage_model.")}
    vae["encoder.conv_in.weight"] = torch.zeros(len(vae["encoder.conv_in.weight"]), 4, 3, 3)
    path = _write(tmp_path / "vae.safetensors", vae)
    (problem,) = SDXL.check(sdxl_settings(miniature.checkpoint, vae=str(path)))
    assert problem.startswith(f"vae: '{path}' is a VAE, with 4 instead of 3 input channels, which cannot be used here")


def test_a_folder_with_an_inpainting_unet_is_refused(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "other")
    path = tmp_path / "other" / f"{UNET}.safetensors"
    config = path.with_name("config.json")
    config.write_text(config.read_text().replace('"in_channels": 4', '"in_channels": 9'))
    state = safetensors.torch.load_file(path)
    _write(path, {**state, "conv_in.weight": torch.zeros(32, 9, 3, 3)})
    _both_say(tmp_path / "other", "is an SDXL inpainting model, which cannot be used here; choose an SDXL file")


def test_half_a_file_no_file_and_no_model_are_reported(miniature: Any, tmp_path: Path) -> None:
    half = tmp_path / "half.safetensors"
    half.write_bytes(miniature.checkpoint.read_bytes()[:1_000_000])
    _both_say(half, "is cut short: 1,000,000 of ")
    page = tmp_path / "page.safetensors"
    page.write_text("<!DOCTYPE html><html>not found</html>")
    _both_say(page, "is not a safetensors file")
    _both_say(tmp_path / "none.safetensors", "file or folder not found")
    _both_say(tmp_path, "model_index.json")
    _both_say(None, "not set; choose an SDXL file")


def test_a_ckpt_that_could_run_code_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "evil.ckpt"
    torch.save({"state_dict": {"a": torch.zeros(1)}, "hook": tmp_path}, path)
    with pytest.raises(ValueError, match="contains more than weights"):
        load(sdxl_settings(path), torch.float32)


def test_a_tokenizer_of_a_different_size_is_not_used(miniature: Any, file: dict[str, Tensor], tmp_path: Path) -> None:
    alone = _write(tmp_path / "alone.safetensors", file)
    with pytest.raises(ValueError, match="tokenizer_cache_dir: found no tokenizer with"):
        load(sdxl_settings(alone), torch.float32)


def test_latents_have_the_spread_of_sdxl_and_do_not_depend_on_the_batch(components: Components) -> None:
    pixels = torch.rand(3, 3, 64, 48, generator=torch.Generator().manual_seed(1)) * 2 - 1
    latents = encode_images(components, pixels)
    assert latents.shape == (3, 4, 8, 6)
    assert latents.dtype == torch.float32
    torch.testing.assert_close(encode_images(components, pixels[1:2]), latents[1:2], rtol=1e-4, atol=1e-4)
    assert decode_latents(components, latents * 0.13025).shape == pixels.shape


def test_a_vae_that_overflows_is_reported_with_the_remedy(components: Components) -> None:
    with pytest.raises(ValueError, match=r"^no_half_vae: the VAE overflowed"):
        encode_images(components, torch.full((1, 3, 16, 16), torch.inf))


def _both_say(path: Path | None, told: str) -> None:
    """`check` finds it before loading, and `load` raises the same."""
    (problem,) = SDXL.check(sdxl_settings(path))
    assert problem.startswith("pretrained_model_name_or_path: ")
    assert told in problem
    with pytest.raises(ValueError) as caught:  # noqa: PT011, the text is compared
        load(sdxl_settings(path), torch.float32)
    assert str(caught.value) == problem


def _write(path: Path, state: dict[str, Tensor]) -> Path:
    safetensors.torch.save_file({key: tensor.contiguous() for key, tensor in state.items()}, path)
    return path


def _former(key: str) -> str:
    names = {"to_q": "query", "to_k": "key", "to_v": "value", "to_out.0": "proj_attn"}
    return re.sub(r"(attentions\.0\.)(to_out\.0|to_.)", lambda found: found[1] + names[found[2]], key)


def _lend_tokenizers(miniature: Any, path: Path) -> None:
    on_device = miniature.checkpoint.with_name(f"{miniature.checkpoint.stem}_tokenizers")
    shutil.copytree(on_device, path.with_name(f"{path.stem}_tokenizers"))


def _dtypes(module: nn.Module) -> set[torch.dtype]:
    return {p.dtype for p in module.parameters()}


def _same(ours: dict[str, Tensor], file: dict[str, Tensor]) -> None:
    assert ours.keys() == file.keys()
    assert [key for key in ours if not torch.equal(ours[key], file[key])] == []


def test_norms_in_float32_round_once_before_a_convolution(miniature: Any) -> None:
    exact, plain = (
        load(sdxl_settings(miniature.checkpoint, float32_norms=on), torch.bfloat16).denoiser for on in (True, False)
    )
    assert list(exact.state_dict()) == list(plain.state_dict())
    block, other = (unet.down_blocks[0].resnets[0] for unet in (exact, plain))  # type: ignore[index, union-attr]
    norm, x = block.norm1, torch.randn(4, block.norm1.num_channels, 16, 16).bfloat16()
    normed = functional.group_norm(x.float(), norm.num_groups, norm.weight.float(), norm.bias.float(), norm.eps)
    true = functional.silu(normed)
    assert torch.equal(block.nonlinearity(norm(x)), true.bfloat16())
    rounded_twice = other.nonlinearity(other.norm1(x))
    assert rounded_twice.dtype == torch.bfloat16
    assert (true.bfloat16() - true).norm() < 0.9 * (rounded_twice - true).norm()


def test_a_run_trains_with_norms_in_float32(miniature: Any, tmp_path: Path) -> None:
    values = {"mixed_precision": "bf16", "float32_norms": True, "gradient_checkpointing": True, "max_train_steps": 2}
    run = train(miniature, tmp_path / "exact", **values)
    plain = train(miniature, tmp_path / "plain", **{**values, "float32_norms": None})
    assert run.losses == pytest.approx(plain.losses, rel=0.02)
    assert run.losses != plain.losses


def test_norms_of_a_compiled_model_are_unchanged(miniature: Any) -> None:
    values = {"mixed_precision": "bf16", "float32_norms": True, "compile": True}
    settings = from_values(SDXL_LORA, {"pretrained_model_name_or_path": str(miniature.checkpoint), **values})
    assert "float32_norms: has no effect with compile, which rounds once anyway" in preflight.remarks(settings)
    norm = load(settings, torch.bfloat16).denoiser.down_blocks[0].resnets[0].norm1  # type: ignore[index, union-attr]
    assert type(norm) is nn.GroupNorm
