"""HunyuanVideo's mathematics, keys, captions and samples against diffusers and transformers, at tiny size."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import AutoencoderKLHunyuanVideo, HunyuanVideoTransformer3DModel
from safetensors.torch import load_file, save_file
from torch import Tensor

from sd_scripts.data.plan.buckets import Extent
from sd_scripts.data.sources.captions import Caption
from sd_scripts.families.cards.model_file import describe, recognise
from sd_scripts.families.common.autoencoder import Tile
from sd_scripts.families.common.components import DENOISER, VAE, Components
from sd_scripts.families.common.encoders.hunyuan_vae import decode_latents, encode_images, latent_shape, tiled
from sd_scripts.families.common.encoders.llama import (
    LLM_NAME,
    MASK,
    OUTPUTS,
    POOLED,
    PREFIX,
    STATES,
    TEMPLATE,
    encode_text,
    pad_text,
    tokenize,
)
from sd_scripts.families.common.encoders.tiny_llama import tiny_encoders
from sd_scripts.families.common.family import TextOptions
from sd_scripts.families.hunyuan_video.card import CARD
from sd_scripts.families.hunyuan_video.card.memory_facts import MEMORY, tokens
from sd_scripts.families.hunyuan_video.family import HUNYUAN_VIDEO
from sd_scripts.families.hunyuan_video.full_size import modules as full_size_modules
from sd_scripts.families.hunyuan_video.keys import KEYS
from sd_scripts.families.hunyuan_video.load import BLOCK_LISTS
from sd_scripts.families.hunyuan_video.model import HunyuanParams, HunyuanVideoTransformer
from sd_scripts.families.hunyuan_video.objective import predict
from sd_scripts.families.hunyuan_video.sampling import SHIFT, sample
from sd_scripts.formats.models.safetensors_header import Header, read_header
from sd_scripts.library.diffusion.flow_timesteps import sampling_sigmas
from sd_scripts.networks.plan import AdaptedModule, NetworkArgs, plan_layers
from sd_scripts.networks.targets import adaptable
from sd_scripts.options.compile import CompileOptions
from sd_scripts.options.generating.prompt_lines import SamplePrompt
from sd_scripts.settings.catalog import script_for
from sd_scripts.settings.reading import from_values
from sd_scripts.settings.settings import Settings

pytestmark = pytest.mark.run

REFERENCE = json.loads((Path(__file__).parents[2] / "reference/hunyuan_video.json").read_text())
MODEL = "pretrained_model_name_or_path"
PARAMS = HunyuanParams(
    channels=4,
    width=64,
    heads=2,
    mlp_width=256,
    text_width=24,
    pooled_width=16,
    refiner_blocks=2,
    double_blocks=2,
    single_blocks=2,
)
CONFIG: dict[str, Any] = {
    **{"in_channels": 4, "out_channels": 4, "num_attention_heads": 2, "attention_head_dim": 32},
    **{"num_layers": 2, "num_single_layers": 2, "text_embed_dim": 24, "pooled_projection_dim": 16},
    "rope_axes_dim": (4, 14, 14),
}
"""The same for diffusers' class."""
CAPTIONS = ["a red circle on a white background", "", "red " * 300]


def settings_of(**values: Any) -> Settings:
    return from_values(script_for("hunyuan_video", "lora"), {"learning_rate": 1e-4, **values})


def expanded(layout: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """The keys of a reference with every block."""
    found: dict[str, tuple[int, ...]] = {}
    for key, shape in layout["keys"].items():
        numbers = range(layout["repeat"][key.partition(".{i}")[0]] if "{i}" in key else 1)
        found |= {key.replace("{i}", str(number)): tuple(shape) for number in numbers}
    return found


@pytest.fixture(scope="module")
def reference() -> Any:
    """diffusers' transformer, whose layers all matter."""
    torch.manual_seed(0)
    theirs: Any = HunyuanVideoTransformer3DModel(**CONFIG)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.normal_(std=0.1)
    return theirs.eval()


@pytest.fixture(scope="module")
def ours(reference: Any) -> HunyuanVideoTransformer:
    state = KEYS.from_diffusers({key: each.clone() for key, each in reference.state_dict().items()})
    assert HunyuanParams.of({key: tuple(each.shape) for key, each in state.items()}) == PARAMS
    transformer = HunyuanVideoTransformer(PARAMS).eval()
    transformer.load_state_dict(state)
    return transformer


@pytest.fixture(scope="module")
def components(hunyuan_video_miniature: Any) -> Components:
    settings = Settings(
        script_for("hunyuan_video", "lora"), {o: str(f) for o, f in hunyuan_video_miniature.files.items()}
    )
    assert HUNYUAN_VIDEO.check(settings) == []
    return HUNYUAN_VIDEO.open(settings, torch.float32).load()


def test_at_full_size_it_has_the_tensors_of_the_official_file_and_of_diffusers() -> None:
    modules = full_size_modules()
    shapes = {name: tuple(each.shape) for name, each in modules[DENOISER].state_dict().items()}
    assert shapes == expanded(REFERENCE["official"])
    renamed = KEYS.from_diffusers(
        {k: torch.empty(s, device="meta") for k, s in expanded(REFERENCE["diffusers"]).items()}
    )
    assert {name: tuple(each.shape) for name, each in renamed.items()} == shapes
    assert HunyuanParams.of(shapes) == HunyuanParams()
    for component, module in modules.items():
        assert sum(parameter.numel() for parameter in module.parameters()) == MEMORY.values[component], component
    vae = modules[VAE].state_dict()
    assert (len(vae), sum(each.numel() for each in vae.values())) == (
        REFERENCE["vae"]["keys"],
        REFERENCE["vae"]["params"],
    )
    assert BLOCK_LISTS.most(20, 40) == MEMORY.most_swapped


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 5e-6), (torch.bfloat16, 0.05)], ids=["fp32", "bf16"])
def test_the_velocity_equals_diffusers(ours: Any, reference: Any, dtype: torch.dtype, bound: float) -> None:
    """Clips of three frames, one caption shorter than the other."""
    generator = torch.Generator().manual_seed(1)
    latents = torch.randn(2, 4, 3, 6, 10, generator=generator)
    text, pooled = torch.randn(2, 9, 24, generator=generator), torch.randn(2, 16, generator=generator)
    mask = torch.arange(9) < torch.tensor([9, 4])[:, None]
    times, guidance = torch.tensor([0.25, 0.75]), torch.full((2,), 6.0)
    with torch.no_grad():
        expected = reference.to(dtype)(
            latents.to(dtype), 1000 * times, text.to(dtype), mask, pooled.to(dtype), 1000 * guidance, return_dict=False
        )[0].float()
        found = ours.to(dtype)(latents, text, pooled, times, guidance, mask).float()
        short = ours(latents[1:], text[1:, :4], pooled[1:], times[1:], guidance[1:]).float()
    ours.float()
    reference.float()
    assert (found - expected).abs().max() < bound
    assert (short - expected[1:]).abs().max() < bound, "a single caption is read without padding and mask"
    assert expected.std() > 0.3


def test_an_image_to_video_model_reads_the_start_image_as_diffusers_pipeline_gives_it() -> None:
    """SkyReels-V1: the latents of the image follow the noisy ones, and zeros stand for all frames but the first."""
    torch.manual_seed(0)
    theirs: Any = HunyuanVideoTransformer3DModel(**{**CONFIG, "in_channels": 8}).eval()
    noisy, start = torch.randn(2, 4, 3, 6, 10), torch.randn(2, 4, 1, 6, 10)
    text = {STATES: torch.randn(2, 9, 24), POOLED: torch.randn(2, 16), MASK: torch.ones(2, 9, dtype=torch.bool)}
    times = torch.tensor([0.25, 0.75])
    state = KEYS.from_diffusers({key: each.clone() for key, each in theirs.state_dict().items()})
    params = HunyuanParams.of({key: tuple(each.shape) for key, each in state.items()})
    assert params == replace(PARAMS, image_channels=4)
    transformer = HunyuanVideoTransformer(params).eval()
    transformer.load_state_dict(state)
    padded = torch.cat((start, torch.zeros(2, 4, 2, 6, 10)), dim=2)
    with torch.no_grad():
        (expected,) = theirs(
            *(torch.cat((noisy, padded), dim=1), 1000 * times, text[STATES], text[MASK], text[POOLED]),
            *(torch.full((2,), 1000.0),),
            return_dict=False,
        )
        found = predict(transformer, noisy, times, text, 1.0, start)
    assert (found - expected).abs().max() < 5e-6


def test_a_lora_adapts_the_layers_of_musubi_tuner_under_its_names() -> None:
    transformer = full_size_modules()[DENOISER]
    target = HUNYUAN_VIDEO.lora
    for arguments, expected in (([], REFERENCE["lora"]["modules"]), (["include_patterns=['.*']"], 240 + 2 * 20 + 40)):
        args = NetworkArgs.read(settings_of(network_dim=4, network_args=arguments), lambda _: None)
        layers = plan_layers([AdaptedModule(module=transformer, target=target, lr=1.0)], args)
        assert len(layers) == expected
        if not arguments:
            names = {f"lora_unet_{name}" for name in _expanded_layers()}
            assert {layer.name for layer in layers} == names
            theirs = {f"{part}.weight" for layer in layers for part in target.diffusers_paths(layer.path)}  # type: ignore[misc]
            assert theirs <= expanded(REFERENCE["diffusers"]).keys()
            assert len(theirs) == 440, "FramePack's layers have the same names in diffusers"
            sizes = {
                target.name(path): layer.weight.shape for path, layer in adaptable(transformer, target, conv=False)
            }
            rank1 = sum(sum(sizes[layer.name]) for layer in layers)
            assert (rank1, 4 * rank1) == (MEMORY.lora[DENOISER], REFERENCE["lora"]["params_rank4"])


def _expanded_layers() -> set[str]:
    told = REFERENCE["lora"]
    return {
        layer.replace("{i}", str(number)).replace(".", "_")
        for layer in told["targets"]
        for number in range(told["repeat"][layer.partition(".")[0]])
    }


def test_the_vae_equals_diffusers_that_reads_whole_clips(components: Components) -> None:
    """Nine frames; in tiles, pieces of the clip are blended."""
    vae: Any = components.vae
    theirs: Any = AutoencoderKLHunyuanVideo(**vae.config)
    theirs.load_state_dict(vae.state_dict())
    theirs.use_framewise_encoding = theirs.use_framewise_decoding = False
    pixels = torch.randn(1, 3, 9, 32, 48, generator=torch.Generator().manual_seed(0)).clamp(-1, 1)
    with torch.no_grad():
        expected = theirs.encode(pixels).latent_dist.mode() * 0.476986
        latents = encode_images(components, pixels)
        decoded = theirs.decode(latents / 0.476986).sample
    assert tuple(latents.shape[1:]) == latent_shape(Extent(48, 32, 9)) == (16, 3, 4, 6)
    assert torch.equal(latents, expected)
    frames = decode_latents(components, latents)
    assert torch.allclose(frames, (decoded / 2 + 0.5).clamp(0, 1), atol=1e-6)
    theirs.enable_tiling(16, 16, None, 12, 12)
    with torch.no_grad(), tiled(vae, Tile(2)):
        assert torch.equal(vae.encode(pixels).latent_dist.mode(), theirs.encode(pixels).latent_dist.mode())
    assert not vae.use_tiling


@torch.no_grad()
def test_a_clip_too_large_for_memory_is_decoded_in_the_tiles_of_diffusers(components: Components) -> None:
    """In space and time: 25 frames in tiles of 16, whose ends overlap by four."""
    vae: Any = components.vae
    theirs: Any = AutoencoderKLHunyuanVideo(**vae.config)
    theirs.load_state_dict(vae.state_dict())
    theirs.enable_tiling(24, 24, 16, 18, 18, 12)
    latents = torch.randn(1, 16, 7, 4, 6, generator=torch.Generator().manual_seed(0))
    expected = (theirs.decode(latents / 0.476986).sample / 2 + 0.5).clamp(0, 1)
    tried = []

    def begin(module: Any, arguments: tuple[Any, ...]) -> None:
        tried.append(tuple(arguments[0].shape[2:]))
        if arguments[0][0, 0].numel() > 5 * 3 * 3:
            raise torch.OutOfMemoryError("CUDA out of memory")

    hook = vae.decoder.register_forward_pre_hook(begin)
    try:
        frames = decode_latents(components, latents)
    finally:
        hook.remove()
    assert tried[:3] == [(7, 4, 6), (7, 3, 3), (5, 3, 3)], "smaller, then shorter"
    assert torch.equal(frames, expected)
    assert not vae.use_tiling
    assert not vae.use_framewise_decoding


def test_text_is_the_third_hidden_state_from_the_end_after_the_template(components: Components) -> None:
    assert TEMPLATE.around("{}") == REFERENCE["template"]
    options = TextOptions.of(settings_of())
    tokens_of = tokenize(components, [Caption(text) for text in CAPTIONS], options)
    llama, clip = components.tokenizers
    whole: Any = tiny_encoders(len(llama), len(clip))[LLM_NAME].eval()
    file = load_file(components.sources[LLM_NAME].path)
    whole.load_state_dict({key.removeprefix("model."): each for key, each in file.items()})
    with torch.no_grad():
        found = encode_text(components, tokens_of)
        for number, text in enumerate(CAPTIONS[:2]):
            ids = llama(TEMPLATE.around(text), return_tensors="pt").input_ids
            states = whole(ids, output_hidden_states=True).hidden_states[-3][0, len(llama(PREFIX).input_ids) :]
            own = OUTPUTS.trim({name: each[number] for name, each in found.items()})
            assert torch.allclose(own[STATES], states, atol=1e-5)
    assert found[MASK].sum(1).tolist() == [len(states_of) for states_of in _lengths(llama)]
    assert found[POOLED].shape == (3, 64)
    assert (limit := TEMPLATE.limit(components, options)).tokens == 256
    assert limit.count is not None
    assert limit.count(["a"])[0] == 2


def _lengths(llama: Any) -> list[list[int]]:
    prefix = len(llama(PREFIX).input_ids)
    return [llama(TEMPLATE.around(text)).input_ids[prefix : prefix + 256] for text in CAPTIONS]


def test_captions_are_padded_for_compiled_blocks_alone() -> None:
    text = {STATES: torch.ones(1, 5, 8), MASK: torch.ones(1, 5).bool(), POOLED: torch.ones(1, 4)}
    assert set(pad_text(text, settings_of()[CompileOptions])) == {STATES, POOLED}
    padded = pad_text(text, settings_of(compile=True)[CompileOptions])
    assert padded[STATES].shape == (1, 256, 8)
    assert padded[MASK].sum() == 5


def test_both_layouts_of_its_files_give_the_same_model(
    hunyuan_video_miniature: Any, components: Components, tmp_path: Path
) -> None:
    """diffusers' layout; and the official .pt file, which has the tensors under `module`, with the whole LLaMA as
    ComfyUI has it."""
    state = load_file(hunyuan_video_miniature.checkpoint)
    files = {option: str(file) for option, file in hunyuan_video_miniature.files.items()}
    cache = tmp_path / "tokenizers"
    tokenizers = hunyuan_video_miniature.checkpoint.parent / "miniature_hunyuan_video_tokenizers"
    cache.symlink_to(tokenizers)
    torch.save({"module": state}, tmp_path / "mp_rank_00_model_states.pt")
    llama = load_file(files["text_encoder1"])
    extra = {"lm_head.weight": torch.zeros(2, 64), "tokenizer": torch.zeros(3, dtype=torch.uint8)}
    save_file({**llama, **extra}, tmp_path / "llava.safetensors")
    save_file(_as_diffusers(state), tmp_path / "diffusers.safetensors")
    for name in ("diffusers.safetensors", "mp_rank_00_model_states.pt"):
        (tmp_path / f"{Path(name).stem}_tokenizers").symlink_to(tokenizers)
        values = {**files, MODEL: str(tmp_path / name), "text_encoder1": str(tmp_path / "llava.safetensors")}
        settings = Settings(script_for("hunyuan_video", "lora"), values)
        assert HUNYUAN_VIDEO.check(settings) == []
        loaded = HUNYUAN_VIDEO.open(settings, torch.float32).load()
        for one, other in (
            (loaded.denoiser, components.denoiser),
            (loaded.text_encoders[0], components.text_encoders[0]),
        ):
            assert all(torch.equal(each, other.state_dict()[key]) for key, each in one.state_dict().items())
    assert describe(tmp_path / "diffusers.safetensors").family == CARD.name


def _as_diffusers(state: dict[str, Tensor]) -> dict[str, Tensor]:
    theirs: dict[str, Tensor] = {}
    for key, tensor in state.items():
        module, _, kind = key.rpartition(".")
        parts = KEYS.diffusers_modules(module)
        rows = [64] * (len(parts) - 1)
        pieces = tensor.split([*rows, len(tensor) - sum(rows)]) if len(parts) > 1 else [tensor]
        if KEYS.swaps_halves(module):
            pieces = [torch.cat(tensor.chunk(2)[::-1])]
        theirs |= {f"{part}.{kind}": piece.contiguous() for part, piece in zip(parts, pieces, strict=True)}
    return theirs


def test_files_are_recognised_and_relatives_refused(hunyuan_video_miniature: Any) -> None:
    kinds = {option: describe(file).variant for option, file in hunyuan_video_miniature.files.items()}
    assert kinds == {
        MODEL: "HunyuanVideo",
        "text_encoder1": "LLaMA-like text encoder",
        "text_encoder2": "CLIP text encoder",
        "vae": "HunyuanVideo VAE",
    }
    shapes = dict(read_header(hunyuan_video_miniature.checkpoint).shapes)
    for change, expected in (
        ({"img_in.proj.weight": (64, 33, 1, 2, 2)}, (None, "HunyuanVideo I2V")),
        ({"img_in.proj.weight": (64, 32, 1, 2, 2)}, (CARD.name, "SkyReels-V1 I2V")),
        ({"byt5_in.fc1.weight": (4, 4)}, (None, "HunyuanVideo 1.5")),
    ):
        assert recognise(Header(metadata={}, shapes=shapes | change, dtypes={})) == expected
    lora = {"lora_unet_double_blocks_0_img_mlp_fc1.lora_down.weight": (4, 64)}
    assert recognise(Header(metadata={}, shapes=lora, dtypes={})) == (CARD.name, "HunyuanVideo LoRA")


def test_a_sample_is_a_clip_of_4n_plus_1_frames(components: Components) -> None:
    assert torch.allclose(sampling_sigmas(5, SHIFT), torch.tensor(REFERENCE["sigmas"]), atol=1e-6)
    options = TextOptions.of(settings_of())
    prompt = SamplePrompt(prompt="a red circle", width=64, height=64, frames=7, steps=2, scale=1.0, seed=3)
    with torch.no_grad():
        text = encode_text(components, tokenize(components, HUNYUAN_VIDEO.text.prompt_captions(prompt), options))
    clip = sample(components, prompt, text, settings_of())
    assert tuple(clip.frames.shape) == (5, 64, 64, 3)
    assert clip.fps == 24


def test_the_plan_counts_frames_of_latents() -> None:
    assert tokens(544, 544, 33) == 9 * 34 * 34 + 256
