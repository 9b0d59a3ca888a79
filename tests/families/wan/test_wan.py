"""Wan's transformer, VAE, text encoder and LoRA names against diffusers, transformers and the official layout."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import AutoencoderKLWan, WanTransformer3DModel
from torch import Tensor
from transformers import UMT5Config, UMT5EncoderModel

from sd_scripts.families.cards.model_file import recognise
from sd_scripts.families.common.autoencoder import Tile
from sd_scripts.families.common.components import Components
from sd_scripts.families.common.encoders.causal_vae import decode_clip, encode_clip, statistics, tiled
from sd_scripts.families.common.encoders.umt5 import MASK, STATES, encode_text, pad_text
from sd_scripts.families.wan.full_size import modules as full_size
from sd_scripts.families.wan.keys import KEYS
from sd_scripts.families.wan.load import LAYOUTS
from sd_scripts.families.wan.lora import TRANSFORMER
from sd_scripts.families.wan.model import WanParams, WanTransformer
from sd_scripts.families.wan_5b.load import LAYOUTS as LAYOUTS_5B
from sd_scripts.formats.models.safetensors_header import Header
from sd_scripts.networks.targets import adaptable
from sd_scripts.options.compile import CompileOptions

REFERENCE = json.loads((Path(__file__).parents[2] / "reference/wan.json").read_text())
OFFICIAL, DIFFUSERS = REFERENCE["official"], REFERENCE["diffusers"]
TRANSFORMERS = [name for name in OFFICIAL if name.startswith("dit.")]
Shapes = dict[str, tuple[int, ...]]


def shapes_of(table: dict[str, Any]) -> Shapes:
    """Return the shapes of a table that lists the keys of a block once."""
    shapes: Shapes = {}
    for key, shape in table["keys"].items():
        blocks = table["repeat"][key.partition(".{i}")[0]] if "{i}" in key else 1
        shapes |= {key.replace("{i}", str(number)): tuple(shape) for number in range(blocks)}
    return shapes


def empty(shapes: Shapes) -> dict[str, Tensor]:
    return {key: torch.empty(shape, device="meta") for key, shape in shapes.items()}


def shapes_in(state: dict[str, Tensor]) -> Shapes:
    return {key: tuple(tensor.shape) for key, tensor in state.items()}


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_every_transformer_has_the_official_keys_and_reads_those_of_diffusers(name: str) -> None:
    official, diffusers = shapes_of(OFFICIAL[name]), shapes_of(DIFFUSERS[name])
    with torch.device("meta"):
        assert shapes_in(WanTransformer(WanParams.of(official)).state_dict()) == official
    assert shapes_in(KEYS.from_diffusers(empty(diffusers))) == official
    assert {KEYS.diffusers_modules(key.removesuffix(".weight"))[0] for key in official if key.endswith(".weight")} == {
        key.removesuffix(".weight") for key in diffusers if key.endswith(".weight")
    }


@pytest.mark.parametrize("component", ["text_encoder1", "vae"])
def test_text_encoder_and_vae_are_read_in_both_layouts(component: str) -> None:
    for name in {"text_encoder1": ["umt5-xxl-encoder"], "vae": ["vae2.1", "vae2.2"]}[component]:
        layout = LAYOUTS_5B[component] if name == "vae2.2" else LAYOUTS[component]
        expected = shapes_of(DIFFUSERS[name])
        with torch.device("meta"):
            outlines = []
            for table in (OFFICIAL, DIFFUSERS):
                shapes = shapes_in(layout.unify(empty(shapes_of(table[name]))))
                outlines.append(shapes_in((layout.outline or layout.make)(shapes).state_dict()))
        tied = {"encoder.embed_tokens.weight": expected["shared.weight"]} if component == "text_encoder1" else {}
        assert outlines == [expected | tied] * 2


def test_every_tensor_of_the_vae_gets_the_name_that_diffusers_has_for_it() -> None:
    for name, names in REFERENCE["vae"].items():
        state = empty(shapes_of(OFFICIAL[name]))
        read = LAYOUTS["vae"].unify(state)
        assert {key: id(tensor) for key, tensor in read.items()} == {names[key]: id(state[key]) for key in state}


SIZES: dict[str, Any] = {"num_attention_heads": 2, "attention_head_dim": 12, "ffn_dim": 32, "num_layers": 2}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], int]] = {
    "text": ({}, {}, 0),
    "image": ({"image_dim": 8, "added_kv_proj_dim": 24}, {"image_width": 8}, 257),
    "two images": (
        {"image_dim": 8, "added_kv_proj_dim": 24, "pos_embed_seq_len": 6},
        {"image_width": 8, "image_tokens": 6},
        6,
    ),
}
"""Arguments of diffusers' class, ours, and the number of image features."""


def both(case: str, dtype: torch.dtype) -> tuple[Any, WanTransformer]:
    """Return diffusers' transformer and ours with its weights."""
    theirs, ours, _ = CASES[case]
    torch.manual_seed(0)
    reference: Any = WanTransformer3DModel(
        in_channels=6, out_channels=4, text_dim=16, freq_dim=256, rope_max_seq_len=64, **SIZES, **theirs
    )
    for name, parameter in reference.named_parameters():
        parameter.data.normal_(std=0.3)
        if "norm" in name and name.endswith("weight"):
            parameter.data += 1
    params = WanParams(width=24, mlp_width=32, heads=2, blocks=2, in_channels=6, channels=4, text_width=16, **ours)
    model = WanTransformer(params)
    model.load_state_dict(KEYS.from_diffusers(reference.state_dict()))
    return torch.nn.Module.to(reference, dtype), model.to(dtype)


@torch.no_grad()
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("dtype", "error"), [(torch.float32, 1e-6), (torch.bfloat16, 1e-2)])
def test_the_transformer_equals_that_of_diffusers(case: str, dtype: torch.dtype, error: float) -> None:
    """Within an error relative to the largest value: bf16 has 8 bits."""
    reference, model = both(case, dtype)
    latents, text, times = torch.randn(2, 6, 3, 4, 6).to(dtype), torch.randn(2, 512, 16), torch.tensor([0.3, 0.9])
    features = torch.randn(2, CASES[case][2], 8).to(dtype) if CASES[case][2] else None
    theirs = features.view(4, 3, 8) if case == "two images" and features is not None else features
    expected = reference(latents, 1000 * times, text.to(dtype), encoder_hidden_states_image=theirs).sample
    assert (model(latents, text, times, features) - expected).abs().max() < error * expected.abs().max()


@torch.no_grad()
def test_each_latent_frame_may_have_its_own_timestep() -> None:
    reference, model = both("text", torch.float32)
    latents, text = torch.randn(2, 6, 3, 4, 6), torch.randn(2, 512, 16)
    times = torch.tensor([[0.0, 0.5, 0.5], [0.2, 0.7, 0.7]])
    of_tokens = 1000 * times.repeat_interleave(6, dim=1)
    torch.testing.assert_close(model(latents, text, times), reference(latents, of_tokens, text).sample)


VAE_LAYOUTS = {"2.1": LAYOUTS["vae"], "2.2": LAYOUTS_5B["vae"]}
VAES: dict[str, dict[str, Any]] = {
    "2.1": {"base_dim": 8, "z_dim": 4, "latents_mean": [0.1] * 4, "latents_std": [2.0] * 4},
    "2.2": {
        **{"base_dim": 8, "decoder_base_dim": 16, "z_dim": 4, "latents_mean": [0.1] * 4, "latents_std": [2.0] * 4},
        **{"is_residual": True, "patch_size": 2, "in_channels": 12, "out_channels": 12, "scale_factor_spatial": 16},
    },
}


@torch.no_grad()
@pytest.mark.parametrize("version", VAES)
def test_the_vae_encodes_and_decodes_clips_as_in_diffusers_whole_and_in_tiles(version: str) -> None:
    torch.manual_seed(0)
    reference: Any = AutoencoderKLWan(**VAES[version]).eval()
    config = {name: VAES[version][name] for name in ("latents_mean", "latents_std")}
    vae: Any = VAE_LAYOUTS[version].make(shapes_in(reference.state_dict()))
    vae.register_to_config(**config)
    vae.load_state_dict(reference.state_dict())
    pixels = torch.rand(1, 3, 9, 64, 96) * 2 - 1  # three chunks: the first, the second and others differ
    encoded = reference.encode(pixels).latent_dist.mode()
    latents = encode_clip(vae, pixels)
    mean, std = statistics(reference, torch.device("cpu"))
    torch.testing.assert_close(latents, (encoded - mean) / std)
    whole = (reference.decode(encoded).sample / 2 + 0.5).clamp(0, 1)
    torch.testing.assert_close(decode_clip(vae, latents), whole)
    assert whole.shape == pixels.shape
    alone = encode_clip(vae, pixels[:, :, :1])
    torch.testing.assert_close(alone, latents[:, :, :1], msg="an image is the first frame of a clip")
    with tiled(vae, Tile(latents.shape[-2])):
        assert (decode_clip(vae, latents) - whole).abs().mean() < 0.05
    assert not vae.use_tiling


@torch.no_grad()
def test_states_of_umt5_are_padded_with_zeros_to_the_length_that_the_transformer_reads() -> None:
    config = UMT5Config(
        **{"vocab_size": 20, "d_model": 8, "d_kv": 4, "d_ff": 16, "num_layers": 2, "num_heads": 2},
        feed_forward_proj="gated-gelu",
    )
    encoder: Any = UMT5EncoderModel(config).eval()
    state = LAYOUTS["text_encoder1"].unify(
        {key: tensor for key, tensor in encoder.state_dict().items() if key != "encoder.embed_tokens.weight"}
    )
    ours: Any = LAYOUTS["text_encoder1"].make(shapes_in(state))
    ours.load_state_dict(state)
    ids = torch.randint(3, 20, (2, 6))
    mask = torch.tensor([[1] * 6, [1] * 4 + [0] * 2])
    components = Components(
        denoiser=torch.nn.Module(), vae=torch.nn.Module(), text_encoders=[ours.eval()], tokenizers=[], source=""
    )
    text = encode_text(components, {0: {"ids": ids, "mask": mask}})
    padded = pad_text(text, CompileOptions())[STATES]
    assert padded.shape == (2, 512, 8)
    assert text[MASK].sum(1).tolist() == [6, 4]
    for number, length in enumerate((6, 4)):
        alone = encoder(ids[number : number + 1, :length]).last_hidden_state[0]
        torch.testing.assert_close(padded[number, :length], alone)
        assert not padded[number, length:].any()


def test_lora_adapts_the_layers_of_musubi_tuner_under_its_names_and_those_of_diffusers() -> None:
    for task, table in REFERENCE["lora"].items():
        expected = shapes_of({"keys": table["targets"], "repeat": table["repeat"]})
        with torch.device("meta"):
            model = WanTransformer(WanParams.of(shapes_of(OFFICIAL[f"dit.{task}"])))
        layers: dict[str, Any] = dict(adaptable(model, TRANSFORMER, conv=False))
        assert {path: (each.in_features, each.out_features) for path, each in layers.items()} == expected
    assert TRANSFORMER.name("blocks.0.self_attn.q") == "lora_unet_blocks_0_self_attn_q"
    assert TRANSFORMER.comfyui("blocks.0.ffn.0") == "diffusion_model.blocks.0.ffn.0"
    assert TRANSFORMER.diffusers_paths is not None
    assert TRANSFORMER.diffusers_paths("blocks.1.cross_attn.o") == ("blocks.1.attn2.to_out.0",)


def test_files_are_recognised_by_their_keys() -> None:
    seen = {
        name: recognise(Header(metadata={}, shapes=shapes_of(table[name]), dtypes={}))
        for name in (
            "dit.t2v-1.3B",
            "dit.i2v-A14B",
            "dit.t2v-1.3B-FC",
            "dit.ti2v-5B",
            "vae2.2",
            "umt5-xxl-encoder",
            "vae2.1",
        )
        for table in (OFFICIAL, DIFFUSERS)
    }
    assert seen == {
        "dit.t2v-1.3B": ("wan", "Wan T2V 1.3B"),
        "dit.i2v-A14B": ("wan", "Wan I2V 14B"),
        "dit.t2v-1.3B-FC": ("wan", "Wan Fun-Control 1.3B"),
        "dit.ti2v-5B": ("wan_5b", "Wan 2.2 TI2V 5B"),
        "vae2.2": (None, "Wan 2.2 VAE"),
        "umt5-xxl-encoder": (None, "UMT5-XXL text encoder"),
        "vae2.1": (None, "Qwen-Image or Wan 2.1 VAE"),
    }
    layer = "_blocks_0_cross_attn_o.lora_down.weight"
    for key in (f"lora_unet{layer}", "diffusion_model.blocks.0.cross_attn.o.lora_A.weight"):
        assert recognise(Header(metadata={}, shapes={key: (4, 8)}, dtypes={})) == ("wan", "Wan LoRA")


def test_full_size_is_the_14b_model() -> None:
    modules = full_size(layers=1)
    assert shapes_in(modules["denoiser"].state_dict()) == shapes_of(OFFICIAL["dit.t2v-14B"])
    assert shapes_in(modules["vae"].state_dict()) == shapes_of(DIFFUSERS["vae2.1"])
