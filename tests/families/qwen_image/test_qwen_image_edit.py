"""Qwen-Image-Edit: images, captions, transformer and samples of diffusers and transformers, and its files."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import QwenImageEditPipeline, QwenImageEditPlusPipeline
from diffusers.pipelines.qwenimage import pipeline_qwenimage_edit, pipeline_qwenimage_edit_plus
from PIL import Image
from safetensors.torch import load_file

from sd_scripts.data.sources.captions import Caption
from sd_scripts.families.cards.model_file import describe, recognise
from sd_scripts.families.cards.registry import card_of
from sd_scripts.families.common.components import DENOISER, VAE, Components
from sd_scripts.families.common.encoders.captions import STEP
from sd_scripts.families.common.family import ModelWeights, TextOptions
from sd_scripts.families.qwen_image.card import TRANSFORMER, ZERO_COND_T
from sd_scripts.families.qwen_image.card.options import QwenImageModelOptions
from sd_scripts.families.qwen_image.load import TEXT_ENCODER
from sd_scripts.families.qwen_image.model import QwenImageTransformer
from sd_scripts.families.qwen_image.objective import predict
from sd_scripts.families.qwen_image.sampling import sample
from sd_scripts.families.qwen_image.text import MASK, OUTPUTS, STATES
from sd_scripts.families.qwen_image.tiny import PARAMS, qwen_tokenizer, tiny_modules
from sd_scripts.families.qwen_image_edit import text as edit_text
from sd_scripts.families.qwen_image_edit.card import CARD, EDIT, EDIT_2511, EDIT_PLUS
from sd_scripts.families.qwen_image_edit.family import QWEN_IMAGE_EDIT
from sd_scripts.families.qwen_image_edit.load import make_encoder, prepare, vision_config, vision_language_model
from sd_scripts.families.qwen_image_edit.text import VERSION, encode_text, prompt_captions, tokenize
from sd_scripts.families.qwen_image_edit.tiny import VISION, tiny_encoder
from sd_scripts.families.qwen_image_edit.vision import area_size, patches_of, positions_of
from sd_scripts.formats.models.safetensors_header import Header
from sd_scripts.library.diffusion.dit_layers import grid_of, pack
from sd_scripts.library.files.safetensors_io import save_model
from sd_scripts.options.generating.prompt_lines import SamplePrompt
from sd_scripts.settings.catalog import script_for
from sd_scripts.settings.command_line import given_flags
from sd_scripts.settings.preflight import CHECKS
from sd_scripts.settings.reading import from_values
from sd_scripts.settings.settings import Settings
from tests.support.data import make_image
from tests.support.families.qwen_image import Processor, edit_pipeline_of, transformer_of

pytestmark = pytest.mark.run

LORA = script_for("qwen_image_edit", "lora")
SIZES = [(1000, 1000), (640, 480), (1920, 1080), (800, 1200), (3000, 1000), (30, 45)]
SEEN = (64, 96)
"""Size of the control images here."""
PIPELINES = {EDIT: QwenImageEditPipeline, EDIT_PLUS: QwenImageEditPlusPipeline}


def settings_of(**values: Any) -> Settings:
    return from_values(LORA, {"learning_rate": 1e-4, "no_resize_control": True, **values})


@pytest.fixture(scope="module")
def modules() -> dict[str, Any]:
    """The miniature's; the encoder as transformers has it."""
    found: dict[str, Any] = tiny_modules(len(qwen_tokenizer()))
    found[TEXT_ENCODER] = tiny_encoder(found[TEXT_ENCODER])
    for module in found.values():
        module.eval().requires_grad_(False)
    return found


@pytest.fixture(params=[EDIT, EDIT_PLUS])
def components(modules: dict[str, Any], request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Components:
    """Of one version. The first sees images at the size of the samples, here a small one."""
    monkeypatch.setitem(edit_text.AREA, EDIT, SEEN[0] * SEEN[1])
    for module, told in ((pipeline_qwenimage_edit, (*SEEN, None)), (pipeline_qwenimage_edit_plus, SEEN)):
        theirs = module.calculate_dimensions
        monkeypatch.setattr(
            module,
            "calculate_dimensions",
            lambda area, ratio, told=told, theirs=theirs: told if area == 1024**2 else theirs(area, ratio),
        )
    state = vision_language_model(modules[TEXT_ENCODER].state_dict())
    encoder = make_encoder({key: tuple(tensor.shape) for key, tensor in state.items()})
    encoder.load_state_dict(state)
    return Components(
        denoiser=modules[DENOISER],
        vae=modules[VAE],
        text_encoders=[encoder.eval().requires_grad_(False)],
        tokenizers=[qwen_tokenizer()],
        source="tiny",
        extras={VERSION: request.param},
    )


@pytest.fixture
def images(tmp_path: Path) -> list[Path]:
    return [make_image(tmp_path / f"{number}.png", SEEN, seed=number) for number in range(2)]


def theirs_of(components: Components, modules: dict[str, Any]) -> Any:
    return edit_pipeline_of(components, modules[TEXT_ENCODER], PIPELINES[components.extras[VERSION]])


def test_images_are_seen_in_the_sizes_of_diffusers() -> None:
    for size in SIZES:
        assert area_size(size, 384**2) == pipeline_qwenimage_edit_plus.calculate_dimensions(384**2, size[0] / size[1])


def test_patches_match_transformers(images: list[Path]) -> None:
    ours, grid = patches_of(images[0], 384**2)
    seen = Image.open(images[0]).resize(area_size(SEEN, 384**2), Image.Resampling.LANCZOS)
    theirs = Processor(None).images([seen], return_tensors="pt")
    assert theirs["image_grid_thw"].tolist() == [[1, *grid]]
    torch.testing.assert_close(ours, theirs["pixel_values"], rtol=0, atol=1e-6)


def test_patches_of_a_flipped_image_equal_its_flipped_files_patches(images: list[Path], tmp_path: Path) -> None:
    mirrored = tmp_path / "mirrored.png"
    Image.open(images[0]).transpose(Image.Transpose.FLIP_LEFT_RIGHT).save(mirrored)
    assert torch.equal(patches_of(images[0], 384**2, flipped=True)[0], patches_of(mirrored, 384**2)[0])
    assert not torch.equal(patches_of(images[0], 384**2)[0], patches_of(mirrored, 384**2)[0])


def test_an_elongated_image_is_refused_by_name(tmp_path: Path) -> None:
    path = make_image(tmp_path / "line.png", (3000, 8))
    with pytest.raises(ValueError, match=r"^control_directory, control_image_path: .*line\.png' is too elongated"):
        patches_of(path, 384**2)


def test_a_caption_shows_its_images_flipped(components: Components, images: list[Path], tmp_path: Path) -> None:
    mirrored = tmp_path / "mirrored.png"
    Image.open(images[0]).transpose(Image.Transpose.FLIP_LEFT_RIGHT).save(mirrored)
    plain, flipped = Caption("a", (images[0],)), Caption("a", (images[0],), flipped=True)
    assert plain != flipped
    both = tokenize(components, [plain, flipped], TextOptions.of(settings_of()))[0]
    files = tokenize(components, [plain, Caption("a", (mirrored,))], TextOptions.of(settings_of()))[0]
    assert torch.equal(both["pixels"], files["pixels"])


def test_positions_match_transformers(modules: dict[str, Any]) -> None:
    ids = torch.tensor([[5] * 3 + [7] * 12 + [5] * 2 + [7] * 4 + [5] * 2])
    grids = torch.tensor([[1, 8, 6], [1, 4, 4]])
    expected, _ = modules[TEXT_ENCODER].model.get_rope_index(ids, (ids == 7).int(), grids)
    assert torch.equal(positions_of([3, (8, 6), 2, (4, 4), 2]), expected[:, 0])


def test_captions_and_images_are_encoded_as_in_diffusers(
    components: Components, modules: dict[str, Any], images: list[Path]
) -> None:
    """Both captions in one batch, padded, next to one without images, which is read as Qwen-Image's."""
    captions, plus = ["a red circle", "make it blue and " * 3], components.extras[VERSION] == EDIT_PLUS
    given = [Caption(caption, tuple(images)) for caption in captions]
    ours = encode_text(
        components, tokenize(components, [*given, Caption("a red circle")], TextOptions.of(settings_of()))
    )
    opened = [Image.open(path) for path in images]
    pipeline = theirs_of(components, modules)
    shown: Any = [
        pipeline.image_processor.resize(image, *reversed(area_size(SEEN, edit_text.AREA[components.extras[VERSION]])))
        for image in opened
    ]
    for row, caption in enumerate(captions):
        expected, _ = pipeline.encode_prompt(caption, image=shown if plus else shown[0], device="cpu")
        found = OUTPUTS.trim({name: tensor[row] for name, tensor in ours.items()})
        torch.testing.assert_close(found[STATES], expected[0], rtol=1e-3, atol=1e-4)
    length = len(components.tokenizers[0]("a red circle<|im_end|>\n<|im_start|>assistant\n").input_ids)
    assert ours[MASK].sum(1)[2] == length < ours[MASK].sum(1)[0]


def test_a_different_image_changes_the_states_and_a_longer_caption_keeps_its_images(
    components: Components, images: list[Path]
) -> None:
    both = [Caption("a", (images[0],)), Caption("a", (images[1],))]
    assert both[0] != both[1]
    assert len({*both, Caption("a")}) == 3
    first, second = (
        encode_text(components, tokenize(components, [each], TextOptions.of(settings_of())))[STATES] for each in both
    )
    assert first.shape == second.shape
    assert not torch.allclose(first, second, atol=1e-3)
    compiled = tokenize(
        components, [Caption("circle " * 2000, (images[0],))], TextOptions.of(settings_of(compile=True))
    )[0]
    seen = int(compiled["image"].sum())
    assert compiled["mask"].shape[1] % STEP == 0
    assert compiled["mask"].sum() >= 1024 + seen
    assert seen == int(compiled["grids"].prod()) // 4


def test_an_image_token_in_a_caption_adds_no_images(components: Components, images: list[Path]) -> None:
    tokens = tokenize(components, [Caption("a <|image_pad|>", (images[0],))], TextOptions.of(settings_of()))
    assert int(tokens[0]["image"].sum()) == int(tokens[0]["grids"].prod()) // 4
    encode_text(components, tokens)


@pytest.mark.parametrize("zero_cond_t", [False, True])
@pytest.mark.parametrize(("dtype", "error"), [(torch.float32, 1e-5), (torch.bfloat16, 4e-2)])
def test_the_prediction_matches_diffusers_with_control_images(
    modules: dict[str, Any], dtype: torch.dtype, error: float, zero_cond_t: bool
) -> None:
    """Edit-2511 modulates the tokens of control images as at timestep 0."""
    generator = torch.Generator().manual_seed(1)
    noisy = torch.randn(2, 16, 6, 8, generator=generator)
    controls = [torch.randn(2, 16, *size, generator=generator) for size in ((10, 4), (6, 8))]
    states = torch.randn(2, 7, PARAMS.text_width, generator=generator)
    t, shapes = torch.tensor([0.25, 0.5]), [(1, *grid_of(each)) for each in (noisy, *controls)]
    with torch.no_grad():
        ours = make_transformer(modules, dtype)
        theirs = transformer_of(modules[DENOISER].state_dict(), PARAMS).to(dtype)
        ours.zero_cond_t = zero_cond_t
        for module in (theirs, *theirs.transformer_blocks):
            module.zero_cond_t = zero_cond_t
        expected = theirs(
            torch.cat([pack(each) for each in (noisy, *controls)], dim=1).to(dtype),
            states.to(dtype),
            None,
            t,
            [shapes] * 2,
            return_dict=False,
        )[0][:, : pack(noisy).shape[1]]
        found, without = (pack(predict(ours, noisy, t, {STATES: states}, each)) for each in (controls, []))
    scale = expected.float().abs().max()
    assert ((found - expected.float()).abs().max() / scale).item() < error
    assert ((found - without).abs().max() / scale).item() > 3 * error


def make_transformer(modules: dict[str, Any], dtype: torch.dtype) -> Any:
    made = QwenImageTransformer(PARAMS)
    made.load_state_dict(modules[DENOISER].state_dict())
    return made.to(dtype)


def test_a_sample_matches_diffusers_with_the_same_noise_and_control_images(
    components: Components, modules: dict[str, Any], images: list[Path]
) -> None:
    plus = components.extras[VERSION] == EDIT_PLUS
    shown = images if plus else images[:1]
    opened = [Image.open(path) for path in shown]
    theirs = theirs_of(components, modules)(
        opened if plus else opened[0],
        "a red circle",
        negative_prompt="blue",
        true_cfg_scale=3.0,
        width=64,
        height=80,
        num_inference_steps=3,
        generator=torch.Generator().manual_seed(1),
        output_type="np",
    ).images[0]

    def made(paths: list[Path]) -> np.ndarray:
        prompt = SamplePrompt(
            prompt="a red circle",
            negative_prompt="blue",
            width=64,
            height=80,
            seed=1,
            steps=3,
            scale=3.0,
            control_images=tuple(map(str, paths)),
        )
        with torch.no_grad():
            text = encode_text(components, tokenize(components, prompt_captions(prompt), TextOptions.of(settings_of())))
        return sample(components, prompt, text, settings_of()).frames[0].numpy() / 255

    assert np.abs(made(shown) - theirs).max() < 2 / 255
    assert np.abs(made([]) - theirs).max() > 8 / 255


def test_a_caption_of_a_prompt_follows_its_images(images: list[Path]) -> None:
    """Generate keeps what it encoded: a different image under the same name is a different caption."""
    prompt = SamplePrompt(prompt="a", control_images=(str(images[0]),))
    before = prompt_captions(prompt)
    assert before == prompt_captions(prompt)
    assert prompt_captions(SamplePrompt(prompt="a")) == [Caption(" "), Caption("a")]
    make_image(images[0], (80, 64), seed=9)
    assert before != prompt_captions(prompt)


def test_the_vision_tower_is_read_from_all_layouts_of_its_file(modules: dict[str, Any]) -> None:
    state = modules[TEXT_ENCODER].state_dict()
    old = {
        key.replace("model.visual.", "visual.").replace("model.language_model.", "model."): each
        for key, each in state.items()
    }
    for file in (state, old):
        unified = vision_language_model(file)
        shapes = {key: tuple(tensor.shape) for key, tensor in unified.items()}
        assert make_encoder(shapes).state_dict().keys() == unified.keys()
        config = vision_config(shapes)
        assert {name: config[name] for name in VISION} == VISION


def test_a_file_is_known_by_its_metadata_and_a_folder_by_its_pipeline(tmp_path: Path) -> None:
    """Keys and shapes equal Qwen-Image's."""
    shapes = {TRANSFORMER: (4, 4)}
    for version, name, pipeline in (
        (EDIT, "Qwen-Image-Edit", "QwenImageEditPipeline"),
        (EDIT_PLUS, "Qwen-Image-Edit-2509", "QwenImageEditPlusPipeline"),
    ):
        parts: Any = Components(denoiser=None, vae=None, text_encoders=[], tokenizers=[], source=tmp_path)  # type: ignore[arg-type]
        (tmp_path / "model_index.json").write_text(json.dumps({"_class_name": pipeline}))
        found = describe(tmp_path)
        assert (found.family, found.variant) == (CARD.name, f"{name} diffusers folder")
        prepare(parts, QwenImageModelOptions())
        assert parts.extras[VERSION] == version
        told = {"modelspec.architecture": QWEN_IMAGE_EDIT.identity.architecture(parts)}
        assert recognise(Header(metadata=told, shapes=shapes, dtypes={})) == (CARD.name, name)
        parts.source = tmp_path / "model.safetensors"
        save_model(parts.source, {TRANSFORMER: torch.zeros(4, 4)}, told)
        prepare(parts, QwenImageModelOptions())
        assert parts.extras[VERSION] == version
        prepare(parts, QwenImageModelOptions(model_version="edit"))
        assert parts.extras[VERSION] == EDIT
        parts.source = tmp_path / "none.safetensors"
        prepare(parts, QwenImageModelOptions())
        assert parts.extras[VERSION] == EDIT_PLUS
    assert recognise(Header(metadata={}, shapes=shapes, dtypes={}))[0] == "qwen_image"
    lora = {"ss_base_model_version": "qwen_image_edit", "ss_network_module": "networks.lora"}
    assert recognise(Header(metadata=lora, shapes=shapes, dtypes={})) == (CARD.name, "Qwen-Image-Edit LoRA")
    assert CARD.trains("qwen_image")
    assert not card_of("qwen_image").trains(CARD.name)


def test_flags_of_musubi_tuner_are_understood() -> None:
    for flags, version in (
        (["--edit"], "edit"),
        (["--edit_plus"], "edit-2509"),
        (["--model_version", "edit-2509"], "edit-2509"),
        (["--model_version", "edit-2511"], "edit-2511"),
    ):
        given = given_flags(LORA, ["--dit=d", "--text_encoder=t", "--vae=v", *flags])
        assert given.problems == []
        assert from_values(LORA, given.values).value("model_version") == version
    for version, told in (("original", "needs the scripts of Qwen-Image"), ("layered", "is not supported")):
        assert any(told in str(problem) for problem in settings_of(model_version=version).problems())


def problems_of(given: dict[str, Any], **more: Any) -> list[str]:
    return QWEN_IMAGE_EDIT.check(settings_of(**given, **more))


def test_wrong_files_are_reported_in_one_sentence(
    edit_miniature: Any, qwen_image_miniature: Any, tmp_path: Path
) -> None:
    files = {option: str(path) for option, path in edit_miniature.files.items()}
    assert problems_of(files) == []
    state = tiny_encoder(tiny_modules(len(qwen_tokenizer()))[TEXT_ENCODER]).state_dict()  # type: ignore[arg-type]
    blind, short, narrow = (str(tmp_path / f"{name}.safetensors") for name in ("blind", "short", "narrow"))
    save_model(Path(blind), {key: each for key, each in state.items() if "visual." not in key}, {})
    save_model(Path(short), {key: each for key, each in state.items() if "visual.merger" not in key}, {})
    save_model(
        Path(narrow),
        {
            key: each[:64] if key.startswith("model.visual.merger.mlp.2") else each for key, each in state.items()
        },
        {},
    )  # fmt: skip
    for path, told in (
        (blind, "is not the Qwen2.5-VL-7B text encoder with its vision tower but a LLaMA-like text encoder"),
        (short, "is incomplete; missing: 'visual.merger"),
        (narrow, "has a vision tower for 64 values, but its language model reads 128; choose another file"),
    ):
        (problem,) = problems_of(files | {"text_encoder": path})
        assert problem.startswith("text_encoder: ")
        assert told in problem
        assert "\n" not in problem


def test_edit_2511_is_known_by_its_mark_or_its_configuration_and_trained_as_such(
    edit_miniature: Any, tmp_path: Path
) -> None:
    """Its official shards have neither: for them model_version states it."""
    files = {option: str(path) for option, path in edit_miniature.files.items()}
    model = Path(files["pretrained_model_name_or_path"])
    folder, marked = tmp_path / "edit-2511", tmp_path / "marked.safetensors"
    (folder / "transformer").mkdir(parents=True)
    for place in (folder, folder / "transformer", tmp_path):
        (place / "tokenizer").symlink_to(next(model.parent.rglob("tokenizer")))
    (folder / "transformer" / "config.json").write_text('{"zero_cond_t": true}')
    (folder / "model_index.json").write_text('{"_class_name": "QwenImageEditPlusPipeline"}')
    (folder / "transformer" / "diffusion_pytorch_model.safetensors").write_bytes(model.read_bytes())
    save_model(marked, {**load_file(model), ZERO_COND_T: torch.zeros(0)}, {})
    assert describe(folder).variant == "Qwen-Image-Edit-2511 diffusers folder"
    assert describe(marked).variant == "Qwen-Image-Edit-2511"
    shard = folder / "transformer" / "diffusion_pytorch_model.safetensors"
    for place, options in ((folder, {}), (shard, {}), (marked, {}), (model, {"model_version": "edit-2511"})):
        given = files | {"pretrained_model_name_or_path": str(place)}
        assert problems_of(given, **options) == []
        opened = QWEN_IMAGE_EDIT.open(settings_of(**given, **options), torch.float32).load(DENOISER)
        assert opened.extras[VERSION] == EDIT_2511
        assert opened.denoiser.zero_cond_t
        tensors = QWEN_IMAGE_EDIT.saving.tensors(opened, ModelWeights(denoiser=opened.denoiser.state_dict()))
        assert tensors.keys() == load_file(marked).keys()
        assert QWEN_IMAGE_EDIT.identity.architecture(opened) == "Qwen-Image-Edit-2511"
        if not options:
            (problem,) = problems_of(given, model_version="edit")
            assert problem.startswith("model_version: edit is not the model's version: ")


def test_missing_control_images_are_reported(edit_miniature: Any, tmp_path: Path) -> None:
    given = {option: str(path) for option, path in edit_miniature.files.items()}
    given["train_data_dir"] = str(edit_miniature.data_dir)

    def told(**more: Any) -> list[str]:
        settings = settings_of(**given | more)
        return [text for check in CHECKS for text in check(settings) if text.startswith("control_directory")]

    assert told() == []
    (none,) = told(control_directory=None)
    assert none == "control_directory: not set; choose the folder with the control images that Qwen-Image-Edit is " \
        "trained with"  # fmt: skip
    make_image(tmp_path / "other.png", (64, 64))
    (missing,) = told(control_directory=str(tmp_path))
    assert "has no control image for" in missing
