"""Loading Qwen-Image: every layout of its files gives the same model, and wrong files are reported in one sentence
each."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor

from sd_scripts.data.sources.captions import Caption
from sd_scripts.families.cards.model_file import describe, recognise
from sd_scripts.families.common.family import Components, TextOptions
from sd_scripts.families.common.placing import placement_of
from sd_scripts.families.flux.family import FLUX
from sd_scripts.families.qwen_image.card import CARD, ENCODERS
from sd_scripts.families.qwen_image.family import QWEN_IMAGE
from sd_scripts.families.qwen_image.load import BLOCK_LISTS
from sd_scripts.families.qwen_image.model import QwenImageParams
from sd_scripts.families.qwen_image.objective import predict
from sd_scripts.families.qwen_image.text import TEMPLATE, encode_text, tokenize
from sd_scripts.families.qwen_image.tiny import PARAMS
from sd_scripts.formats.models.safetensors_header import Header
from sd_scripts.library.diffusion.block_swap import SLOTS
from sd_scripts.library.quantization.quantized import QuantizedLinear, dequantized
from sd_scripts.library.text.tokenizers import QWEN, shipped_qwen
from sd_scripts.settings.checks.model_files import CHECKS
from sd_scripts.settings.settings import Settings
from tests.support.scripts import FLUX_LORA, QWEN_IMAGE_LORA

pytestmark = pytest.mark.run

MODEL = "pretrained_model_name_or_path"
REFERENCE = json.loads((Path(__file__).parents[2] / "reference/qwen_image.json").read_text())
E4M3 = torch.float8_e4m3fn
State = dict[str, Tensor]


def settings_of(**values: Any) -> Settings:
    return Settings(QWEN_IMAGE_LORA, values)


def load(given: dict[str, str], dtype: torch.dtype = torch.float32, **values: Any) -> Components:
    """All components, after the check found nothing."""
    settings = settings_of(**given, **values)
    assert QWEN_IMAGE.check(settings) == []
    return QWEN_IMAGE.open(settings, dtype).load()


@pytest.fixture(scope="module")
def files(qwen_image_miniature: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """With the tokenizer where any file finds it."""
    cache = tmp_path_factory.mktemp("cache")
    shutil.copytree(tokenizer_of(qwen_image_miniature), cache / QWEN.cache_folder)
    paths = {option: str(path) for option, path in qwen_image_miniature.files.items()}
    return {**paths, "tokenizer_cache_dir": str(cache)}


@pytest.fixture(scope="module")
def components(files: dict[str, str]) -> Components:
    return load(files)


@pytest.fixture(scope="module")
def states(files: dict[str, str]) -> dict[str, State]:
    return {option: safetensors.torch.load_file(files[option]) for option in (MODEL, "text_encoder", "vae")}


@pytest.fixture(scope="module")
def folder(states: dict[str, State], qwen_image_miniature: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A diffusers folder; the text encoder has the names that the official one has."""
    path = tmp_path_factory.mktemp("diffusers")
    write_shards(path / "transformer", states[MODEL])
    write(path / "text_encoder/model.safetensors", as_before(states["text_encoder"]))
    write(path / "vae/diffusion_pytorch_model.safetensors", states["vae"])
    shutil.copytree(tokenizer_of(qwen_image_miniature), path / "tokenizer")
    (path / "model_index.json").write_text(json.dumps({"_class_name": "QwenImagePipeline"}))
    return path


def tokenizer_of(miniature: Any) -> Path:
    return miniature.checkpoint.with_name(f"{miniature.checkpoint.stem}_tokenizers") / "tokenizer"


def as_before(state: State) -> State:
    """The text encoder's tensors under the names of the official and of ComfyUI's files."""
    renames = (("model.visual.", "visual."), ("model.language_model.", "model."))
    found = {}
    for key, tensor in state.items():
        for now, before in renames:
            key = before + key.removeprefix(now) if key.startswith(now) else key
        found[key] = tensor
    return found


def single_file_vae(state: State) -> State:
    """A miniature's VAE under the names of ComfyUI's file: one residual block less in each level than at full size."""
    there = {ours: theirs for theirs, ours in REFERENCE["vae"]["single_file"].items()}
    found = {}
    for key, tensor in state.items():
        parts = key.split(".")
        if parts[:2] == ["decoder", "up_blocks"]:
            level, place = int(parts[2]), 2 if parts[3] == "upsamplers" else int(parts[4])
            resnet = there[".".join(["decoder", "up_blocks", "1", "resnets", "0", *parts[5:]])] if place < 2 else ""
            ending = resnet.split(".", 3)[3] if resnet else ".".join(parts[5:])
            found[f"decoder.upsamples.{3 * level + place}.{ending}"] = tensor
        elif parts[:2] == ["encoder", "down_blocks"]:
            like = there.get(".".join([*parts[:2], "3", *parts[3:]])) or there[".".join([*parts[:2], "5", *parts[3:]])]
            found[f"encoder.downsamples.{parts[2]}.{like.split('.', 3)[3]}"] = tensor
        else:
            found[there[key]] = tensor
    return found


def write(path: Path, state: State) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    safetensors.torch.save_file({key: tensor.contiguous().clone() for key, tensor in state.items()}, path)
    return str(path)


def write_shards(folder: Path, state: State) -> str:
    names = {key: f"diffusion_pytorch_model-0000{n % 2 + 1}-of-00002.safetensors" for n, key in enumerate(state)}
    for name in set(names.values()):
        write(folder / name, {key: tensor for key, tensor in state.items() if names[key] == name})
    index = folder / "diffusion_pytorch_model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": names}))
    return str(folder)


def same(ours: Components, others: Components) -> None:
    pairs = [
        (ours.denoiser, others.denoiser),
        (ours.vae, others.vae),
        *zip(ours.text_encoders, others.text_encoders, strict=True),
    ]
    for one, other in pairs:
        expected = other.state_dict()
        assert one.state_dict().keys() == expected.keys()
        assert all(torch.equal(tensor, expected[name]) for name, tensor in one.state_dict().items())


def test_the_files_are_read_unchanged(components: Components, states: dict[str, State]) -> None:
    assert all(torch.equal(states[MODEL][name], tensor) for name, tensor in components.denoiser.state_dict().items())
    encoder = components.text_encoders[0].state_dict()
    assert all(torch.equal(states["text_encoder"][f"model.language_model.{name}"], t) for name, t in encoder.items())
    for module in (components.denoiser, components.vae, *components.text_encoders):
        assert not module.training
        assert not any(tensor.is_meta for tensor in (*module.parameters(), *module.buffers()))


def test_every_layout_of_the_files_is_the_same_model(
    files: dict[str, str], states: dict[str, State], folder: Path, components: Components, tmp_path: Path
) -> None:
    prefixed = {f"model.diffusion_model.{key}": tensor for key, tensor in states[MODEL].items()}
    encoder, vae = as_before(states["text_encoder"]), single_file_vae(states["vae"])
    whole = prefixed | {f"text_encoders.qwen25_7b.transformer.{key}": tensor for key, tensor in encoder.items()}
    whole |= {f"vae.{key}": tensor for key, tensor in vae.items()}
    cache = {"tokenizer_cache_dir": files["tokenizer_cache_dir"]}
    same(load(files | {MODEL: write(tmp_path / "prefixed.safetensors", prefixed)}), components)
    same(load(files | {MODEL: str(folder / "transformer")}), components)
    first = next((folder / "transformer").glob("*-00001-of-00002.safetensors"))
    same(load(files | {MODEL: str(first)}), components)
    comfy = {
        "text_encoder": write(tmp_path / "encoder.safetensors", encoder),
        "vae": write(tmp_path / "vae.safetensors", vae),
    }
    same(load(files | comfy), components)
    same(load({MODEL: str(folder)}), components)
    same(load({MODEL: write(tmp_path / "whole.safetensors", whole), **cache}), components)
    parts = {"text_encoder": str(folder / "text_encoder"), "vae": str(folder)}
    same(load(files | parts), components)


@pytest.mark.parametrize("scaled", [False, True], ids=["cast", "scaled"])
def test_fp8_files_stay_fp8_where_asked_and_are_widened_else(
    scaled: bool, files: dict[str, str], states: dict[str, State], tmp_path: Path
) -> None:
    given = {}
    for option in (MODEL, "text_encoder"):
        state = as_before(states[option])
        for key, tensor in list(state.items()):
            if key.endswith(".weight") and tensor.ndim == 2 and ("blocks." in key or "layers." in key):
                factor = tensor.abs().amax() / 448 if scaled else torch.tensor(1.0)
                state[key] = (tensor / factor).to(E4M3)
                if scaled:
                    state[key.removesuffix("weight") + "scale_weight"] = factor
        given[option] = write(tmp_path / f"{option}.safetensors", state)
    wide, held = load(files | given), load(files | given, fp8_base=True)
    for whole, kept in ((wide.denoiser, held.denoiser), (wide.text_encoders[0], held.text_encoders[0])):
        assert {p.dtype for p in whole.parameters()} == {torch.float32}
        assert E4M3 in {p.dtype for p in kept.parameters()}
    BLOCK_LISTS.place(held, placement_of(settings_of(fp8_base=True)), torch.device("cpu"))
    layers = {name: layer for name, layer in held.denoiser.named_modules() if isinstance(layer, QuantizedLinear)}
    assert len(layers) == 14 * PARAMS.blocks
    weights = wide.denoiser.state_dict()
    for name, layer in layers.items():
        torch.testing.assert_close(dequantized(layer), weights[f"{name}.weight"])
    assert sum(isinstance(layer, QuantizedLinear) for layer in held.text_encoders[0].modules()) == 2 * 7
    captions = ["a red circle"]
    texts = [
        encode_text(each, tokenize(each, [*map(Caption, captions)], TextOptions.of(settings_of())))
        for each in (wide, held)
    ]
    torch.testing.assert_close(*(text["vl_embed"] for text in texts), rtol=1e-3, atol=1e-3)
    noisy, t = torch.randn(1, 16, 4, 4), torch.tensor([0.5])
    ours, theirs = (predict(each.denoiser, noisy, t, texts[0]) for each in (held, wide))
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)


def test_with_fp8_compute_alone_modulations_keep_the_dtype_of_the_run(files: dict[str, str]) -> None:
    held = load(files, torch.bfloat16, fp8_compute=True, mixed_precision="bf16")
    BLOCK_LISTS.place(held, placement_of(settings_of(fp8_compute=True)), torch.device("cpu"))
    kinds = {name.split(".", 2)[2] for name, m in held.denoiser.named_modules() if isinstance(m, QuantizedLinear)}
    assert len(kinds) == 12
    assert not any("_mod." in kind for kind in kinds)


def test_the_shipped_vocabulary_is_qwens() -> None:
    """The numbers are from the official tokenizer, which adds 22 tokens to 151,643."""
    tokenizer = shipped_qwen()
    assert len(tokenizer) == 151_665
    assert {each["text"]: tokenizer(each["text"]).input_ids for each in REFERENCE["tokens"]["texts"]} == {
        each["text"]: each["ids"] for each in REFERENCE["tokens"]["texts"]
    }
    assert tokenizer(TEMPLATE.prefix).input_ids == REFERENCE["tokens"]["prefix"]
    assert tokenizer(TEMPLATE.suffix).input_ids == REFERENCE["tokens"]["suffix"]


def test_a_tokenizer_of_vocabulary_and_merges_is_read_as_the_official_folder_has_it(
    files: dict[str, str], components: Components, qwen_image_miniature: Any, tmp_path: Path
) -> None:
    whole = json.loads((tokenizer_of(qwen_image_miniature) / "tokenizer.json").read_text())
    place = tmp_path / QWEN.cache_folder
    place.mkdir()
    (place / "vocab.json").write_text(json.dumps(whole["model"]["vocab"]))
    (place / "merges.txt").write_text("\n".join(" ".join(pair) for pair in whole["model"]["merges"]))
    added = {each["content"]: each["id"] for each in whole["added_tokens"]}
    (place / "added_tokens.json").write_text(json.dumps(added))
    config = {"tokenizer_class": "Qwen2Tokenizer", "added_tokens_decoder": {
        str(number): {"content": token, "special": True, "lstrip": False, "rstrip": False, "normalized": False,
                      "single_word": False} for token, number in added.items()}}  # fmt: skip
    (place / "tokenizer_config.json").write_text(json.dumps(config))
    opened = QWEN_IMAGE.open(settings_of(**files | {"tokenizer_cache_dir": str(tmp_path)}), torch.float32)
    captions = ["a red circle, très «petit»", ""]
    ours, expected = (
        tokenize(each, [*map(Caption, captions)], TextOptions.of(settings_of())) for each in (opened, components)
    )
    assert torch.equal(ours[0]["ids"], expected[0]["ids"])


def header(keys: dict[str, tuple[int, ...]]) -> Header:
    return Header(metadata={}, shapes=keys, dtypes={})


TRANSFORMER = {
    "transformer_blocks.0.txt_mlp.net.0.proj.weight": (4, 4),
    "transformer_blocks.0.attn.add_k_proj.bias": (4,),
}


def test_files_are_called_by_their_names() -> None:
    """The transformer of diffusers' FLUX.1 shares keys with Qwen-Image's."""
    found = {
        "Qwen-Image": TRANSFORMER,
        "Qwen-Image-Edit-2511": {**TRANSFORMER, "__index_timestep_zero__": (0,)},
        "Qwen-Image-Layered": {**TRANSFORMER, "time_text_embed.addition_t_embedding.weight": (2, 4)},
        "Qwen2.5-VL-7B text encoder": {ENCODERS[0]: (1,), "model.layers.0.self_attn.q_proj.weight": (3584, 3584)},
        "Qwen2.5-VL text encoder": {
            ENCODERS[1]: (1,),
            "model.language_model.layers.0.self_attn.q_proj.weight": (2048, 2048),
        },
        "Qwen-Image or Wan 2.1 VAE": {"decoder.middle.0.residual.0.gamma": (4, 1, 1, 1)},
        "Qwen-Image LoRA": {"lora_unet_transformer_blocks_0_attn_add_q_proj.lora_down.weight": (4, 4)},
        "FLUX.1 schnell": {
            "single_transformer_blocks.0.proj_mlp.bias": (4,),
            "transformer_blocks.0.attn.add_k_proj.bias": (4,),
        },
        "FLUX.1 LoRA": {
            "transformer.transformer_blocks.0.attn.add_q_proj.lora_A.weight": (4, 4),
            "transformer.single_transformer_blocks.0.proj_mlp.lora_A.weight": (4, 4),
        },
    }  # fmt: skip
    assert {variant: recognise(header(keys))[1] for variant, keys in found.items()} == {each: each for each in found}
    dotted = {"transformer_blocks.0.img_mlp.net.2.lora_A.weight": (4, 4)}
    assert recognise(header(dotted)) == ("qwen_image", "Qwen-Image LoRA")


def test_folders_are_called_by_their_pipelines(tmp_path: Path) -> None:
    index = tmp_path / "model_index.json"
    for pipeline, family, variant in (
        ("QwenImagePipeline", "qwen_image", "Qwen-Image diffusers folder"),
        ("QwenImageEditPlusPipeline", "qwen_image_edit", "Qwen-Image-Edit-2509 diffusers folder"),
        ("QwenImageLayeredPipeline", None, "Qwen-Image-Layered diffusers folder"),
    ):
        index.write_text(json.dumps({"_class_name": pipeline}))
        found = describe(tmp_path)
        assert (found.family, found.variant) == (family, variant)


def both_say(given: dict[str, str], told: str) -> None:
    """`check` finds it before loading, and opening raises the same."""
    (problem,) = QWEN_IMAGE.check(settings_of(**given))
    assert told in problem
    assert "\n" not in problem
    with pytest.raises(ValueError) as caught:  # noqa: PT011, the text is compared
        QWEN_IMAGE.open(settings_of(**given), torch.float32)
    assert str(caught.value) == problem


def test_wrong_files_are_reported_in_one_sentence(
    files: dict[str, str], states: dict[str, State], flux_miniature: Any, miniature: Any, tmp_path: Path
) -> None:
    def given(option: str, state: State) -> dict[str, str]:
        return files | {option: write(tmp_path / f"{len(list(tmp_path.iterdir()))}.safetensors", state)}

    flux = {option: str(path) for option, path in flux_miniature.files.items()}
    both_say(
        files | {MODEL: flux[MODEL]}, "is not a Qwen-Image transformer but FLUX.1 dev; train FLUX.1 with flux_train"
    )
    both_say(
        files | {MODEL: str(miniature.checkpoint)}, "but an SDXL checkpoint; train SDXL with sdxl_train_network.py"
    )
    both_say(files | {MODEL: files["vae"]}, "but a Qwen-Image or Wan 2.1 VAE; set vae to it instead")
    both_say(files | {"text_encoder": flux["t5xxl"]}, "is not the Qwen2.5-VL-7B text encoder but a T5 text encoder")
    both_say(files | {"vae": flux["ae"]}, "is not Qwen-Image's VAE but a FLUX.1 autoencoder")
    edit = {**states[MODEL], "__index_timestep_zero__": torch.zeros(1)}
    both_say(given(MODEL, edit), "is not a Qwen-Image transformer but Qwen-Image-Edit-2511; train Qwen-Image-Edit with")
    narrow = {key: tensor[..., :64] if key.startswith("txt_in.w") else tensor for key, tensor in states[MODEL].items()}
    narrow["txt_norm.weight"] = narrow["txt_norm.weight"][:64]
    both_say(
        given(MODEL, narrow), "produces vectors of 128 values, but the transformer expects 64; choose the Qwen2.5-VL"
    )
    layered = dict(states["vae"])
    for key in ("encoder.conv_in.weight", "decoder.conv_out.weight", "decoder.conv_out.bias"):
        axis = 1 if "conv_in" in key else 0
        layered[key] = torch.cat((layered[key], layered[key].narrow(axis, 0, 1)), dim=axis)
    both_say(given("vae", layered), "is the VAE of Qwen-Image-Layered")
    missing = {key: tensor for key, tensor in states[MODEL].items() if key != "transformer_blocks.1.attn.to_q.bias"}
    both_say(given(MODEL, missing), "is incomplete; missing: 'transformer_blocks.1.attn.to_q.bias'")
    del missing["img_in.weight"]
    both_say(given(MODEL, missing), "is incomplete; missing: 'img_in.weight'")
    both_say(
        {MODEL: files[MODEL], "vae": files["vae"]}, "contains no Qwen2.5-VL text encoder; set text_encoder to its file"
    )


def test_a_qwen_image_file_in_the_field_of_flux_is_reported(files: dict[str, str], flux_miniature: Any) -> None:
    flux = {option: str(path) for option, path in flux_miniature.files.items()}
    settings = Settings(FLUX_LORA, flux | {MODEL: files[MODEL]})
    (problem,) = FLUX.check(settings)
    assert "is not a FLUX.1 transformer but Qwen-Image; train Qwen-Image with qwen_image_train_network.py" in problem
    found = [text for check in CHECKS for text in check(settings)]
    assert found == [
        f"{MODEL}: '{files[MODEL]}' is Qwen-Image, not a base model for FLUX.1; "
        "choose the model family Qwen-Image, or run qwen_image_train_network.py instead"
    ]


def test_a_network_that_adapts_nothing_is_reported_before_loading(files: dict[str, str]) -> None:
    nothing = {"network_args": ["exclude_patterns=['.*']"], "network_train_unet_only": True}
    (problem,) = QWEN_IMAGE.check(settings_of(**files, **nothing))
    assert problem == "network_args: all ranks or learning rates are 0, so nothing would be trained"


def test_more_blocks_than_can_be_swapped_are_reported(files: dict[str, str]) -> None:
    (problem,) = QWEN_IMAGE.check(settings_of(**files, blocks_to_swap=4))
    assert problem == ("blocks_to_swap: 4 exceeds 3, the most that a model with 5 blocks can swap; set 3 or less")
    assert CARD.plan.memory
    assert CARD.plan.memory.most_swapped == QwenImageParams().blocks - SLOTS == 58
    assert "58" in CARD.notes["blocks_to_swap"]
