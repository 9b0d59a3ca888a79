"""Loading FLUX.1: every layout of its files gives the same model, and wrong files are reported in one sentence each."""

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from diffusers import AutoencoderKL, FluxTransformer2DModel
from torch import Tensor, nn
from transformers import CLIPTextModel, T5EncoderModel

from benchmarks.pipelines.flux import to_diffusers
from sd_scripts.families.cards.family_card import ComponentCard
from sd_scripts.families.common.family import Components
from sd_scripts.families.common.placing import placement_of
from sd_scripts.families.common.quantizing import can_be_quantized
from sd_scripts.families.flux import full_size
from sd_scripts.families.flux import keys as flux
from sd_scripts.families.flux.family import FLUX
from sd_scripts.families.flux.load import BLOCK_LISTS, LAYOUTS, T5_LINEAR
from sd_scripts.families.flux.model import FluxParams, FluxTransformer
from sd_scripts.families.flux.objective import predict
from sd_scripts.families.flux.text import encode_text
from sd_scripts.families.flux.tiny import SHAPE
from sd_scripts.families.flux.vae import encode_images
from sd_scripts.library.quantization.quantized import QuantizedLinear, dequantized
from sd_scripts.settings.settings import Settings
from tests.support.scripts import FLUX_LORA
from tests.support.training import train

pytestmark = pytest.mark.run

MODEL = "pretrained_model_name_or_path"
REFERENCE = json.loads((Path(__file__).parents[2] / "reference/flux_keys.json").read_text())
CPU = torch.device("cpu")
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2

State = dict[str, Tensor]


def load(*arguments: Any, **more: Any) -> Components:
    """All components, loaded."""
    return FLUX.open(*arguments, **more).load()


@pytest.fixture(scope="module")
def files(flux_miniature: Any) -> dict[str, str]:
    return {option: str(path) for option, path in flux_miniature.files.items()}


@pytest.fixture(scope="module")
def components(files: dict[str, str]) -> Components:
    return load(flux_settings(**files), torch.float32)


@pytest.fixture(scope="module")
def transformer(files: dict[str, str]) -> State:
    return safetensors.torch.load_file(files[MODEL])


@pytest.fixture(scope="module")
def folder(components: Components, flux_miniature: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The miniature as diffusers and transformers write it."""
    path = tmp_path_factory.mktemp("diffusers")
    _write(path / "transformer/diffusion_pytorch_model.safetensors", to_diffusers(components.denoiser.state_dict()))
    for part, module in {"text_encoder": 0, "text_encoder_2": 1}.items():
        components.text_encoders[module].save_pretrained(path / part)
    components.vae.save_pretrained(path / "vae")
    for name in ("tokenizer", "tokenizer_2"):
        shutil.copytree(_tokenizers(flux_miniature.checkpoint) / name, path / name)
    (path / "model_index.json").write_text(json.dumps({"_class_name": "FluxPipeline"}))
    return path


def test_every_key_of_diffusers_has_its_place_in_the_original_file() -> None:
    expected = _spread(REFERENCE["map"])
    assert len(expected) == 1160
    assert {name: list(flux.bfl_key(name)) for name in expected} == expected


@pytest.mark.parametrize(
    ("part", "count"),
    list(zip(FLUX.card.files.components, (780, 196, 220, 244), strict=True)),
    ids=lambda value: getattr(value, "name", ""),
)
def test_the_files_of_the_field_fill_modules_of_their_sizes(part: ComponentCard, count: int) -> None:
    name, layout = "transformer" if part.name == "denoiser" else part.option, LAYOUTS[part.name]
    file = {key: torch.empty(shape, device="meta") for key, (shape,) in _spread_shapes(name).items()}
    assert len(file) == count
    file = layout.unify({key.removeprefix(part.prefix_in(file) or ""): tensor for key, tensor in file.items()})
    with torch.device("meta"):
        module = layout.make({key: tuple(tensor.shape) for key, tensor in file.items()})
    state = module.state_dict()
    named = layout.read(file, state)
    assert state.keys() == named.keys()
    of_benchmark = full_size.modules()[part.name].state_dict()
    assert {name: t.shape for name, t in state.items()} == {name: t.shape for name, t in of_benchmark.items()}
    assert [name for name in state if state[name].shape != named[name].shape] == []


def test_the_shapes_identify_dev_and_schnell_and_their_sizes() -> None:
    shapes = {key: tuple(shape) for key, (shape,) in _spread_shapes("transformer").items()}
    assert FluxParams.of(shapes) == FluxParams()
    for key in REFERENCE["schnell_missing"]:
        del shapes[key]
    assert FluxParams.of(shapes) == FluxParams(guidance=False)


def test_the_forward_equals_diffusers_in_float32_and_in_bfloat16() -> None:
    torch.manual_seed(0)
    theirs = FluxTransformer2DModel(
        patch_size=1,
        in_channels=64,
        num_layers=2,
        num_single_layers=3,
        attention_head_dim=32,
        num_attention_heads=2,
        joint_attention_dim=48,
        pooled_projection_dim=40,
        guidance_embeds=True,
        axes_dims_rope=(4, 14, 14),
    )
    state = flux.from_diffusers(theirs.state_dict())
    ours = FluxTransformer(FluxParams.of({key: tuple(tensor.shape) for key, tensor in state.items()}))
    ours.load_state_dict(state)
    _same(to_diffusers(state), theirs.state_dict())

    rows, columns, tokens = 4, 6, 5
    img, txt, pooled = torch.randn(2, rows * columns, 64), torch.randn(2, tokens, 48), torch.randn(2, 40)
    times, guidance = torch.tensor([0.3, 0.777]), torch.tensor([1.0, 3.5])
    ids = torch.zeros(rows * columns, 3)
    ids[:, 1] = torch.arange(rows).repeat_interleave(columns)
    ids[:, 2] = torch.arange(columns).repeat(rows)
    with torch.no_grad():
        whole = theirs(img, txt, pooled, times, ids, torch.zeros(tokens, 3), guidance, return_dict=False)[0]
        torch.testing.assert_close(
            ours(img, txt, pooled, times, guidance, (rows, columns)), whole, rtol=1e-4, atol=1e-5
        )
        half = ours.bfloat16()(img, txt, pooled, times, guidance, (rows, columns)).float()
        texts = (txt.bfloat16(), pooled.bfloat16(), times, ids, torch.zeros(tokens, 3), guidance)
        theirs_half = theirs.bfloat16()(img.bfloat16(), *texts, return_dict=False)[0].float()
    ours_off, theirs_off = ((out - whole).norm() / whole.norm() for out in (half, theirs_half))
    assert ours_off < 0.02
    assert ours_off < 1.2 * theirs_off


def test_the_files_are_read_unchanged(components: Components, transformer: State, files: dict[str, str]) -> None:
    _same(components.denoiser.state_dict(), transformer)
    _same(LAYOUTS["vae"].write(components.vae.state_dict()), safetensors.torch.load_file(files["ae"]))
    clip = {f"text_model.{name}": tensor for name, tensor in components.text_encoders[0].state_dict().items()}
    _same(clip, safetensors.torch.load_file(files["clip_l"]))
    t5 = {"encoder.embed_tokens.weight": None, **safetensors.torch.load_file(files["t5xxl"])}
    assert components.text_encoders[1].state_dict().keys() == t5.keys()
    assert components.extras == {"variant": "dev", "guidance": True, "t5_length": 512, "apply_t5_attn_mask": False}
    assert components.source == Path(files[MODEL])


@pytest.mark.parametrize("layout", ["all in one", "diffusers file", "transformer folder", "shards", "sft", "ckpt"])
def test_every_layout_of_the_transformer_is_the_same_model(
    layout: str, files: dict[str, str], transformer: State, folder: Path, flux_miniature: Any, tmp_path: Path
) -> None:
    theirs = to_diffusers(transformer)
    if layout == "all in one":
        path = _write(tmp_path / "one.safetensors", {f"model.diffusion_model.{k}": t for k, t in transformer.items()})
    elif layout == "diffusers file":
        path = _write(tmp_path / "file.safetensors", theirs)
    elif layout == "transformer folder":
        path = folder / "transformer"
    elif layout == "shards":
        path = _write_shards(tmp_path / "shards", theirs)
    elif layout == "sft":
        path = _write(tmp_path / "flux1-dev.sft", transformer)
    else:
        path = tmp_path / "flux.ckpt"
        torch.save({"state_dict": transformer}, path)
    settings = flux_settings(**files | {MODEL: str(path), "tokenizer_cache_dir": _cached(flux_miniature, tmp_path)})
    assert FLUX.check(settings) == []
    _same(load(settings, torch.float32).denoiser.state_dict(), transformer)


def test_a_diffusers_folder_needs_no_other_files(folder: Path, components: Components) -> None:
    settings = flux_settings(**{MODEL: str(folder)})
    assert FLUX.check(settings) == []
    _same_parts(load(settings, torch.float32), components)


def test_a_file_of_all_parts_needs_no_other_files(
    files: dict[str, str], components: Components, flux_miniature: Any, tmp_path: Path
) -> None:
    prefixes = {
        MODEL: "model.diffusion_model.",
        "clip_l": "text_encoders.clip_l.transformer.",
        "t5xxl": "text_encoders.t5xxl.transformer.",
        "ae": "vae.",
    }
    whole = {
        prefix + key: tensor
        for option, prefix in prefixes.items()
        for key, tensor in safetensors.torch.load_file(files[option]).items()
    }
    whole["text_encoders.clip_l.logit_scale"] = torch.tensor(4.6)
    path = _write(tmp_path / "whole.safetensors", whole)
    settings = flux_settings(**{MODEL: str(path), "tokenizer_cache_dir": _cached(flux_miniature, tmp_path)})
    assert FLUX.check(settings) == []
    _same_parts(load(settings, torch.float32), components)


def test_keys_of_a_compiled_model_are_read(
    files: dict[str, str], transformer: State, components: Components, flux_miniature: Any, tmp_path: Path
) -> None:
    """Of a model that was compiled whole, and of one whose blocks were."""
    blocks = {re.sub(r"(_blocks\.\d+\.)", r"\1_orig_mod.", key): tensor for key, tensor in transformer.items()}
    cached = _cached(flux_miniature, tmp_path)
    for state in ({f"_orig_mod.{key}": tensor for key, tensor in transformer.items()}, blocks):
        given = {MODEL: str(_write(tmp_path / "compiled.safetensors", state)), "tokenizer_cache_dir": cached}
        assert FLUX.check(flux_settings(**files | given)) == []
        _same_parts(load(flux_settings(**files | given), torch.float32), components)


def test_encoders_are_read_from_other_layouts(
    files: dict[str, str], folder: Path, components: Components, flux_miniature: Any, tmp_path: Path
) -> None:
    clip = {key.removeprefix("text_model."): t for key, t in safetensors.torch.load_file(files["clip_l"]).items()}
    t5 = safetensors.torch.load_file(files["t5xxl"])
    t5["encoder.embed_tokens.weight"] = t5.pop("shared.weight")
    given = {
        "clip_l": str(_write(tmp_path / "clip.safetensors", clip)),
        "t5xxl": str(_write(tmp_path / "t5.safetensors", t5)),
        "ae": str(_write(tmp_path / "vae.safetensors", components.vae.state_dict())),
    }
    _same_parts(load(flux_settings(**files | given), torch.float32), components)
    folders = {"clip_l": str(folder / "text_encoder"), "t5xxl": str(folder), "ae": str(folder / "vae")}
    _same_parts(load(flux_settings(**files | folders), torch.float32), components)


def test_encoders_and_autoencoder_equal_their_makers(components: Components, folder: Path) -> None:
    clip, t5 = components.text_encoders
    ids = torch.tensor([[3, 4, 5, clip.config.eos_token_id]])  # type: ignore[union-attr]
    pixels = torch.rand(1, 3, 32, 32) * 2 - 1
    with torch.no_grad():
        theirs: Any = CLIPTextModel.from_pretrained(folder / "text_encoder").eval()
        torch.testing.assert_close(clip(ids).pooler_output, theirs(ids).pooler_output)
        theirs = T5EncoderModel.from_pretrained(folder / "text_encoder_2").eval()
        ids = torch.tensor([[3, 4, 5, 1]])
        torch.testing.assert_close(t5(ids).last_hidden_state, theirs(ids).last_hidden_state)
        theirs = AutoencoderKL.from_pretrained(folder / "vae").eval()
        torch.testing.assert_close(
            encode_images(components, pixels), (theirs.encode(pixels).latent_dist.mode() - 0.1159) * 0.3611
        )


def test_everything_is_frozen_in_eval_mode_in_memory_and_in_the_requested_dtype(files: dict[str, str]) -> None:
    half = load(flux_settings(**files), torch.bfloat16)
    for module in (half.denoiser, half.vae, *half.text_encoders):
        assert not module.training
        assert not any(p.requires_grad or p.is_meta for p in module.parameters())
        assert not any(buffer.is_meta for buffer in module.buffers())
        assert {p.dtype for p in module.parameters()} == {torch.bfloat16}
    words = half.text_encoders[1].get_input_embeddings().weight  # type: ignore[operator]
    assert half.text_encoders[1].encoder.embed_tokens.weight is words  # type: ignore[union-attr]


@pytest.mark.parametrize(("swap", "where"), [(0, "meta"), (2, "cpu")])
def test_a_transformer_whose_blocks_swap_is_not_loaded_to_the_device(
    swap: int, where: str, files: dict[str, str]
) -> None:
    components = load(flux_settings(**files, blocks_to_swap=swap), torch.float32, "meta")
    assert {p.device.type for p in components.denoiser.parameters()} == {where}
    for module in (components.vae, *components.text_encoders):
        assert {p.device.type for p in module.parameters()} == {"meta"}


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux which memory is mapped from a file")
def test_weights_of_the_right_dtype_stay_in_the_mapped_file(files: dict[str, str], components: Components) -> None:
    spans = [
        line.split()[0].split("-") for line in Path("/proc/self/maps").read_text().splitlines() if files[MODEL] in line
    ]
    mapped = [(int(start, 16), int(end, 16)) for start, end in spans]
    weights = [p for p in components.denoiser.parameters() if p.ndim > 1]
    assert all(any(start <= p.data_ptr() < end for start, end in mapped) for p in weights)


def test_without_mmap_it_is_the_same_model(files: dict[str, str], components: Components) -> None:
    _same_parts(load(flux_settings(**files, disable_mmap_load_safetensors=True), torch.float32), components)


def test_the_file_identifies_schnell(
    files: dict[str, str], transformer: State, flux_miniature: Any, tmp_path: Path
) -> None:
    path = _schnell(transformer, tmp_path)
    cached = _cached(flux_miniature, tmp_path)
    schnell = load(flux_settings(**files | {MODEL: str(path), "tokenizer_cache_dir": cached}), torch.float32)
    assert schnell.extras == {"variant": "schnell", "guidance": False, "t5_length": 256, "apply_t5_attn_mask": False}
    asked = {MODEL: str(path), "tokenizer_cache_dir": cached, "t5xxl_max_token_length": 77, "apply_t5_attn_mask": True}
    extras = load(flux_settings(**files | asked), torch.float32).extras
    assert (extras["t5_length"], extras["apply_t5_attn_mask"]) == (77, True)


def test_fp8_files_stay_fp8_where_asked_and_are_widened_else(
    files: dict[str, str], transformer: State, flux_miniature: Any, tmp_path: Path
) -> None:
    path = _write(tmp_path / "fp8.safetensors", {key: tensor.to(E4M3) for key, tensor in transformer.items()})
    given = files | {MODEL: str(path), "tokenizer_cache_dir": _cached(flux_miniature, tmp_path)}
    wide = load(flux_settings(**given), torch.bfloat16).denoiser.state_dict()
    assert {tensor.dtype for tensor in wide.values()} == {torch.bfloat16}
    for option in ("fp8_base", "fp8_base_unet", "fp8_compute"):
        held = load(flux_settings(**given, **{option: True}), torch.bfloat16).denoiser.state_dict()
        blocks = {key for key, tensor in held.items() if "_blocks." in key and tensor.ndim == 2}
        assert {key for key, tensor in held.items() if tensor.dtype == E4M3} == blocks
        _same({key: tensor.bfloat16() for key, tensor in held.items()}, wide)


def test_e5m2_is_widened_always(files: dict[str, str], transformer: State, flux_miniature: Any, tmp_path: Path) -> None:
    path = _write(tmp_path / "fp8.safetensors", {key: tensor.to(E5M2) for key, tensor in transformer.items()})
    given = files | {MODEL: str(path), "tokenizer_cache_dir": _cached(flux_miniature, tmp_path)}
    held = load(flux_settings(**given, fp8_base=True), torch.bfloat16).denoiser.state_dict()
    _same(held, {key: tensor.to(E5M2).bfloat16() for key, tensor in transformer.items()})


@pytest.mark.parametrize("names", [("scale_weight", "scale_input", "scaled_fp8"), ("weight_scale", "input_scale", "")])
def test_fp8_files_with_scales_are_multiplied_out(
    names: tuple[str, str, str], files: dict[str, str], tmp_path: Path
) -> None:
    weight_scale, input_scale, marker = names
    plain = safetensors.torch.load_file(files["t5xxl"])
    scaled = dict(plain)
    for key in plain:
        if ".SelfAttention." in key and "relative" not in key:
            layer = key.removesuffix("weight")
            scaled[key] = (plain[key] * 16).to(E4M3)
            scaled[layer + weight_scale] = torch.tensor(1 / 16)
            scaled[layer + input_scale] = torch.tensor(1.0)
    if marker:
        scaled[marker] = torch.zeros(2, dtype=E4M3)
    path = _write(tmp_path / "scaled.safetensors", scaled)
    settings = flux_settings(**files | {"t5xxl": str(path)})
    assert FLUX.check(settings) == []
    t5 = load(settings, torch.float32).text_encoders[1].state_dict()
    expected = {k: (t * 16).to(E4M3).float() / 16 if ".SelfAttention.q" in k else t for k, t in plain.items()}
    keys = [key for key in plain if ".SelfAttention.q" in key or "layer_norm" in key]
    _same({key: t5[key] for key in keys}, {key: expected[key] for key in keys})


@pytest.mark.parametrize("scale", ["one", "rows"])
def test_fp8_files_with_scales_stay_fp8_where_asked(
    scale: str, files: dict[str, str], transformer: State, flux_miniature: Any, tmp_path: Path
) -> None:
    """With unchanged values and scales, in the transformer and in T5."""
    given = {"tokenizer_cache_dir": _cached(flux_miniature, tmp_path)}
    for option, plain in ((MODEL, transformer), ("t5xxl", safetensors.torch.load_file(files["t5xxl"]))):
        scaled = dict(plain)
        for key, tensor in plain.items():
            if "block" in key and key.endswith(".weight") and tensor.ndim == 2:
                largest = tensor.abs().amax(0 if scale == "one" else 1)
                scaled[key.removesuffix("weight") + "scale_weight"] = factor = largest.amax() / 448
                if scale == "rows":
                    scaled[key.removesuffix("weight") + "scale_weight"] = factor = largest / 448
                scaled[key] = (tensor / factor.view(-1, 1)).to(E4M3)
        given[option] = str(_write(tmp_path / f"{option}.safetensors", scaled))
    wide, held = (load(flux_settings(**files | given, fp8_base=held), torch.float32) for held in (False, True))
    for whole, kept in ((wide.denoiser, held.denoiser), (wide.text_encoders[1], held.text_encoders[1])):
        weights = whole.state_dict()
        layers = {name: part for name, part in kept.named_modules() if isinstance(part, QuantizedLinear)}
        assert len(layers) == (3 * 10 + 4 * 3 if kept is held.denoiser else 2 * 7)
        for name, layer in layers.items():
            assert layer.weight.dtype == E4M3
            _same({name: dequantized(layer)}, {name: weights[f"{name}.weight"]})
    BLOCK_LISTS.place(held, placement_of(flux_settings(fp8_base=True)), CPU)
    ids = {0: {"ids": torch.tensor([[3, 4]])}, 1: {"ids": torch.tensor([[3, 4, 1]]), "mask": torch.ones(1, 3).long()}}
    with torch.no_grad():
        texts = [encode_text(components, ids) for components in (held, wide)]
        torch.testing.assert_close(*(text["t5_out"] for text in texts), rtol=1e-4, atol=1e-4)
        noisy, one = torch.randn(1, 16, 4, 4), torch.ones(1)
        ours, theirs = (
            predict(components.denoiser, noisy, one, texts[1], one, masked=False) for components in (held, wide)
        )
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_weights_are_quantized_one_by_one_from_the_dtype_of_their_file(files: dict[str, str]) -> None:
    """Without a copy of the whole transformer in the dtype of the run, and with the same result."""
    fp8 = flux_settings(fp8_base=True)
    held, plain = (load(flux_settings(**files, fp8_base=on), torch.bfloat16).denoiser for on in (True, False))
    assert held.double_blocks[0].img_attn.qkv.weight.dtype == torch.float32
    for denoiser in (held, plain):
        BLOCK_LISTS.place(
            Components(denoiser=denoiser, vae=nn.Module(), text_encoders=[], tokenizers=[], source=""),
            placement_of(fp8),
            CPU,
        )
    assert {tensor.dtype for tensor in held.parameters()} == {E4M3, torch.bfloat16}
    _same(held.state_dict(), plain.state_dict())


def test_embeddings_are_not_quantized() -> None:
    layer, weight = "encoder.block.0.layer.0.SelfAttention", torch.zeros(32, 64, dtype=E4M3)
    assert can_be_quantized(T5_LINEAR, f"{layer}.q.weight", weight)
    assert not can_be_quantized(T5_LINEAR, f"{layer}.relative_attention_bias.weight", weight)
    assert not can_be_quantized(T5_LINEAR, "shared.weight", weight)


def test_scales_of_a_different_form_are_reported(files: dict[str, str], tmp_path: Path) -> None:
    t5, layer = safetensors.torch.load_file(files["t5xxl"]), "encoder.block.0.layer.0.SelfAttention.q."
    path = _write(tmp_path / "blocks.safetensors", t5 | {f"{layer}weight_scale": torch.ones(3, 3)})
    (problem,) = FLUX.check(flux_settings(**files | {"t5xxl": str(path)}))
    assert f"the scales of '{layer}weight' are neither one nor one for each row" in problem


def test_t5_is_stored_in_fp8_unless_only_the_transformer_should_be(
    files: dict[str, str], components: Components
) -> None:
    whole = components.text_encoders[1].state_dict()
    held = load(flux_settings(**files, fp8_base=True), torch.bfloat16).text_encoders[1]
    layers = {name: layer for name, layer in held.named_modules() if isinstance(layer, QuantizedLinear)}
    assert len(layers) == 2 * 7
    for name, layer in layers.items():
        off = dequantized(layer) - whole[f"{name}.weight"]
        assert off.norm() < 0.04 * whole[f"{name}.weight"].norm()
    only = load(flux_settings(**files, fp8_base=True, fp8_base_unet=True), torch.bfloat16).text_encoders[1]
    assert {p.dtype for p in only.parameters()} == {torch.bfloat16}


def test_in_fp16_the_layers_of_t5_that_overflow_stay_in_float32(files: dict[str, str]) -> None:
    t5 = load(flux_settings(**files), torch.float16).text_encoders[1]
    wide = {name for name, p in t5.named_parameters() if p.dtype == torch.float32}
    assert wide == {name for name, _ in t5.named_parameters() if name.endswith("DenseReluDense.wo.weight")}


def test_complete_files_have_no_problems(files: dict[str, str], folder: Path) -> None:
    assert FLUX.check(flux_settings(**files)) == []
    assert FLUX.check(flux_settings(**{MODEL: str(folder)})) == []


def test_each_missing_file_is_named_with_its_option(files: dict[str, str]) -> None:
    problems = FLUX.check(flux_settings(**{MODEL: files[MODEL]}))
    titles = {"clip_l": "CLIP text encoder", "t5xxl": "T5 text encoder", "ae": "autoencoder"}
    assert problems == [
        f"{option}: '{files[MODEL]}' contains no {title}; set {option} to its file" for option, title in titles.items()
    ]
    absent = {option: f"/absent/{option}.safetensors" for option in titles}
    assert FLUX.check(flux_settings(**{MODEL: "owner/model"}, **absent)) == [
        f"{option}: file or folder not found: '{path}'" for option, path in absent.items()
    ]


def test_files_in_each_others_fields_are_reported(files: dict[str, str]) -> None:
    mixed = {"clip_l": files["t5xxl"], "t5xxl": files["ae"], "ae": files["clip_l"]}
    problems = FLUX.check(flux_settings(**files | mixed))
    assert [problem.split(":")[0] for problem in problems] == ["clip_l", "t5xxl", "ae"]
    for problem, home in zip(problems, ("t5xxl", "ae", "clip_l"), strict=True):
        assert problem.endswith(f"; set {home} to it instead")
    (problem,) = FLUX.check(flux_settings(**files | {MODEL: files["ae"]}))
    assert "is not a FLUX.1 transformer but" in problem


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        (
            ["lora_unet_double_blocks_0_x.lora_down.weight"],
            "but a FLUX.1 LoRA; to continue training a LoRA, set network_weights",
        ),
        (
            ["conditioner.embedders.1.model.ln_final.weight"],
            "but an SDXL checkpoint; train SDXL with sdxl_train_network",
        ),
        (
            ["cond_stage_model.model.ln_final.weight"],
            "is not a FLUX.1 transformer but a Stable Diffusion 2.x checkpoint",
        ),
        (
            ["double_blocks.0.img_attn.qkv.weight", "distilled_guidance_layer.in_proj.weight"],
            "is not a FLUX.1 transformer but Chroma; train Chroma with chroma_train_network.py",
        ),
        (["double_blocks.0.img_attn.qkv.weight"], "is incomplete; missing: 'img_in.weight'"),
        (
            ["single_transformer_blocks.0.proj_mlp.bias"],
            "is incomplete: 'single_transformer_blocks.0.attn.to_q.bias' is",
        ),
        (
            ["transformer_blocks.0.txt_mlp.net.0.proj.weight"],
            "is not a FLUX.1 transformer but Qwen-Image; train Qwen-Image with qwen_image_train_network.py",
        ),
        (["a", "b", "c", "d"], "but something with keys such as 'a', 'b', 'c' and 1 more"),
    ],
)
def test_a_different_kind_of_model_is_named(keys: list[str], told: str, files: dict[str, str], tmp_path: Path) -> None:
    path = _write(tmp_path / "other.safetensors", {key: torch.zeros(1) for key in keys})
    _both_say({**files, MODEL: str(path)}, told)


def test_sdxl_in_the_field_of_flux_is_one_sentence(miniature: Any) -> None:
    (problem,) = FLUX.check(flux_settings(**{MODEL: str(miniature.checkpoint)}))
    assert "is not a FLUX.1 transformer but an SDXL checkpoint" in problem


def test_half_a_file_no_file_and_no_model_are_reported(files: dict[str, str], tmp_path: Path) -> None:
    half = tmp_path / "half.safetensors"
    half.write_bytes(Path(files[MODEL]).read_bytes()[:500_000])
    _both_say({**files, MODEL: str(half)}, "is cut short: 500,000 of ")
    _both_say({**files, MODEL: str(tmp_path / "none.safetensors")}, "file or folder not found")
    _both_say({**files, MODEL: str(tmp_path)}, "contains no weights")
    (problem,) = FLUX.check(flux_settings(**files | {"ae": str(half)}))
    assert problem.startswith("ae: ")


def test_gguf_is_reported(files: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / "flux1-dev-Q4.gguf"
    path.write_bytes(b"GGUF")
    _both_say({**files, MODEL: str(path)}, "is quantized for inference; choose the .safetensors file of the model")


def test_missing_unknown_misshapen_and_packed_tensors_are_named(
    files: dict[str, str], transformer: State, tmp_path: Path
) -> None:
    first = "single_blocks.2.linear1.weight"
    missing = {key: tensor for key, tensor in transformer.items() if key != first}
    odd, extra = transformer | {first: torch.zeros(7, 64)}, transformer | {"zero.weight": torch.zeros(1)}
    packed = transformer | {first: torch.zeros(8, dtype=torch.uint8)}
    for state, told in [
        (missing, f"is incomplete; missing: '{first}'"),
        (odd, f"has tensors of the wrong shape: '{first}'"),
        (extra, "is not a plain FLUX.1 transformer; unknown keys: 'zero.weight'"),
        (packed, f"contains packed integers instead of weights, such as '{first}'; choose the bf16, fp16 or fp8 file"),
    ]:
        _both_say({**files, MODEL: str(_write(tmp_path / "model.safetensors", state))}, told)


def test_parts_of_a_different_model_are_reported(files: dict[str, str], miniature: Any, tmp_path: Path) -> None:
    vae = {
        key.removeprefix("first_stage_model."): tensor
        for key, tensor in safetensors.torch.load_file(miniature.checkpoint).items()
        if key.startswith("first_stage_model.") and "quant_conv" not in key
    }
    sdxl = {"ae": str(_write(tmp_path / "vae.safetensors", vae))}
    told = f"ae: '{sdxl['ae']}' produces latents of 4 channels, but the transformer expects 16; "
    told += "choose the autoencoder of FLUX.1"
    assert FLUX.check(flux_settings(**files | sdxl)) == [told]
    with pytest.raises(ValueError, match="produces latents of 4 channels"):
        load(flux_settings(**files | sdxl), torch.float32)


def test_unsupported_options_are_reported_before_the_model_is_loaded(
    files: dict[str, str], transformer: State, tmp_path: Path
) -> None:
    double, single = SHAPE.double_blocks, SHAPE.single_blocks
    most = BLOCK_LISTS.most(double, single)
    assert FLUX.check(flux_settings(**files, blocks_to_swap=most)) == []
    assert FLUX.check(flux_settings(**files, blocks_to_swap=most + 1)) == [
        f"blocks_to_swap: {most + 1} exceeds {most}, the most that a model with {double} double and {single} single "
        f"blocks can swap; set {most} or less"
    ]
    assert FLUX.check(flux_settings(**files, train_double_block_indices=f"0-{double}")) == [
        f"train_double_block_indices: no such block: {double}; this model has {double} double blocks, 0 to {double - 1}"
    ]
    schnell = files | {MODEL: str(_schnell(transformer, tmp_path))}
    assert FLUX.check(flux_settings(**schnell)) == []
    assert FLUX.check(flux_settings(**schnell, guidance_scale=1.0)) == []
    assert FLUX.check(flux_settings(**schnell, guidance_scale=4.0)) == [
        "guidance_scale: FLUX.1 schnell ignores guidance, so 4 has no meaning; leave it at its default 3.5"
    ]


@pytest.mark.run
def test_settings_for_dev_train_schnell_with_a_remark(transformer: State, flux_miniature: Any, tmp_path: Path) -> None:
    schnell = {MODEL: _schnell(transformer, tmp_path), "tokenizer_cache_dir": _cached(flux_miniature, tmp_path)}
    run = train(flux_miniature, tmp_path / "out", max_train_steps=1, guidance_scale=1.0, **schnell)
    assert run.status == 0
    remark = "guidance_scale: has no effect on FLUX.1 schnell, which has no guidance"
    assert [event["text"] for event in run.events_of("warning")] == [remark]


def flux_settings(**values: Any) -> Settings:
    return Settings(FLUX_LORA, values)


def _both_say(given: dict[str, str], told: str) -> None:
    """`check` finds it before loading, and `load` raises the same."""
    (problem,) = FLUX.check(flux_settings(**given))
    assert problem.startswith(f"{MODEL}: ")
    assert told in problem
    with pytest.raises(ValueError) as caught:  # noqa: PT011, the text is compared
        load(flux_settings(**given), torch.float32)
    assert str(caught.value) == problem


def _spread(condensed: dict[str, Any]) -> dict[str, Any]:
    """`{"a.N.b": [value, 0, 2]}` -> three entries, with the number for N in key and value."""
    found = {}
    for pattern, (value, *span) in condensed.items():
        for number in range(span[0], span[1] + 1) if span else [0]:
            text = json.dumps([pattern, value]).replace(".N.", f".{number}.")
            key, filled = json.loads(text)
            found[key] = filled
    return found


def _spread_shapes(part: str) -> dict[str, Any]:
    return {key: (shape,) for key, shape in _spread(REFERENCE[part]).items()}


def _schnell(transformer: State, folder: Path) -> Path:
    state = {key: tensor for key, tensor in transformer.items() if not key.startswith("guidance_in.")}
    return _write(folder / "schnell.safetensors", state)


def _write(path: Path, state: State) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    safetensors.torch.save_file({key: tensor.contiguous().clone() for key, tensor in state.items()}, path)
    return path


def _write_shards(folder: Path, state: State) -> Path:
    names = {
        key: f"diffusion_pytorch_model-0000{number % 3 + 1}-of-00003.safetensors" for number, key in enumerate(state)
    }
    for name in set(names.values()):
        _write(folder / name, {key: tensor for key, tensor in state.items() if names[key] == name})
    index = {"metadata": {}, "weight_map": names}
    (folder / "diffusion_pytorch_model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def _tokenizers(checkpoint: Path) -> Path:
    return checkpoint.with_name(f"{checkpoint.stem}_tokenizers")


def _cached(miniature: Any, folder: Path) -> str:
    """The miniature's tokenizers, as tokenizer_cache_dir has them."""
    cache = folder / "cache"
    for name, cached in {"tokenizer": "openai_clip-vit-large-patch14", "tokenizer_2": "google_t5-v1_1-xxl"}.items():
        shutil.copytree(_tokenizers(miniature.checkpoint) / name, cache / cached)
    return str(cache)


def _same_parts(ours: Components, others: Components) -> None:
    _same(ours.denoiser.state_dict(), others.denoiser.state_dict())
    _same(ours.vae.state_dict(), others.vae.state_dict())
    for encoder, other in zip(ours.text_encoders, others.text_encoders, strict=True):
        _same(encoder.state_dict(), other.state_dict())
    assert [len(tokenizer) for tokenizer in ours.tokenizers] == [len(tokenizer) for tokenizer in others.tokenizers]


def _same(ours: State, other: State) -> None:
    assert ours.keys() == other.keys()
    assert [key for key in ours if not torch.equal(ours[key], other[key])] == []
