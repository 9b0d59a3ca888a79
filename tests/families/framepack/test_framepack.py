"""FramePack's mathematics, keys, sections and samples against diffusers, transformers and fixtures, at tiny size."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import HunyuanVideoFramepackTransformer3DModel
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

from sd_scripts.data.batch import Batch
from sd_scripts.data.plan.buckets import Extent
from sd_scripts.data.sources.captions import Caption
from sd_scripts.families.cards.model_file import describe
from sd_scripts.families.common.components import DENOISER, Components
from sd_scripts.families.common.encoders.vision import siglip_pixels
from sd_scripts.families.common.family import StepInputs, TextOptions
from sd_scripts.families.framepack.card import CARD
from sd_scripts.families.framepack.card.memory_facts import MEMORY, tokens
from sd_scripts.families.framepack.card.options import FramePackOptions
from sd_scripts.families.framepack.family import FRAMEPACK
from sd_scripts.families.framepack.full_size import modules as full_size_modules
from sd_scripts.families.framepack.load import IMAGE_ENCODER
from sd_scripts.families.framepack.model import FramePackParams, FramePackTransformer
from sd_scripts.families.framepack.objective import loss, step_inputs
from sd_scripts.families.framepack.sampling import MOST_SHIFT, sample
from sd_scripts.families.framepack.sections import section_of, single_frame
from sd_scripts.families.framepack.text import IMAGE, SIGLIP, encode_conditions, encode_text, tokenize
from sd_scripts.library.diffusion.flow_timesteps import sampling_sigmas, shift_of
from sd_scripts.library.diffusion.unipc_b1 import unipc
from sd_scripts.networks.files.lora_files import read_lora
from sd_scripts.networks.plan import AdaptedModule, NetworkArgs, plan_layers
from sd_scripts.networks.targets import adaptable
from sd_scripts.options.generating.prompt_lines import SamplePrompt
from sd_scripts.settings.catalog import script_for
from sd_scripts.settings.reading import from_values
from sd_scripts.settings.settings import Settings

pytestmark = pytest.mark.run

REFERENCE = json.loads((Path(__file__).parents[2] / "reference/framepack.json").read_text())
CPU = torch.device("cpu")


def settings_of(**values: Any) -> Settings:
    return from_values(script_for("framepack", "lora"), {"learning_rate": 1e-4, **values})


@pytest.fixture(scope="module")
def components(framepack_miniature: Any) -> Components:
    values = {option: str(file) for option, file in framepack_miniature.files.items()}
    settings = Settings(script_for("framepack", "lora"), values)
    assert FRAMEPACK.check(settings) == []
    return FRAMEPACK.open(settings, torch.float32).load()


def test_at_full_size_it_has_the_tensors_of_its_file() -> None:
    modules = full_size_modules()
    told = REFERENCE["dit"]
    expected = {
        key.replace("{i}", str(number)): tuple(shape)
        for key, shape in told["keys"].items()
        for number in range(told["repeat"][key.partition(".{i}")[0]] if "{i}" in key else 1)
    }
    shapes = {name: tuple(each.shape) for name, each in modules[DENOISER].state_dict().items()}
    assert shapes == expected
    assert FramePackParams.of(shapes) == FramePackParams()
    for component, module in modules.items():
        assert sum(parameter.numel() for parameter in module.parameters()) == MEMORY.values[component], component
    siglip = modules[IMAGE_ENCODER].state_dict()
    assert (len(siglip), MEMORY.values[IMAGE_ENCODER]) == tuple(REFERENCE["siglip"].values())


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-5), (torch.bfloat16, 0.1)], ids=["fp32", "bf16"])
def test_the_velocity_equals_diffusers(dtype: torch.dtype, bound: float) -> None:
    """An odd number of rows and columns of tokens, two samples, one caption shorter than the other."""
    torch.manual_seed(0)
    theirs: Any = HunyuanVideoFramepackTransformer3DModel(
        in_channels=4,
        out_channels=4,
        num_attention_heads=2,
        attention_head_dim=32,
        num_layers=2,
        num_single_layers=2,
        text_embed_dim=24,
        pooled_projection_dim=16,
        rope_axes_dim=(4, 14, 14),
        has_image_proj=True,
        image_proj_dim=12,
        has_clean_x_embedder=True,
    )
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.normal_(std=0.1)
    state = theirs.state_dict()
    ours = FramePackTransformer(FramePackParams.of({name: tuple(each.shape) for name, each in state.items()}))
    ours.load_state_dict(state)
    theirs.eval().to(dtype)
    ours.eval().to(dtype)
    noisy, one, two, four = (torch.randn(2, 4, frames, 6, 10).to(dtype) for frames in (9, 2, 2, 16))
    text, pooled, image = (torch.randn(shape).to(dtype) for shape in ((2, 9, 24), (2, 16), (2, 7, 12)))
    mask = torch.arange(9) < torch.tensor([9, 4])[:, None]
    times, guidance = torch.tensor([0.25, 0.75]), torch.full((2,), 6.0)
    section = section_of(0, 2, CPU, f1=False)
    places = [at for _, at, _ in section.known]
    with torch.no_grad():
        expected = theirs(
            noisy,
            1000 * times,
            text,
            mask,
            pooled,
            image,
            section.places,
            1000 * guidance,
            *(one, places[0], two, places[1], four, places[2]),
            return_dict=False,
        )[0]
        known = [(one, places[0], 1), (two, places[1], 2), (four, places[2], 4)]
        found = ours(noisy, section.places, known, text, pooled, image, times, guidance, mask)
    assert (found - expected).abs().max() < bound
    assert expected.float().std() > 0.3


@pytest.mark.parametrize("name", REFERENCE["sections"])
def test_sections_see_the_frames_that_musubi_tuner_caches(name: str) -> None:
    way, frames = name.split(".frames")
    sections = (int(frames) - 1) // 36
    clip = torch.arange(1.0, 2 + 9 * sections).view(1, 1, -1, 1, 1)  # each frame has its number plus one
    for told in REFERENCE["sections"][name]:
        number = int(told["file"].split("_")[-3].rpartition("-")[2])
        section = section_of(torch.tensor(number), sections, CPU, f1=way == "f1")
        target, ((clean, at, _), (middle, at_2x, _), (far, at_4x, _)) = section.split(clip)
        found = {
            **{"target_frames": target, "clean_frames": clean, "frames_2x": middle, "frames_4x": far},
        }
        assert {key: [int(value) - 1 for value in each.flatten()] for key, each in found.items()} == {
            key: told[key] for key in found
        }
        indices = {"latent_indices": section.places, "clean_indices": at, "indices_2x": at_2x, "indices_4x": at_4x}
        assert {key: each.tolist() for key, each in indices.items()} == {key: told[key] for key in indices}


def test_a_single_frame_has_musubi_tuners_places() -> None:
    whole = single_frame(settings_of()[FramePackOptions], CPU)
    assert [(at.tolist(), by) for _, at, by in whole.known] == [([0, 10], 1), ([11, 12], 2), (list(range(13, 29)), 4)]
    assert whole.places.tolist() == [9]
    kisekaeichi = settings_of(
        fp_1f_clean_indices="0,10", fp_1f_target_index=1, fp_1f_no_post=True, one_frame_no_2x=True, one_frame_no_4x=True
    )
    least = single_frame(kisekaeichi[FramePackOptions], CPU)
    assert [(at.tolist(), by) for _, at, by in least.known] == [([0, 10], 1)]
    assert not any(taken.any() for taken, _, _ in least.split(torch.ones(1, 4, 1, 2, 2))[1])


def test_a_lora_adapts_the_layers_of_musubi_tuner_under_its_names() -> None:
    transformer = full_size_modules()[DENOISER]
    args = NetworkArgs.read(settings_of(network_dim=4), lambda _: None)
    layers = plan_layers([AdaptedModule(module=transformer, target=FRAMEPACK.lora, lr=1.0)], args)
    told = REFERENCE["lora"]
    names = {
        "lora_unet_" + layer.replace("{i}", str(number)).replace(".", "_")
        for layer in told["targets"]
        for number in range(told["repeat"][layer.partition(".")[0]])
    }
    assert {layer.name for layer in layers} == names
    sizes = {
        FRAMEPACK.lora.name(p): each.weight.shape for p, each in adaptable(transformer, FRAMEPACK.lora, conv=False)
    }
    rank1 = sum(sum(sizes[name]) for name in names)
    assert (rank1, 4 * rank1) == (MEMORY.lora[DENOISER], told["params_rank4"])


def test_a_lora_of_hunyuan_video_is_split_into_the_parts_of_its_layers(components: Components, tmp_path: Path) -> None:
    """Fused layers, one with rank 4 and one with an alpha; the change of each part is its rows of the whole change."""
    torch.manual_seed(0)
    shapes = {"double_blocks.0.txt_attn_qkv": (192, 64), "single_blocks.1.linear1": (448, 64)}
    shapes |= {"double_blocks.2.img_mlp.fc2": (64, 256)}
    whole = {path: (torch.randn(4, width), torch.randn(out, 4)) for path, (out, width) in shapes.items()}
    tensors: dict[str, Tensor] = {}
    for path, (down, up) in whole.items():
        name = f"lora_unet_{path.replace('.', '_')}"
        tensors |= {f"{name}.lora_down.weight": down, f"{name}.lora_up.weight": up, f"{name}.alpha": torch.tensor(2.0)}
    save_file(tensors, tmp_path / "hunyuan.safetensors")
    module = AdaptedModule(module=components.denoiser, target=FRAMEPACK.lora, lr=1.0)
    file = read_lora("lora_weights", tmp_path / "hunyuan.safetensors", [module])
    assert file.unknown == ()
    for path, parts in {
        "double_blocks.0.txt_attn_qkv": [f"transformer_blocks.0.attn.add_{part}_proj" for part in "qkv"],
        "single_blocks.1.linear1": [
            *(f"single_transformer_blocks.1.attn.to_{part}" for part in "qkv"),
            "single_transformer_blocks.1.proj_mlp",
        ],
        "double_blocks.2.img_mlp.fc2": ["transformer_blocks.2.ff.net.2"],
    }.items():
        down, up = whole[path]
        changes = []
        for part in parts:
            weight: Any = components.denoiser.get_submodule(part).weight
            change = file.change(FRAMEPACK.lora.name(part), weight, 1.0)
            assert change is not None
            changes.append(change)
        assert torch.allclose(torch.cat(changes), 2.0 / 4 * up @ down, atol=1e-5)


def test_its_solver_and_sigmas_follow_the_fixtures() -> None:
    told = REFERENCE["unipc"]
    noise = torch.tensor([1.0, -0.5, 2.0])
    found = unipc(noise, told["sigmas"], lambda x, sigma: x - sigma * (0.4 * x - 0.7 * sigma + 0.1))
    assert found.tolist() == pytest.approx(told["final"], abs=2e-6)
    for expected in REFERENCE["sigmas"].values():
        sigmas = sampling_sigmas(5, min(shift_of(expected["tokens"]), MOST_SHIFT))
        assert sigmas.tolist() == pytest.approx(expected["sigmas_n5"], abs=1e-5)


def batch_of(count: int, image: Tensor) -> Batch:
    return Batch(
        extent=Extent(64, 64, 73),
        bucket=Extent(64, 64, 73),
        captions=[Caption("a")] * count,
        pixels=None,
        latents=None,
        mask=None,
        loss_weight=torch.ones(count),
        conditioning={IMAGE: image},
    )


@pytest.mark.parametrize("f1", [False, True], ids=["inverted", "f1"])
def test_every_section_of_a_clip_is_trained(components: Components, f1: bool) -> None:
    """Two sections: the loss of each is finite, and both are drawn."""
    settings = settings_of(f1=f1, timestep_sampling="shift")
    latents = torch.randn(2, 16, 19, 8, 8, generator=torch.Generator().manual_seed(0))
    image = torch.randn(2, 4, 16)
    generator = torch.Generator().manual_seed(0)
    batch = batch_of(2, image)
    objective, options = FRAMEPACK.objective_options(settings), TextOptions.of(settings)
    drawn = set()
    for _ in range(6):
        model = step_inputs(batch, latents, objective, generator, None)
        clean = model["noisy"] - model["timesteps"][:, None, None, None, None] * model["target"]
        (first,) = [n for n in (1, 10) if torch.allclose(clean, latents[:, :, n : n + 9], atol=1e-4)]
        drawn.add(first)
    assert drawn == {1, 10}
    with torch.no_grad():
        text = encode_text(components, tokenize(components, [Caption("red"), Caption("a blue square")], options))
        losses = loss(components, StepInputs(model=model, text=text), objective)
        model[IMAGE] = torch.zeros_like(image)
        others = loss(components, StepInputs(model=model, text=text), objective)
    assert losses.shape == (2,)
    assert (losses > 0).all()
    assert not torch.equal(losses, others), "the start image is seen"


def test_the_start_image_is_seen_as_siglips_processor_shows_it(components: Components, tmp_path: Path) -> None:
    image = Image.effect_mandelbrot((96, 64), (-3, -2.5, 2, 2.5), 50).convert("RGB")
    image.save(tmp_path / "a.png")
    pixels = torch.tensor(list(image.tobytes())).view(64, 96, 3).permute(2, 0, 1)[None] / 127.5 - 1
    processor = SiglipImageProcessorPil(size={"height": 28, "width": 28}, resample=3)
    expected = torch.as_tensor(processor(image, return_tensors="pt")["pixel_values"])
    assert (siglip_pixels(components.text_encoders[SIGLIP], pixels) - expected).abs().max() < 0.03
    with torch.no_grad():
        of_clip = encode_conditions(components, pixels[:, :, None].expand(-1, -1, 37, -1, -1))[IMAGE]
        captions = FRAMEPACK.text.prompt_captions(
            SamplePrompt(prompt="a", scale=1, start_image=str(tmp_path / "a.png"))
        )
        of_prompt = encode_text(components, tokenize(components, captions, TextOptions.of(settings_of())))[IMAGE]
    assert torch.allclose(of_clip, of_prompt, atol=1e-4)
    assert not encode_conditions(components, pixels[:, :, None])[IMAGE].any()


@pytest.mark.parametrize(("f1", "frames"), [(False, 73), (True, 73), (False, 1)], ids=["inverted", "f1", "image"])
def test_a_sample_has_whole_sections_and_begins_with_its_image(
    components: Components, tmp_path: Path, f1: bool, frames: int
) -> None:
    Image.new("RGB", (80, 64), (200, 40, 40)).save(tmp_path / "start.png")
    start = str(tmp_path / "start.png")
    prompt = SamplePrompt(prompt="red", width=64, height=64, frames=frames, steps=2, scale=1, seed=1, start_image=start)
    settings = settings_of(f1=f1)
    with torch.no_grad():
        captions = FRAMEPACK.text.prompt_captions(prompt)
        text = encode_text(components, tokenize(components, captions, TextOptions.of(settings)))
        clip, again = (sample(components, prompt, text, settings) for _ in range(2))
    assert tuple(clip.frames.shape) == (frames, 64, 64, 3)
    assert torch.equal(clip.frames, again.frames)
    assert clip.fps == 30


def test_a_single_frame_sees_its_control_images_and_needs_a_place_for_each(
    components: Components, tmp_path: Path
) -> None:
    """In a caption with control images SigLIP sees the first one; a caption without is stored without embeddings."""
    Image.new("RGB", (80, 64), (200, 40, 40)).save(tmp_path / "a.png")
    image, options = tmp_path / "a.png", TextOptions.of(settings_of())
    with torch.no_grad():
        captions = [Caption("a", images=(image, image)), Caption("b")]
        both = encode_text(components, tokenize(components, captions, options))
        kept = [FRAMEPACK.text.trim(one) for one in ({name: each[n] for name, each in both.items()} for n in (0, 1))]
        assert [IMAGE in one for one in kept] == [True, False]
        objective = FRAMEPACK.objective_options(settings_of(fp_1f_clean_indices="0,5", fp_1f_target_index=3))
        latents, control = torch.randn(2, 1, 16, 1, 8, 8)
        generator = torch.Generator().manual_seed(0)
        model = step_inputs(batch_of(1, torch.zeros(1, 4, 16)), latents, objective, generator, None)
        assert (model["places"].tolist(), model["places_1x"].tolist()) == ([3], [0, 5, 10])
        text = {name: each[:1] for name, each in both.items()}
        losses = [
            loss(components, StepInputs(model=model, text=text, controls=controls), objective)
            for controls in ((), (control,), (control, control))
        ]
        assert len({float(each) for each in losses}) == 3
        with pytest.raises(ValueError, match=r"^fp_1f_clean_indices: 3 control images need a place each"):
            loss(components, StepInputs(model=model, text=text, controls=(control,) * 3), objective)


def test_files_are_recognised(framepack_miniature: Any) -> None:
    assert describe(framepack_miniature.checkpoint).family == CARD.name
    assert describe(framepack_miniature.files["image_encoder"]).variant == "SigLIP image encoder"
    values = {option: str(file) for option, file in framepack_miniature.files.items()}
    other = Settings(script_for("hunyuan_video", "lora"), {k: v for k, v in values.items() if k != "image_encoder"})
    from sd_scripts.families.hunyuan_video.family import HUNYUAN_VIDEO

    (problem,) = HUNYUAN_VIDEO.check(other)
    assert problem.startswith("pretrained_model_name_or_path: '")
    assert "FramePack" in problem


def test_the_plan_counts_the_tokens_of_a_section() -> None:
    assert tokens(640, 640, 145) == tokens(640, 640, 73) == 11 * 1600 + 400 + 4 * 100 + 729 + 256
