"""benchmark_generate times our generator and diffusers' pipeline: on miniatures, from the command line."""

from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import timed_images
from benchmarks.generating import COMPARED, FAMILIES, HEADINGS, ROWS, SMALL, Row, main, table
from benchmarks.pipelines import pipeline_module
from sd_scripts.families.common.family import TextOptions, family_of
from sd_scripts.settings.generate_settings import prompts_of, read_command_line, training_settings
from sd_scripts.tools.timed_run import GIB

OF_IMAGES = {"sdxl": "miniature", "flux": "flux_miniature", "qwen_image": "qwen_image_miniature"}
OF_FAMILIES = ("chroma", "flux2", "krea2", "z_image", "wan", "hunyuan_video")
FIXTURES = OF_IMAGES | {name: f"{name}_miniature" for name in OF_FAMILIES}

pytestmark = [
    pytest.mark.run,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # diffusers asks NumPy in an old way
]


def cells_of(line: str) -> dict[str, str]:
    return dict(zip(HEADINGS, (cell.strip() for cell in line.strip("|").split("|")), strict=True))


def settings_of(miniature: Any, *more: str) -> Any:
    files = [word for option, path in miniature.files.items() for word in (f"--{option}", str(path))]
    small = ["--prompt", "a red circle --n a blue square", "--width", "64", "--height", "64", "--steps", "3", *SMALL]
    return read_command_line(miniature.family, [*files, *small, *more])[0]


@pytest.mark.run
@pytest.mark.usefixtures("warm_python")
def test_a_row_is_a_process_that_generates_several_images(tmp_path: Path) -> None:
    found = tmp_path / "table.md"
    small = ["--miniature", "--folder", str(tmp_path), "--steps", "2", "--images", "3", "--rows", "compiled"]
    assert main(["--family", "qwen_image", *small, "--markdown", str(found)]) == 0
    cells = cells_of(found.read_text().splitlines()[-1])
    assert (cells["row"], cells["graphs"], cells["speed, eager = 1"]) == ("compiled", "1", "")
    assert len(cells["of each image"].split(", ")) == 2
    assert float(cells["start s"]) > float(cells["first image s"]) > 0


@pytest.mark.run
@pytest.mark.parametrize("family", OF_IMAGES)
@pytest.mark.parametrize("row", COMPARED)
def test_steps_are_timed_apart_from_the_rest_of_an_image(
    family: str, row: str, request: pytest.FixtureRequest, no_graphs: None
) -> None:
    settings = settings_of(request.getfixturevalue(FIXTURES[family]))
    first, second = timed_images.generate(row, settings, 2)
    assert first.time < second.time
    for image in (first, second):
        assert 0 < 2 * image.step < image.seconds  # two of three steps, and the VAE
        assert (image.graphs, image.warnings) == (0, ())


@pytest.mark.run
def test_both_sides_are_compiled_if_their_row_is(flux_miniature: Any, no_graphs: None) -> None:
    (ours,) = timed_images.generate("compiled", settings_of(flux_miniature, "--compile"), 1)
    (both,) = timed_images.generate("diffusers_compiled", settings_of(flux_miniature), 1)
    assert ours.graphs == 2  # of double and single blocks
    assert both.graphs >= ours.graphs + 2  # one process counts on


@pytest.mark.parametrize("family", FAMILIES)
def test_diffusers_has_the_same_number_of_weights(family: str, request: pytest.FixtureRequest) -> None:
    components = family_of(family).open(
        training_settings(settings_of(request.getfixturevalue(FIXTURES[family]))), torch.float32
    )
    made = pipeline_module(family).make_modules(components)
    for part, own in zip(made, (components.denoiser, components.vae), strict=True):
        assert sum(p.numel() for p in part.parameters()) == sum(p.numel() for p in own.parameters())


@pytest.mark.parametrize("family", OF_IMAGES)
def test_diffusers_has_the_same_text_shape(family: str, request: pytest.FixtureRequest) -> None:
    settings = settings_of(request.getfixturevalue(FIXTURES[family]), "--scale", "4")
    (prompt,) = prompts_of(settings)
    ours, module, of_family = training_settings(settings), pipeline_module(family), family_of(family)
    components = of_family.open(ours, torch.float32).load()
    tokens = of_family.text.tokenize(components, of_family.text.prompt_captions(prompt), TextOptions.of(ours))
    with torch.no_grad():
        text = of_family.text.encode(components, tokens)
    given = module.text_arguments(components, prompt, ours)["prompt_embeds"].shape
    states = [text[name] for name in ("hidden_state1", "hidden_state2", "t5_out", "vl_embed") if name in text]
    length = int(text["vl_mask"][-1].sum()) if "vl_mask" in text else states[0].shape[1]
    assert given == (1, length, sum(each.shape[-1] for each in states))


def image(seconds: float, time: float = 0.0, graphs: int = 0) -> dict[str, Any]:
    return {"time": time, "seconds": seconds, "step": 0.1, "allocated": 3 * GIB, "graphs": graphs, "warnings": []}


def test_the_first_image_is_listed_separately_and_rows_are_compared() -> None:
    rows = {
        "eager": Row(began=100.0, images=[image(9.0, 130.0), image(4.0), image(4.0)]),
        "compiled": Row(began=100.0, images=[image(60.0, 190.0), image(2.0), image(3.0, graphs=7)], busy=[90.0, 100.0]),
    }
    assert cells_of(table(rows, 20).splitlines()[-1]) == {
        "row": "compiled",
        "s per image": "2.50",
        "of each image": "2.00, 3.00",
        "ms per step": "100.0",
        "outside steps ms": "500",
        "GiB allocated": "3.00",
        "GPU busy": "95 %",
        "first image s": "60.0",
        "start s": "90.0",
        "graphs": "7",
        "speed, eager = 1": "1.60",
        "speed, diffusers = 1": "",
    }


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--rows", "eagre"], f"--rows: unknown row eagre; choose from {', '.join(ROWS)}"),
        (["--images", "1"], "--images: must be at least 2, since the first one is not timed with the others"),
        (["--resolution", "big"], "--resolution: 'big' is not a size; write 1024 or 1024,768"),
        (["--resolution", "100,64"], "prompt: width 100 is not a multiple of 8; choose 96 or 104"),
        (["--stepz", "3"], "--stepz: unknown option"),
    ],
)
def test_problems_are_reported_before_anything_is_written(
    flags: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--miniature", "--folder", str(tmp_path), *flags]) == 2
    assert capsys.readouterr().err.startswith(told)
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_full_size_needs_a_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--folder", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith("There is no NVIDIA GPU")
    assert not list(tmp_path.iterdir())
