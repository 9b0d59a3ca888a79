"""Values of options are compared: each image equals the one that is generated alone, and a grid shows them together."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from sd_scripts.formats.images.image_parameters import read_chunks
from sd_scripts.generating.labelled_grid import HEAD, LEFT
from sd_scripts.generating.sweep_grid import ENDING
from sd_scripts.settings.generate_settings import problems, settings_of
from sd_scripts.settings.sweeps import cells_of
from tests.generating.test_generate import generator_of, run, values_of, write_adapter

pytestmark = pytest.mark.run
TWO = ["lora_multiplier=0,2", "steps=1, 2"]


def pixels(file: Path) -> np.ndarray:
    with Image.open(file) as image:
        return np.asarray(image.convert("RGB"))


def told(file: Path) -> dict[str, Any]:
    with Image.open(file) as image:
        return read_chunks(image.text)  # type: ignore[attr-defined]


def test_each_image_equals_one_alone_and_the_grid_has_all(miniature: Any, tmp_path: Path) -> None:
    lora = write_adapter(tmp_path / "lora.safetensors", generator_of(miniature))
    more: dict[str, Any] = {"lora_weights": [str(lora)], "prompt": ["a red circle --d 5"]}
    assert run(miniature, tmp_path / "out", **more, sweep=TWO) == 0
    (grid,) = (tmp_path / "out").glob(f"*{ENDING}")
    files = [file for file in (tmp_path / "out").iterdir() if file != grid]
    images = {(strength, steps): file for file in files for (_, strength), (_, steps) in [told(file)["sweep"]]}
    assert told(files[0])["sweep"][0][0] == "lora_multiplier"
    assert images.keys() == {(strength, steps) for strength in ("0", "2") for steps in ("1", "2")}
    assert run(miniature, tmp_path / "alone", **more, lora_multiplier=[2.0], steps=1) == 0
    (alone,) = (tmp_path / "alone").iterdir()
    assert np.array_equal(pixels(images["2", "1"]), pixels(alone))
    assert not np.array_equal(pixels(images["0", "1"]), pixels(alone))
    shown = pixels(grid)
    side = (shown.shape[1] - LEFT) // 2 - 8
    corner = np.asarray(Image.fromarray(pixels(images["0", "1"])).resize((side, side)))
    assert np.abs(shown[HEAD : HEAD + side, LEFT : LEFT + side].astype(int) - corner).mean() < 8


def test_all_cells_have_one_seed_unless_seeds_are_compared(miniature: Any) -> None:
    def settings(*sweep: str) -> Any:
        return settings_of("sdxl", {}, values_of(miniature, image_seed=-1, sweep=list(sweep)))

    assert {cell.settings.value("image_seed") for cell in cells_of(settings("steps=1,2"), 9)} == {9}
    assert [cell.settings.value("image_seed") for cell in cells_of(settings("image_seed=3,4"), 9)] == [3, 4]
    assert [cell.settings.value("image_seed") for cell in cells_of(settings(), 9)] == [-1]
    files = ["a.safetensors", 'b, "c".safetensors']
    quoted = settings('lora_weights=a.safetensors,"b, ""c"".safetensors"')
    assert [cell.settings.value("lora_weights") for cell in cells_of(quoted)] == [[file] for file in files]


@pytest.mark.parametrize(
    ("sweep", "sentence"),
    [
        (["steps"], "sweep: steps has no values; write steps=first,second"),
        (["steps=1,x"], "sweep: steps: 'x' is not a whole number"),
        (["steps=1,0"], "sweep: steps: 0 is outside 1..999"),
        (["width=64,70"], "prompt: width 70 is not a multiple of"),
        (["dtype=bf16,fp32"], "sweep: 'dtype=bf16,fp32' is not an option with values, such as steps=10,20"),
        (["lora_multiplier=0.5,1"], "sweep: there is no adapter whose strength could be compared; set lora_weights"),
        (["lora_weights=/nowhere"], "lora_weights: file not found: '/nowhere'"),
        (["steps=1,2", "steps=3"], "sweep: names steps twice; compare two different options"),
        (["steps=1", "scale=1", "width=64"], "sweep: compares 3 options; compare one or two"),
        ([f"steps={','.join(map(str, range(1, 102)))}", "scale=1,2,3,4"], "sweep: makes 404 images of each prompt"),
        (["=", ""], "sweep: '=' is not an option with values"),
    ],
)
def test_a_wrong_sweep_is_refused_in_one_sentence(miniature: Any, sweep: list[str], sentence: str) -> None:
    (problem,) = problems(settings_of("sdxl", {}, values_of(miniature, sweep=sweep)))
    assert str(problem).startswith(sentence)
