"""Images of the generating scripts: the family's sampler, adapters applied exactly, bad input reported."""

import hashlib
import shutil
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import FluxKontextPipeline
from PIL import Image
from safetensors.torch import load_file

from sd_scripts.families.cards.registry import card_of
from sd_scripts.families.common.components import DENOISER
from sd_scripts.families.common.family import TextOptions, family_of
from sd_scripts.families.flux.model import FluxTransformer
from sd_scripts.families.flux.tiny import SHAPE
from sd_scripts.formats.images.image_parameters import read_chunks
from sd_scripts.generating import work
from sd_scripts.generating.adapters import layers_of
from sd_scripts.generating.generator import Generator
from sd_scripts.generating.recorded_forward import RecordedForward
from sd_scripts.generating.work import Previews, Worker, graph_count
from sd_scripts.library.compile_utils import compile_model
from sd_scripts.library.files.safetensors_io import save_model
from sd_scripts.options.compile import CompileOptions
from sd_scripts.options.generating.generate import GenerateOptions
from sd_scripts.options.generating.prompt_lines import SamplePrompt
from sd_scripts.runs.folder import RunFolder
from sd_scripts.runs.reporter import Reporter
from sd_scripts.settings.catalog import script_for
from sd_scripts.settings.generate_settings import (
    AdapterFile,
    batches_of,
    prompt_warnings,
    prompts_of,
    settings_of,
    training_settings,
)
from tests.generating.test_recorded_forward import Rerun, waiting_for_cpu
from tests.support.data import make_image
from tests.support.families.flux_pipeline import pipeline_of

SMALL = {"width": 64, "height": 64, "steps": 2, "dtype": "fp32", "image_seed": 7}
TEXT = {name: {"t5xxl_max_token_length": 16} for name in ("flux", "flux_kontext")}

pytestmark = [
    pytest.mark.run,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # diffusers asks NumPy in an old way
]


def values_of(miniature: Any, **more: Any) -> dict[str, Any]:
    files = {name: str(path) for name, path in miniature.files.items() if name != "control_directory"}
    return {**files, **TEXT.get(miniature.family, {}), **SMALL, "prompt": ["a red circle"], **more}


def flags_of(values: dict[str, Any]) -> list[str]:
    flags = []
    for name, value in values.items():
        words = value if isinstance(value, list) else [value]
        flags += [f"--{name}", *map(str, words)] if value is not True else [f"--{name}"]
    return flags


def run(miniature: Any, folder: Path, **more: Any) -> int:
    script = import_module(f"sd_scripts.{Path(script_for(miniature.family, 'generate').file).stem}")
    return int(script.main(flags_of(values_of(miniature, **{"image_dir": str(folder), **more}))))


@pytest.fixture(scope="module")
def adapters(each_miniature: Any, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A LoRA of the denoiser, and one of the denoiser and a text encoder with a different rank."""
    folder = tmp_path_factory.mktemp("adapters")
    generator = generator_of(each_miniature)
    kinds = enumerate([((DENOISER,), 2), ((DENOISER, "text_encoder1"), 3)])
    return [write_adapter(folder / f"lora_{number}.safetensors", generator, *kind) for number, kind in kinds]


def write_adapter(file: Path, generator: Generator, names: Sequence[str] = (DENOISER,), rank: int = 2) -> Path:
    """Write a random LoRA of these components."""
    torch.manual_seed(rank)
    family, components = generator.family, generator.components
    tensors = {}
    for layer_name, (_, layer) in (item for name in names for item in layers_of(family, components, name).items()):
        if isinstance(layer, torch.nn.Linear):
            tensors[f"{layer_name}.lora_down.weight"] = torch.randn(rank, layer.in_features) / 8
            tensors[f"{layer_name}.lora_up.weight"] = torch.randn(layer.out_features, rank) / 8
            tensors[f"{layer_name}.alpha"] = torch.tensor(float(rank))
    save_model(file, tensors, {})
    return file


def generator_of(miniature: Any, **more: Any) -> Generator:
    settings = settings_of(miniature.family, {}, values_of(miniature, **more))
    return Generator(family_of(miniature.family), settings, Reporter(None))


def image_of(generator: Generator, miniature: Any, *files: AdapterFile, **more: Any) -> np.ndarray:
    generator.apply(files)
    (prompt,) = prompts_of(settings_of(miniature.family, {}, values_of(miniature, **more)))
    return generator.image(prompt, lambda done, total: None)[1].frames[0].numpy()


def test_an_image_equals_the_familys_sampler_output_and_records_its_parameters(
    each_miniature: Any, tmp_path: Path
) -> None:
    prompt = "a red circle --w 128 --l 2 --n a blue square --d 5"
    assert run(each_miniature, tmp_path / "out", prompt=[prompt], images_per_prompt=2) == 0
    first, second = sorted((tmp_path / "out").iterdir(), key=lambda file: file.name[-5])
    family = family_of(each_miniature.family)
    settings = settings_of(each_miniature.family, {}, values_of(each_miniature, prompt=[prompt]))
    ours = training_settings(settings)
    components = family.open(ours, torch.float32).load()
    (asked,) = prompts_of(settings)
    tokens = family.text.tokenize(components, family.text.prompt_captions(asked), TextOptions.of(ours))
    with torch.no_grad():
        expected = family.sample(components, asked, family.text.encode(components, tokens), ours).frames[0].numpy()
    with Image.open(first) as image:
        assert np.array_equal(np.asarray(image), expected)
        told = read_chunks(image.text)  # type: ignore[attr-defined]
        webui = image.text["parameters"]  # type: ignore[attr-defined]
    assert (told["prompt"], told["negative_prompt"], told["width"], told["seed"]) == (
        "a red circle", "a blue square", 128, 5,
    )  # fmt: skip
    assert webui.startswith("a red circle\nNegative prompt: a blue square\nSteps: 2, Sampler: Euler")
    with Image.open(second) as image:
        assert read_chunks(image.text)["seed"] == 6  # type: ignore[attr-defined]


def test_a_prompt_that_is_cut_is_reported(any_miniature: Any, capsys: pytest.CaptureFixture[str]) -> None:
    prompts = [SamplePrompt(prompt="a red circle"), SamplePrompt(prompt="a red circle " * 7)]
    generator_of(any_miniature).encode(prompts)
    assert "1 of 2 prompts is longer than 16 tokens and is cut: " in capsys.readouterr().err


def test_previews_approach_the_image(each_miniature: Any) -> None:
    seen: list[np.ndarray] = []
    (prompt,) = prompts_of(settings_of(each_miniature.family, {}, values_of(each_miniature, steps=12)))
    generator, steps = generator_of(each_miniature), []
    _, media = generator.image(
        prompt, lambda done, total: steps.append((done, total)), lambda decode: seen.append(decode().numpy())
    )
    image = media.frames[0].movedim(-1, 0).numpy() / 255
    far = [float(np.abs(each - image).mean()) for each in seen]
    assert steps == [(number + 1, 12) for number in range(12)]
    assert len(seen) == 12
    assert far[-1] < 0.02 < far[0]


def test_swapping_adapters_in_place_equals_a_fresh_model(
    each_miniature: Any, adapters: list[Path], tmp_path: Path
) -> None:
    one, other = AdapterFile(adapters[0], 0.5), AdapterFile(adapters[1], 1.0)
    kept = generator_of(each_miniature)
    plain = image_of(kept, each_miniature)
    both = image_of(kept, each_miniature, one, other)
    weaker = image_of(kept, each_miniature, AdapterFile(adapters[0], 0.25))
    assert np.array_equal(image_of(kept, each_miniature), plain), "nothing is left of an adapter"
    assert np.array_equal(image_of(generator_of(each_miniature), each_miniature, one, other), both)
    assert len({image.tobytes() for image in (plain, both, weaker)}) == 3
    again = tmp_path / "again.safetensors"
    again.write_bytes(adapters[0].read_bytes())
    first = image_of(kept, each_miniature, AdapterFile(again))
    again.write_bytes(adapters[1].read_bytes())
    assert not np.array_equal(image_of(kept, each_miniature, AdapterFile(again)), first), "the file was replaced"


SWAPPED = {"quantize_base": "int8_weight_only", "blocks_to_swap": 1}


@pytest.mark.parametrize(
    ("each_miniature", "memory"),
    [("flux", {"quantize_base": "fp8"}), ("flux", SWAPPED), ("sdxl", SWAPPED)],
    indirect=["each_miniature"],
)
def test_adapters_are_swapped_in_a_model_with_quantized_or_swapped_weights(
    each_miniature: Any, adapters: list[Path], memory: dict[str, Any]
) -> None:
    one = AdapterFile(adapters[0], 0.5)
    kept = generator_of(each_miniature, **memory)
    plain, adapted = image_of(kept, each_miniature), image_of(kept, each_miniature, one)
    assert np.array_equal(image_of(generator_of(each_miniature, **memory), each_miniature, one), adapted)
    assert np.array_equal(image_of(kept, each_miniature), plain)
    assert not np.array_equal(adapted, plain)


def test_a_settings_file_of_a_training_keeps_its_weights_in_fp8() -> None:
    settings = settings_of(
        "flux", {"learning_rate": 1e-4, "fp8_base": True, "blocks_to_swap": 2}, {"prompt": ["a cat"]}
    )
    assert (settings.value("quantize_base"), settings.value("blocks_to_swap")) == ("fp8", 2)
    assert settings.value("prompt") == ["a cat"]


@pytest.mark.parametrize("each_miniature", ["flux"], indirect=True)
def test_a_compiled_model_generates_the_same_image_and_swaps_adapters_without_a_new_graph(
    each_miniature: Any, adapters: list[Path], no_graphs: None
) -> None:
    eager = generator_of(each_miniature)
    compiled = generator_of(each_miniature, compile=True, compile_backend="aot_eager")
    begun = graph_count()
    image = image_of(compiled, each_miniature)
    first = graph_count()
    assert first > begun
    assert np.abs(image.astype(int) - image_of(eager, each_miniature)).max() <= 2
    with_one = image_of(compiled, each_miniature, AdapterFile(adapters[0]))
    assert graph_count() == first
    assert np.abs(with_one.astype(int) - image_of(eager, each_miniature, AdapterFile(adapters[0]))).max() <= 2


def several(generator: Generator, **values: Any) -> list[np.ndarray]:
    """The images of a request, made in its batches."""
    settings = settings_of(generator.family.card.name, {}, values)
    batches = batches_of(prompts_of(settings), settings[GenerateOptions], generator.family.card)
    made = [media for batch in batches for _, media in generator.images(batch, lambda done, total: None)]
    return [media.frames[0].numpy() for media in made]


def test_images_generated_together_equal_images_generated_one_by_one(each_miniature: Any) -> None:
    """Up to rounding: matrix products of other sizes add up in a different order. Samplers of SDXL draw in each
    step."""
    generator = generator_of(each_miniature)
    assert (generator.family.sample_batch is not None) == generator.family.card.has("batches")
    asked = values_of(each_miniature, prompt=["a red circle --l 2 --n a blue square"], images_per_prompt=3)
    alone, together = several(generator, **asked), several(generator, **asked, batch_size=3)
    assert len({image.tobytes() for image in alone}) == len(alone) == 3
    assert max(np.abs(a.astype(int) - b).max() for a, b in zip(alone, together, strict=True)) <= 1


def test_an_image_is_made_again_without_recording_if_memory_runs_out(flux_miniature: Any) -> None:
    generator = generator_of(flux_miniature)
    expected = image_of(generator, flux_miniature, steps=5)
    denoiser = generator.components.denoiser
    forward = denoiser.forward
    generator.recorded = RecordedForward(denoiser, Rerun(), waiting_for_cpu)
    image_of(generator, flux_miniature, steps=5)
    assert generator.recorded.graphs
    (prompt,) = prompts_of(settings_of(flux_miniature.family, {}, values_of(flux_miniature, steps=5)))
    failures = [torch.OutOfMemoryError("while decoding")]

    def step(done: int, total: int) -> None:
        if failures:
            raise failures.pop()

    assert np.array_equal(generator.image(prompt, step)[1].frames[0].numpy(), expected)
    assert generator.recorded.graphs == 0
    failures.append(torch.OutOfMemoryError("again"))
    with pytest.raises(torch.OutOfMemoryError, match="again"):
        generator.image(prompt, step)
    generator.close()
    assert denoiser.forward == forward


@pytest.mark.parametrize(
    ("images", "batch_size", "sizes"), [(1, 4, [1]), (4, 4, [4]), (5, 4, [3, 2]), (9, 8, [5, 4]), (3, 1, [1, 1, 1])]
)
def test_batches_are_of_one_prompt_and_about_equal_in_size(images: int, batch_size: int, sizes: list[int]) -> None:
    values = {"prompt": ["a cat --d 3", "a dog"], "images_per_prompt": images, "batch_size": batch_size}
    settings = settings_of("flux", {}, values)
    made = batches_of(prompts_of(settings), settings[GenerateOptions], card_of("flux"))
    assert [len(batch) for batch in made] == sizes * 2
    assert all(len({prompt.prompt for prompt in batch}) == 1 for batch in made)
    assert [prompt.seed for batch in made[: len(sizes)] for prompt in batch] == list(range(3, 3 + images))


def test_a_seed_of_minus_one_is_a_new_one_for_each_image() -> None:
    values = {"prompt": ["a cat", "a dog --d 3", "a cat --d -1"], "images_per_prompt": 2, "image_seed": -1}
    assert [each.seed for each in prompts_of(settings_of("flux", {}, values))] == [None, None, 3, 4, None, None]


def test_compiled_batches_of_one_request_share_their_graphs(
    flux_miniature: Any, tmp_path: Path, no_graphs: None
) -> None:
    asked = {"prompt": ["a cat", "a dog"], "images_per_prompt": 3, "batch_size": 2, "steps": 1, "compile": True}
    family, reporter = family_of("flux"), Reporter(RunFolder(tmp_path / "run"))
    settings = settings_of(
        "flux", {}, values_of(flux_miniature, **asked, compile_backend="eager", image_dir=str(tmp_path))
    )
    assert len(Worker(family, reporter).run(settings)) == 6
    events = [event for event in reporter.folder.events() if event["kind"] == "image"]  # type: ignore[union-attr]
    assert ["graphs" in event for event in events] == [True, *[False] * 5]
    assert sorted(event["number"] for event in events) == list(range(6))


def test_the_next_preview_waits_ten_times_the_last_ones_duration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, previews = SimpleNamespace(now=0.0), Previews(Reporter(RunFolder(tmp_path)))
    monkeypatch.setattr(work, "time", SimpleNamespace(monotonic=lambda: clock.now))
    decoded_at = []

    def decode() -> torch.Tensor:
        decoded_at.append(clock.now)
        clock.now += 3
        return torch.zeros(3, 8, 8)

    for clock.now in (1.0, 5.0, 33.5, 34.5):
        previews(decode)
    assert decoded_at == [1.0, 34.5]


@pytest.fixture
def controls(tmp_path: Path) -> list[str]:
    """Two control images of other sizes than the image."""
    return [str(make_image(tmp_path / name, size, seed=4)) for name, size in (("a.png", (96, 80)), ("b.png", (64, 64)))]


def test_kontext_generates_from_control_images_like_diffusers(
    kontext_miniature: Any, controls: list[str], tmp_path: Path
) -> None:
    """The same noise for each of two images of a batch; the control image at the size of the image."""
    flags = {"prompt": [f"a red circle --d 1 --ci {controls[1]}"], "images_per_prompt": 2, "batch_size": 2}
    assert run(kontext_miniature, tmp_path / "out", **flags) == 0
    settings = settings_of("flux_kontext", {}, values_of(kontext_miniature))
    components = family_of("flux_kontext").open(training_settings(settings), torch.float32).load()
    theirs = pipeline_of(components, FluxKontextPipeline)(
        Image.open(controls[1]),
        "a red circle",
        guidance_scale=2.5,
        width=64,
        height=64,
        max_area=64 * 64,
        _auto_resize=False,
        num_inference_steps=2,
        num_images_per_prompt=2,
        max_sequence_length=16,
        generator=[torch.Generator().manual_seed(seed) for seed in (1, 2)],
        output_type="np",
    ).images
    for path, expected in zip(
        sorted((tmp_path / "out").iterdir(), key=lambda file: file.stem[-1]), theirs, strict=True
    ):
        with Image.open(path) as image:
            assert np.abs(np.asarray(image) / 255 - expected).max() < 2 / 255
            (control,) = read_chunks(image.text)["control_images"]  # type: ignore[attr-defined]
    content = Path(controls[1]).read_bytes()
    assert control == {"name": "b.png", "path": controls[1], "sha256": hashlib.sha256(content).hexdigest()}


def test_a_prompt_names_its_control_images_or_uses_the_option(kontext_miniature: Any, controls: list[str]) -> None:
    first, second = controls
    prompts = [f"a --ci {second} --ci {first}", "b"]
    asked = values_of(kontext_miniature, prompt=prompts, control_image_path=[first])
    settings = settings_of("flux_kontext", {}, asked)
    assert [prompt.control_images for prompt in prompts_of(settings)] == [(second, first), (first,)]
    generator = generator_of(kontext_miniature)
    both, one = several(generator, **asked)
    assert np.array_equal(several(generator, **asked)[1], one)
    assert not np.array_equal(both, one)
    generator.use(settings_of("flux_kontext", {}, {**asked, "no_resize_control": True}))
    assert not np.array_equal(several(generator, **asked)[1], one), "its size is followed without loading again"


def test_a_control_image_that_cannot_be_read_is_reported(
    kontext_miniature: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text.png").write_text("no image")
    for asked, told in (
        ({"prompt": ["a --ci /nowhere.png"]}, "prompt: control_image_path: file not found: '/nowhere.png'"),
        ({"prompt": [f"a --ci {tmp_path / 'text.png'}"]}, "text.png' cannot be read as an image; choose a PNG"),
        ({"control_image_path": ["/nowhere.png"]}, "control_image_path: file not found: '/nowhere.png'"),
        ({"batch_size": 0}, "batch_size: 0 is outside 1..64"),
    ):
        assert run(kontext_miniature, tmp_path / "out", **asked) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert told in line


def test_clips_have_the_size_of_their_model_and_images_1024_unless_it_is_set() -> None:
    sizes = {"flux": (1024, 1024), "wan": (832, 480), "hunyuan_video": (848, 480), "framepack": (640, 640)}
    for family, size in sizes.items():
        (prompt,) = prompts_of(settings_of(family, {}, {"prompt": ["a cat"]}))
        assert (prompt.width, prompt.height) == size
    (prompt,) = prompts_of(settings_of("wan", {}, {"prompt": ["a cat"], "width": 640}))
    assert (prompt.width, prompt.height) == (640, 480)


def test_options_without_effect_on_images_are_reported() -> None:
    asked: dict[str, Any] = {"prompt": ["a --ci b.png --g 2"], "control_image_path": ["b.png"], "batch_size": 2}
    kontext = settings_of("flux_kontext", {}, {"prompt": ["a"], "batch_size": 2, "control_directory": "c"})
    assert [str(remark) for remark in settings_of("flux", {}, asked).remarks] == [
        "control_image_path: has no effect for FLUX.1"
    ]
    assert [str(remark) for remark in kontext.remarks] == [
        "control_directory: has no effect when generating; name control images with --ci in the prompt"
    ]
    assert prompt_warnings(kontext) == [
        "batch_size: 2 is more than images_per_prompt = 1, and only images of one prompt are generated together",
        "control_image_path: without a control image (--ci), the image is made from the text alone",
    ]
    qwen = settings_of("qwen_image", {}, {**asked, "batch_size": 1})
    assert prompt_warnings(qwen) == [
        "prompt: --g has no effect for Qwen-Image",
        "prompt: --ci has no effect for Qwen-Image",
    ]
    assert prompts_of(qwen)[0].control_images == ()


def test_an_image_without_metadata_has_no_parameters(flux_miniature: Any, tmp_path: Path) -> None:
    assert run(flux_miniature, tmp_path, steps=1, no_metadata=True) == 0
    with Image.open(next(tmp_path.glob("*.png"))) as image:
        assert image.text == {}  # type: ignore[attr-defined]


BAD: dict[str, dict[str, Any]] = {
    "file or folder not found: '/nowhere.safetensors'": {"pretrained_model_name_or_path": "/nowhere.safetensors"},
    "prompt: width 100 is not a multiple of": {"prompt": ["a cat --w 100"]},
    "steps: 2000 is outside 1..999": {"steps": 2000},
    "prompt: number 2, height 72 is not a multiple of": {"prompt": ["a cat", "a dog --h 72"]},
    "prompt: not set": {"prompt": []},
    "lora_weights: file not found: '/nowhere'": {"lora_weights": ["/nowhere"]},
    "lora_multiplier: has 1 numbers for 0 files": {"lora_multiplier": [0.5]},
    "image_dir: '/dev/null/x' cannot be written to": {"image_dir": "/dev/null/x"},
    "image_dir: '/proc/images' cannot be written to": {"image_dir": "/proc/images"},
    "prompt_file: file not found": {"prompt_file": "/nowhere.txt"},
}


@pytest.mark.parametrize("told", BAD)
def test_bad_input_is_reported_in_a_sentence(
    told: str, flux_miniature: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(flux_miniature, tmp_path, **BAD[told]) == 2
    assert told in capsys.readouterr().err


@pytest.mark.inductor
def test_inductor_computes_a_layer_without_gradients_like_eager_code(no_graphs: None) -> None:
    """In the mode of generating. Each kernel takes a second, so the layer is the one with the fewest."""
    options = settings_of("flux", {}, {"prompt": ["a cat"], "compile": True})[CompileOptions]
    assert options.compile_mode == "max-autotune-no-cudagraphs"
    torch.manual_seed(0)
    layer = FluxTransformer(SHAPE).final_layer
    x, vec = torch.randn(2, 12, SHAPE.width), torch.randn(2, SHAPE.width)
    with torch.no_grad():
        expected = layer(x, vec)
        compile_model(options, layer, [[layer]], static=True)
        torch.testing.assert_close(layer(x, vec), expected, rtol=1e-4, atol=1e-5)
    assert graph_count() == 1


def test_a_model_generates_with_the_objective_in_its_metadata(
    miniature: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenizers = f"{miniature.checkpoint.stem}_tokenizers"
    marked = tmp_path / miniature.checkpoint.name
    shutil.copytree(miniature.checkpoint.with_name(tokenizers), tmp_path / tokenizers)
    save_model(marked, load_file(miniature.checkpoint) | {"v_pred": torch.zeros(1), "ztsnr": torch.zeros(1)}, {})
    chosen = {"v_parameterization": True, "zero_terminal_snr": True}
    expected = image_of(generator_of(miniature, **chosen), miniature, **chosen)
    assert not np.array_equal(image_of(generator_of(miniature), miniature), expected)
    capsys.readouterr()
    generator = generator_of(miniature, pretrained_model_name_or_path=str(marked))
    warnings = capsys.readouterr().err.splitlines()
    assert [line.partition(", since")[0] for line in warnings] == [f"{name}: turned on" for name in chosen]
    generator.use(settings_of(miniature.family, {}, values_of(miniature)))
    assert np.array_equal(image_of(generator, miniature), expected)
